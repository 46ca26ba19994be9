"""Garbage collection: old versions go, then what nothing names.

A version goes by one rename of its folder to a name that readers look past, so a crash at any point leaves only
complete versions; what it leaves behind, the next collection removes. Files are removed while no writer is at work
(locks.py), because a writer's new files are named by no version yet. Readers take no lock: on Linux a file that a
process has opened or mapped stays readable until it lets go of it, and its space becomes free then.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rankhouse.embedding_cache.format.errors import ContentError, ManifestError
from rankhouse.embedding_cache.format.files import MANIFEST_NAME, flush, is_sha256
from rankhouse.embedding_cache.format.locks import collecting
from rankhouse.embedding_cache.format.shared_files import SEGMENTS
from rankhouse.embedding_cache.format.version import VERSIONS, Version, VersionStore
from rankhouse.embedding_cache.format.version_record import is_version_name
from rankhouse.embedding_cache.maintenance.inventory import shared_files

# An unfinished write is left alone for this long: the lock does not reach writers on every kind of network disk.
GRACE_SECONDS = 24 * 3600.0

_REMOVED = ".removed-"
_SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Garbage:
    """A file or folder that goes.

    Attributes:
        path: Where it lies.
        kind: What it is: "version", "segment" (of rows or a vocabulary; nothing names it) or "unfinished" (a write that
            died).
        bytes: The bytes of the file, or of the files in the folder.
        model: For a version: its model.
    """

    path: Path
    kind: str
    bytes: int
    model: str = ""


def find_garbage(store: VersionStore, *, keep: int, grace_seconds: float = GRACE_SECONDS) -> list[Garbage]:
    """Finds what a collection would remove; changes nothing and takes no lock.

    While a writer is at work, its files are among what is found: `collect_garbage` waits for it and looks again.

    Args:
        store: The store.
        keep: How many versions of each model stay, the newest; 1 or more.
        grace_seconds: How long an unfinished write must have been left alone.

    Raises:
        ContentError: `keep` is less than 1.
        ManifestError: A manifest cannot be read, so what it names is not known.
        VersionNotFoundError: There is no such store.
    """
    if keep < 1:
        raise ContentError(f"expected to keep 1 version of each model or more, found {keep}: the latest never goes")
    versions = _read_all(store)
    going = _beyond(versions, keep)
    named = {path for version in versions if version not in going for path in shared_files(version)}
    garbage = [Garbage(version.path, "version", _size(version.path), version.model) for version in going]
    segments = [path for path in _entries(store.path / SEGMENTS) if is_sha256(path.stem) and path.suffix == _SUFFIX]
    garbage += [Garbage(path, "segment", _size(path)) for path in segments if path not in named]
    latest_end = time.time() - grace_seconds
    garbage += [Garbage(path, "unfinished", _size(path)) for path in _unfinished(store.path, latest_end)]
    return garbage


def collect_garbage(
    store: VersionStore,
    *,
    keep: int,
    grace_seconds: float = GRACE_SECONDS,
    on_wait: Callable[[], None] = lambda: None,
    on_removed: Callable[[Garbage], None] = lambda _: None,
) -> list[Garbage]:
    """Removes old versions, then the files that no version names.

    Args:
        store: The store.
        keep: How many versions of each model stay, the newest; 1 or more.
        grace_seconds: How long an unfinished write must have been left alone.
        on_wait: Called once if a writer is at work; the collection waits for it.
        on_removed: Called after each removal.

    Returns:
        What was removed.

    Raises:
        ContentError: `keep` is less than 1.
        ManifestError: A manifest cannot be read; nothing was removed.
        VersionNotFoundError: There is no such store.
    """
    store.names()  # Before the lock's file is made: there must be a store.
    with collecting(store.path, on_wait=on_wait):
        garbage = find_garbage(store, keep=keep, grace_seconds=grace_seconds)
        for item in garbage:
            _remove(item)
            on_removed(item)
    return garbage


def _read_all(store: VersionStore) -> list[Version]:
    try:
        return [store.read(name) for name in store.names()]
    except ManifestError as exc:
        raise ManifestError(
            f"{exc}; nothing is removed while a manifest cannot be read, because what it names is not known: repair "
            "the version, or move its folder away if it is not needed"
        ) from exc


def _beyond(versions: list[Version], keep: int) -> list[Version]:
    """The versions of each model that have `keep` newer ones, oldest first."""
    models = {version.model for version in versions}
    kept = {
        version.name
        for model in models
        for version in [version for version in versions if version.model == model][-keep:]
    }
    return [version for version in versions if version.name not in kept]


def _unfinished(store: Path, latest_end: float) -> Iterator[Path]:
    """Yields what died before it was complete: removals at once, writes when they were left alone long enough."""
    for path in (*_entries(store / SEGMENTS), *_entries(store / VERSIONS)):
        is_hidden = path.name.startswith(".")
        is_incomplete = is_version_name(path.name) and not (path / MANIFEST_NAME).exists()
        if path.name.startswith(_REMOVED) or ((is_hidden or is_incomplete) and _last_change(path) <= latest_end):
            yield path


def _remove(item: Garbage) -> None:
    if item.path.is_dir():
        removed = item.path
        if not item.path.name.startswith("."):
            removed = item.path.with_name(_REMOVED + item.path.name)
            shutil.rmtree(removed, ignore_errors=True)  # A version of this name that went before and was restored.
            os.rename(item.path, removed)
            flush(item.path.parent)
        shutil.rmtree(removed)
    else:
        item.path.unlink(missing_ok=True)


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _last_change(path: Path) -> float:
    """When a file, or anything in a folder, was last written to; in seconds since 1970."""
    try:
        return max(part.stat().st_mtime for part in (path, *path.rglob("*")))
    except FileNotFoundError:  # A writer that the lock does not reach has just gone on.
        return time.time()


def _size(path: Path) -> int:
    parts = [path, *path.rglob("*")]
    return sum(part.stat().st_size for part in parts if part.is_file())
