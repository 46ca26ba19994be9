"""Files into the system's page cache, and out of it."""

import os
from collections.abc import Iterable
from pathlib import Path

READ_BYTES = 1 << 22


def warm(files: Iterable[Path]) -> None:
    """Reads files once."""
    buffer = bytearray(READ_BYTES)
    for path in files:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


def drop(files: Iterable[Path]) -> None:
    """Drops the pages of files. Those that a process has mapped stay, and those that are not on the disk yet."""
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
