"""The locks of a store on local disks; the system frees those of a process that dies.

    .writers   held shared by each writer, from its first file to its version; held alone by garbage collection
    .lock      held by the writer that takes the next sequence number, also while it proves its version, whose manifest
               has the number: for seconds, in which other writers wait, and readers do not
    .fetch     in the mirror of a bucket: held by the process that fetches files

Lock order: `.writers`, then one of the others. Readers of local folders take none.

The files are opened to read and write: NFS takes a shared lock only for the one, an exclusive lock only for the other.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from rankhouse.embedding_cache.format.errors import StorageError

# The store in which this thread holds `.writers` alone.
_collected: ContextVar[Path | None] = ContextVar("_collected", default=None)


@contextmanager
def writing(store: Path) -> Iterator[None]:
    """Keeps garbage collection away: a writer's new files are named by no version until it is done.

    What is read from elsewhere meanwhile fails with errors of its own, or with those of the system that name its path.

    Raises:
        StorageError: The store's disk is full, broken or denies access; no version exists yet.
    """
    if _collected.get() == store:  # A collection in a bucket fetches manifests, and would wait for itself.
        yield
        return
    try:
        with open(store / ".writers", "a+") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            yield
    except OSError as exc:
        if not _is_of(store, exc):
            raise
        raise StorageError(
            f"{store}: cannot be written ({exc}); no version was changed: free space or correct the permissions, and "
            "try again"
        ) from exc


@contextmanager
def collecting(store: Path, *, on_wait: Callable[[], None]) -> Iterator[None]:
    """Waits until no writer is at work and keeps new ones waiting.

    Args:
        store: The store's folder.
        on_wait: Called once if a writer is at work.

    Raises:
        StorageError: The disk is broken or denies access.
    """
    try:
        with open(store / ".writers", "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            token = _collected.set(store)
            try:
                yield
            finally:
                _collected.reset(token)
    except OSError as exc:
        raise StorageError(f"{store}: not all could be removed ({exc}); what is left is complete: try again") from exc


@contextmanager
def committing(store: Path) -> Iterator[None]:
    """Lets one writer at a time choose the next sequence number."""
    with open(store / ".lock", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def fetching(store: Path) -> Iterator[None]:
    """Lets one process at a time fetch files into a mirror."""
    with open(store / ".fetch", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_of(store: Path, exc: OSError) -> bool:
    """Says whether an error is a store's: it names a path in it, or none, as where an open file cannot be written."""
    if not isinstance(exc.filename, str | bytes | os.PathLike):
        return True
    return Path(os.path.abspath(os.fsdecode(exc.filename))).is_relative_to(os.path.abspath(store))
