"""Garbage collection: old versions go, then what nothing names.

A version goes by one rename of its folder to a name that readers look past, in a bucket with its manifest, so a crash
at any point leaves only complete versions; what it leaves behind, the next collection removes. Files are removed while
no writer is at work (locks.py), because a writer's new files are named by no version yet. In a bucket there is no lock:
each removal is announced first, and what a version or a writer's claim names then stays (bucket_claims.py). Readers
take no lock: on Linux a file that a process has opened or mapped stays readable until it lets go of it, and its space
becomes free then.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rankhouse.embedding_cache.format.errors import ContentError, ManifestError, VersionNotFoundError
from rankhouse.embedding_cache.format.files import is_sha256
from rankhouse.embedding_cache.format.locks import collecting
from rankhouse.embedding_cache.format.shared_files import SEGMENTS
from rankhouse.embedding_cache.format.store_layout import ANNOUNCEMENT, REMOVED, VERSIONS, Entry
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.format.version_record import is_version_name

# An unfinished write is left alone for this long: the lock does not reach writers on every kind of network disk. In a
# bucket what nothing names is left alone as well: who has just put it is about to claim it.
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
    claims = store.storage.claims()  # Before the versions: a writer's claim goes when its manifest is there.
    versions = _read_all(store)
    going = _beyond(versions, keep)
    entries = {entry.path: entry for entry in store.storage.entries()}
    latest_end = time.time() - grace_seconds
    removed = [
        Garbage(version.path, "version", entries[f"{VERSIONS}/{version.name}"].bytes, version.model)
        for version in going
        if f"{VERSIONS}/{version.name}" in entries  # Another collection may have just removed it.
    ]
    unfinished = [entry for entry in entries.values() if _is_unfinished(entry, grace_seconds)]
    dead = {entry.path for entry in unfinished}
    named = {path for version in versions if version not in going for path in version.files()}
    named |= {path for claim, paths in claims.items() if claim not in dead for path in paths}
    unnamed = [
        entry
        for entry in entries.values()
        if _is_shared(entry)
        and entry.path not in named
        and (entry.last_change <= latest_end or store.storage.locks_writers)
    ]
    removed += [Garbage(store.path / entry.path, "unfinished", entry.bytes) for entry in unfinished]
    return removed + [Garbage(store.path / entry.path, "segment", entry.bytes) for entry in unnamed]


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
        removed = []
        for item in _removing(store, garbage):
            removed.append(item)
            on_removed(item)
    return removed


def _removing(store: VersionStore, garbage: list[Garbage]) -> Iterator[Garbage]:
    """Removes what goes, files that nothing names last, and yields each."""
    for item in garbage:
        if item.kind == "version":
            store.storage.remove(_place(store, item))
        elif item.kind == "unfinished":
            store.storage.abandon(_place(store, item))
        else:
            continue
        yield item
    left = {_place(store, item): item for item in garbage if item.kind == "segment"}
    while left:
        with store.storage.announced(left) as is_announced:
            # Whoever names one from now on sees the announcement, and waits.
            for path in _named(store) & set(left):
                del left[path]
            while left and is_announced():
                path = next(iter(left))
                store.storage.remove(path)
                yield left.pop(path)


def _place(store: VersionStore, item: Garbage) -> str:
    return str(item.path.relative_to(store.path))


def _named(store: VersionStore) -> set[str]:
    """What versions and claims name: all of them, whatever their age."""
    claims = store.storage.claims()  # Before the versions, as in `find_garbage`.
    return {
        *(path for paths in claims.values() for path in paths),
        *(path for version in _read_all(store) for path in version.files()),
    }


def _read_all(store: VersionStore) -> list[Version]:
    versions = []
    try:
        for name in store.names():
            with suppress(VersionNotFoundError):  # Another collection has just removed it.
                versions.append(store.read(name))
    except ManifestError as exc:
        raise ManifestError(
            f"{exc}; nothing is removed while a manifest cannot be read, because what it names is not known: repair "
            "the version, or move its folder away if it is not needed"
        ) from exc
    return versions


def _beyond(versions: list[Version], keep: int) -> list[Version]:
    """The versions of each model that have `keep` newer ones, oldest first."""
    models = {version.model for version in versions}
    kept = {
        version.name
        for model in models
        for version in [version for version in versions if version.model == model][-keep:]
    }
    return [version for version in versions if version.name not in kept]


def _is_shared(entry: Entry) -> bool:
    folder, _, name = entry.path.partition("/")
    return folder == SEGMENTS and name.endswith(_SUFFIX) and is_sha256(name.removesuffix(_SUFFIX))


def _is_unfinished(entry: Entry, grace_seconds: float) -> bool:
    """Says what died before it was complete: removals at once, writes when they were left alone long enough."""
    name = entry.path.partition("/")[2]
    is_incomplete = name.startswith(".") or (is_version_name(name) and not entry.is_complete)
    if name.startswith(ANNOUNCEMENT):
        # Nothing else keeps writers from files that another collection is removing just now.
        grace_seconds = max(grace_seconds, GRACE_SECONDS)
    return name.startswith(REMOVED) or (is_incomplete and entry.last_change <= time.time() - grace_seconds)
