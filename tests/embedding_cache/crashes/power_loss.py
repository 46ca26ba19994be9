"""What may be on a disk after the power failed, told from the calls that a process had made (the log of faults.c).

What was not flushed may be lost: bytes of files, and names in folders. Which of it is lost is up to the disk, so
there are several states: all of it, only the bytes, or one name.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Unflushed:
    """What a process has not flushed.

    Attributes:
        files: Files with bytes that may be lost.
        names: What appeared in a folder, oldest first: the path, and where it was before if it was renamed.
    """

    files: set[Path] = field(default_factory=set)
    names: list[tuple[Path, Path | None]] = field(default_factory=list)

    def follow(self, call: str, path: Path, target: Path) -> None:
        """Takes note of a call."""
        if call == "write":
            self.files.add(path)
        elif call == "fsync":
            self.files.discard(path)
            self.names = [(name, source) for name, source in self.names if name.parent != path]
        elif call == "create":
            self.names.append((path, None))
        elif call == "rename":
            self.files = {_moved(file, path, target) for file in self.files}
            self.names = [(_moved(name, path, target), source) for name, source in self.names if name != path]
            self.names.append((target, path))
        elif call == "unlink":
            self.files.discard(path)
            self.names = [(name, source) for name, source in self.names if name != path]


def read_log(log: Path) -> list[tuple[str, Path, Path]]:
    """Reads the calls that `faults.c` has logged."""
    lines = [line.split("\t") for line in log.read_text().splitlines()]
    return [(call, Path(path), Path(target)) for call, path, target in lines]


def states_after_power_loss(root: Path, log: Path, copies: Path) -> Iterator[Path]:
    """Makes copies of a folder as they may be after a power failure.

    Args:
        root: The folder in which the process was killed.
        log: The log of its calls.
        copies: Where the copies go, one at a time.
    """
    unflushed = Unflushed()
    for call, path, target in read_log(log):
        unflushed.follow(call, path, target)
    names = list(reversed(unflushed.names))
    for lost in [names, *([name] for name in names if len(names) > 1), *([[]] if names else [])]:
        shutil.rmtree(copies, ignore_errors=True)
        shutil.copytree(root, copies)
        for file in unflushed.files:
            (copies / file.relative_to(root)).write_bytes(b"")
        for path, source in lost:
            _lose(copies / path.relative_to(root), source and copies / source.relative_to(root))
        yield copies


def _lose(path: Path, source: Path | None) -> None:
    if source is not None and path.exists() and not source.exists():
        path.rename(source)
    elif path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _moved(path: Path, source: Path, target: Path) -> Path:
    return target / path.relative_to(source) if path.is_relative_to(source) else path
