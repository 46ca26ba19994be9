"""Finding new versions in a store, also where what it shows lags: a manifest before its files, a listing that is old.

Nothing is concluded from times of files. A version is known by its name, which vouches for its manifest, and the
manifest for the files. What is missing is waited for; what is wrong is looked at twice before it is called damaged,
since a file that is still being copied can have its size already.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rankhouse.embedding_cache.format.errors import CorruptFileError, ManifestError, VersionNotFoundError
from rankhouse.embedding_cache.format.files import FileRecord
from rankhouse.embedding_cache.format.store_layout import VERSIONS
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.format.version_record import sequence_of

# Size, times and place of each file on the disk: what changes when a file's bytes do, in all that is common.
Signature = tuple[tuple[str, int, int, int, int], ...]

_SHORTEST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.5, 30.0


@dataclass(frozen=True)
class Waiting:
    """A version that is not complete yet.

    Attributes:
        reason: What it waits for.
        since: When that was seen first, in monotonic seconds.
    """

    reason: str
    since: float

    def next_look(self, now: float) -> float:
        """When to look again: the longer it takes, the more seldom."""
        return now + min(max((now - self.since) / 2, _SHORTEST_WAIT_SECONDS), _LONGEST_WAIT_SECONDS)


@dataclass(frozen=True)
class View:
    """What a look at a store found.

    Attributes:
        names: All versions in it, of any model, oldest first.
        newest: The newest complete version that may be admitted; None if there is none.
        waiting: Newer ones that are not complete.
        damaged: Newer ones whose manifest cannot be read, and why.
    """

    names: tuple[str, ...] = ()
    newest: Version | None = None
    waiting: Mapping[str, Waiting] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)


class Suspicions:
    """What looked wrong once. It is believed when it is still so a while later, with the same bytes.

    Args:
        settle_seconds: How long that is.
    """

    def __init__(self, *, settle_seconds: float = 2.0) -> None:
        self.settle_seconds = settle_seconds
        self._first: dict[str, tuple[Signature, float]] = {}

    def is_confirmed(self, name: str, signature: Signature, *, now: float) -> bool:
        """Takes note that a version looks wrong, and says whether it did so before."""
        seen, since = self._first.get(name, (None, now))
        if seen != signature:
            self._first[name] = (signature, now)
            return False
        return now - since >= self.settle_seconds

    def clear(self, name: str) -> None:
        """Forgets a version."""
        self._first.pop(name, None)

    def keep_only(self, names: Collection[str]) -> None:
        """Forgets all other versions."""
        for gone in self._first.keys() - set(names):
            self._first.pop(gone, None)


class Watcher:
    """Looks at a store. Its calls block; use from one thread at a time.

    Args:
        store: The store.
        model: The model whose versions are looked for.
        suspicions: What looked wrong before.
    """

    def __init__(self, store: VersionStore, model: str, suspicions: Suspicions) -> None:
        self._store = store
        self._model = model
        self._suspicions = suspicions
        self._names: tuple[str, ...] = ()
        self._complete: dict[str, Version] = {}
        self._others: set[str] = set()
        self._waiting: dict[str, tuple[Waiting, float]] = {}
        self._damaged: dict[str, str] = {}

    def look(self, *, above: int, skipped: Collection[str], now: float) -> View:
        """Looks for the newest complete version. Versions that were looked at before cost nothing.

        Args:
            above: Versions up to this number are not looked at.
            skipped: Versions that are not to be found.
            now: The time, in monotonic seconds.

        Raises:
            VersionNotFoundError: There is no such store.
            StorageError: It cannot be reached.
        """
        names = tuple(self._store.names())
        is_news, self._names = names != self._names, names
        for known in (self._complete, self._waiting, self._damaged):
            for gone in known.keys() - set(names):
                del known[gone]
        self._others.intersection_update(names)
        self._suspicions.keep_only(names)
        newest = None
        for name in reversed(names):
            if sequence_of(name) <= above:
                break
            if name not in skipped and (newest := self._examined(name, now=now, is_news=is_news)) is not None:
                break
        waiting = {name: waits for name, (waits, _) in self._waiting.items() if sequence_of(name) > above}
        return View(names, newest, waiting, dict(self._damaged))

    def forget(self, name: str) -> None:
        """Has a version looked at anew."""
        self._complete.pop(name, None)
        self._damaged.pop(name, None)
        self._waiting.pop(name, None)
        self._suspicions.clear(name)

    def _examined(self, name: str, *, now: float, is_news: bool) -> Version | None:
        """Returns a version if it is complete."""
        if name in self._complete:
            return self._complete[name]
        if name in self._others or name in self._damaged:
            return None
        # What is new may be what it waited for.
        if name in self._waiting and now < self._waiting[name][1] and not is_news:
            return None
        try:
            version = self._store.read(name)
        except VersionNotFoundError:  # It was collected since the names were listed.
            return None
        except ManifestError as exc:
            self._suspect(name, str(exc), now)
            return None
        if version.model != self._model:
            self._others.add(name)
            return None
        if reason := what_is_missing(self._store, version):
            self._wait(name, reason, now)
            return None
        self._waiting.pop(name, None)
        self._complete[name] = version
        return version

    def _suspect(self, name: str, reason: str, now: float) -> None:
        if self._suspicions.is_confirmed(name, signature_of(self._store, name), now=now):
            self._waiting.pop(name, None)
            self._damaged[name] = reason
        else:
            self._wait(name, f"a readable manifest: {reason}", now)

    def _wait(self, name: str, reason: str, now: float) -> None:
        since = self._waiting[name][0].since if name in self._waiting else now
        waits = Waiting(reason, since)
        self._waiting[name] = (waits, waits.next_look(now))


def what_is_missing(store: VersionStore, version: Version) -> str:
    """Says which of a version's files are not there, or too short; empty if none. Nothing is read."""
    files = version.files()
    if store.storage.ranges is not None:  # A bucket.
        try:
            store.storage.look(files)
        except CorruptFileError as exc:
            return str(exc)
        return ""
    missing = [path for path, record in files.items() if _size(store.path / path) < record.bytes]
    if not missing:
        return ""
    parent = version.parent
    is_orphan = parent is not None and not store.storage.has(parent.name)
    of_parent = f"its parent {parent.name} and " if parent is not None and is_orphan else ""
    return f"{of_parent}{len(missing)} of its {len(files)} files, first {missing[0]}"


def signature_of(store: VersionStore, name: str, files: Mapping[str, FileRecord] | None = None) -> Signature:
    """Returns what tells whether a version's files were changed, without reading them. In a bucket nothing does."""
    folder = store.path / VERSIONS / name
    own = sorted(str(path.relative_to(store.path)) for path in folder.iterdir()) if folder.is_dir() else []
    entries = []
    for path in dict.fromkeys((*own, *(files or {}))):
        try:
            found = (store.path / path).stat()
        except OSError:
            entries.append((path, -1, 0, 0, 0))
        else:
            entries.append((path, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino))
    return tuple(entries)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1
