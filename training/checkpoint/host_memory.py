"""How much memory of the machine is free."""

from pathlib import Path

# The limit, the usage, and the key in `memory.stat` of what the usage counts although it can be had at once; the second
# version of control groups, and the first.
_GROUPS = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
)


def free_bytes(*, meminfo: Path = Path("/proc/meminfo"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns the bytes that processes may still take: what the machine has, and no more than its container allows.

    Args:
        meminfo: What Linux says of the machine's memory.
        groups: The control group of the container.

    Returns:
        The bytes; 0 where nothing says how many there are.
    """
    available = [_number(line.split()[1]) * 1024 for line in _lines(meminfo) if line.startswith("MemAvailable:")]
    for limit, usage, cache in _GROUPS:
        allowed, used = _lines(groups / limit), _lines(groups / usage)
        if allowed and used and allowed[0] != "max":
            reusable = [
                _number(line.split()[1])
                for line in _lines((groups / usage).with_name("memory.stat"))
                if line.startswith(f"{cache} ")
            ]
            available.append(_number(allowed[0]) - _number(used[0]) + sum(reusable))
    return max(0, min(available, default=0))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0
