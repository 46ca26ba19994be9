from pathlib import Path

import pytest

from rankhouse.training.checkpoint.host_memory import free_bytes

MIB = 1 << 20


@pytest.fixture
def meminfo(tmp_path: Path) -> Path:
    path = tmp_path / "meminfo"
    path.write_text(f"MemTotal: {8192 * 1024} kB\nMemFree: 1024 kB\nMemAvailable: {512 * 1024} kB\n")
    return path


def write_group(folder: Path, limit: str, usage: int, cache: str) -> None:
    names = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if folder.name == "memory"
        else ("memory.max", "memory.current")
    )
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in zip(names, (limit, usage), strict=True):
        (folder / name).write_text(f"{content}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{cache} {10 * MIB}\n")


def test_this_machine_has_some() -> None:
    assert free_bytes() > MIB


def test_a_machine_without_limits_gives_what_it_has(tmp_path: Path, meminfo: Path) -> None:
    write_group(tmp_path / "groups", "max", 5, "inactive_file")
    assert free_bytes(meminfo=meminfo, groups=tmp_path / "groups") == 512 * MIB


@pytest.mark.parametrize(("folder", "cache"), [(".", "inactive_file"), ("memory", "total_inactive_file")])
def test_a_container_gives_what_it_is_allowed(tmp_path: Path, meminfo: Path, folder: str, cache: str) -> None:
    write_group(tmp_path / "groups" / folder, str(300 * MIB), 100 * MIB, cache)
    assert free_bytes(meminfo=meminfo, groups=tmp_path / "groups") == 210 * MIB
    write_group(tmp_path / "groups" / folder, str(300 * MIB), 400 * MIB, cache)
    assert free_bytes(meminfo=meminfo, groups=tmp_path / "groups") == 0


def test_where_nothing_is_known_nothing_is_free(tmp_path: Path) -> None:
    assert free_bytes(meminfo=tmp_path / "nothing", groups=tmp_path / "none") == 0
