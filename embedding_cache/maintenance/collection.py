"""Garbage collection: old versions go, then what nothing names.

A version goes by one rename of its folder to a name that readers look past, in a bucket with its manifest, so a crash
at any point leaves only complete versions; what it leaves behind, the next collection removes. Files are removed while
no writer is at work (locks.py), because a writer's new files are named by no version yet. Readers take no lock: on
Linux a file that a process has opened or mapped stays readable until it lets go of it, and its space becomes free then.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rankhouse.embedding_cache.format.errors import ContentError, ManifestError
from rankhouse.embedding_cache.format.files import is_sha256
from rankhouse.embedding_cache.format.locks import collecting
from rankhouse.embedding_cache.format.shared_files import SEGMENTS
from rankhouse.embedding_cache.format.storage import REMOVED, VERSIONS, Entry
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.format.version_record import is_version_name

# An unfinished write is left alone for this long: the lock does not reach writers on every kind of network disk. In a
# bucket there is no lock, and what nothing names is left alone as well: a writer may have put it a moment ago.
GRACE_SECONDS = 24 * 3600.0

_SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Garbage:
    """A file or folder that goes.

    Attributes:
        path: Where it lies; for a bucket, where its mirror has it, if it does.
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
    named = {path for version in versions if version not in going for path in version.files()}
    entries = {entry.path: entry for entry in store.storage.entries()}
    latest_end = time.time() - grace_seconds
    garbage = [
        Garbage(version.path, "version", entries[f"{VERSIONS}/{version.name}"].bytes, version.model)
        for version in going
    ]
    for entry in entries.values():
        path = store.path / entry.path
        is_old = entry.last_change <= latest_end
        if path.parent.name == SEGMENTS and is_sha256(path.stem) and path.suffix == _SUFFIX:
            if entry.path not in named and (is_old or store.storage.locks_writers):
                garbage.append(Garbage(path, "segment", entry.bytes))
        elif _is_unfinished(path.name, entry, is_old=is_old):
            garbage.append(Garbage(path, "unfinished", entry.bytes))
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
    store.path.mkdir(parents=True, exist_ok=True)  # A bucket's mirror may be missing.
    with collecting(store.path, on_wait=on_wait):
        garbage = find_garbage(store, keep=keep, grace_seconds=grace_seconds)
        for item in garbage:
            store.storage.remove(str(item.path.relative_to(store.path)))
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


def _is_unfinished(name: str, entry: Entry, *, is_old: bool) -> bool:
    """Says what died before it was complete: removals at once, writes when they were left alone long enough."""
    is_incomplete = name.startswith(".") or (is_version_name(name) and not entry.is_complete)
    return name.startswith(REMOVED) or (is_incomplete and is_old)
