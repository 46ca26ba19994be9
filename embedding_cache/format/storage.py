"""Where a store of versions lies: a local folder, or a bucket that a local folder mirrors.

Readers and writers only ever see local files, in the same layout. What differs is how a version comes to exist:

    local folder   all files are flushed to the disk, then the version's folder appears by one rename, under a lock
    bucket         shared files are put first, then the number is claimed by an object that only one writer can create,
                   then the version's own files are put, and its manifest last: what has no manifest does not exist

so a writer that dies at any point leaves the old state or the new one, and what it left is named by nothing.

    versions/.<sequence>   in a bucket: the name of the version that took this number, or of one whose writer died

The mirror of a bucket holds what was opened or written here. Everything in it is named or vouched for by a hash, so it
is never out of date; it may be deleted at any time, and `rankhouse version gc` keeps it small as any other store.
"""

import hashlib
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Protocol

from rankhouse.embedding_cache.format.errors import ManifestError, StorageError, VersionNotFoundError
from rankhouse.embedding_cache.format.files import (
    MANIFEST_NAME,
    FileRecord,
    Manifest,
    check_content,
    file_record,
    flush,
    write_durably,
)
from rankhouse.embedding_cache.format.locks import committing, fetching, writing
from rankhouse.embedding_cache.format.object_storage import ObjectStorage
from rankhouse.embedding_cache.format.shared_files import SEGMENTS, flush_names
from rankhouse.embedding_cache.format.version_record import is_version_name, sequence_of

VERSIONS = "versions"
REMOVED = ".removed-"

# Of two writers that claim the same number one goes on and the other claims the next, so this many were as fast.
_CLAIMS = 100

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)
_CLAIM = re.compile(r"\.(\d{6,})")

# Completes the version in a temporary folder with a manifest of this sequence number.
Seal = Callable[[int], Manifest]


@dataclass(frozen=True)
class Entry:
    """A file of `segments/`, or a folder or file of `versions/`.

    Attributes:
        path: Its path in the store.
        bytes: Its size, or that of the files in the folder.
        last_change: When it, or anything in the folder, was last written to; in seconds since 1970.
        is_complete: Whether it is a folder with a manifest.
    """

    path: str
    bytes: int
    last_change: float
    is_complete: bool


class Storage(Protocol):
    """A place for versions. Any thread and any process may use it.

    Attributes:
        path: The local folder, in which readers find the files.
        locks_writers: Whether `collecting` keeps writers on other machines away, too.
    """

    path: Path
    locks_writers: bool

    def names(self) -> list[str]:
        """Lists the versions that exist, oldest first."""

    def has(self, name: str) -> bool:
        """Says whether a version exists; its manifest lies in the local folder then."""

    def fetch(self, files: Mapping[str, FileRecord], *, verify: bool) -> None:
        """Has files lie in the local folder, sound."""

    def check(self, name: str, record: FileRecord, *, on_bytes: Callable[[int], None]) -> None:
        """Reads a file where it is kept, and compares it with its record."""

    def prepare(self) -> None:
        """Has the place exist, before the work of writing to it begins."""

    def commit(self, temporary: Path, shared: Mapping[str, FileRecord], seal: Seal) -> str:
        """Makes a version of a temporary folder of `versions/` and of shared files, and returns its name."""

    def entries(self) -> list[Entry]:
        """Lists what lies in the store, sorted, finished or not."""

    def remove(self, path: str) -> None:
        """Removes what lies in the store; of a version's folder either all or nothing is left for readers to see."""


def open_storage(location: Path | str, *, cache: Path | str | None = None) -> Storage:
    """Names a place for versions; nothing is read or written yet.

    Args:
        location: A folder, as a path or a `file://` URL, or another URL that fsspec understands: `s3://bucket/prefix`.
        cache: The folder below which buckets are mirrored; None is `default_cache()`. A local folder needs none.
    """
    url = _URL.fullmatch(str(location))
    if url is None:
        return LocalStorage(Path(location))
    if url[1] == "file":
        return LocalStorage(Path(url[2]))
    objects = ObjectStorage(str(location))
    return BucketStorage(objects, Path(cache or default_cache()) / _folder_name(objects.url))


def default_cache() -> Path:
    """Returns the folder below which buckets are mirrored: `$RANKHOUSE_CACHE`, or one in the user's cache directory.

    Raises:
        StorageError: The user has no home.
    """
    try:
        user_cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError as exc:
        raise StorageError(f"the user has no home for a cache ({exc}); set RANKHOUSE_CACHE to a folder") from exc
    return Path(os.environ.get("RANKHOUSE_CACHE") or Path(user_cache) / "rankhouse")


class LocalStorage:
    """Versions in a local folder."""

    locks_writers = True

    def __init__(self, path: Path) -> None:
        self.path = path

    def names(self) -> list[str]:
        """Lists the versions, oldest first.

        Raises:
            VersionNotFoundError: There is no such folder.
        """
        if not self.path.is_dir():
            raise VersionNotFoundError(f"{self.path}: there is no such version store; `rankhouse export` makes one")
        folder = self.path / VERSIONS
        entries = folder.iterdir() if folder.is_dir() else ()
        return _sorted(
            entry.name for entry in entries if is_version_name(entry.name) and (entry / MANIFEST_NAME).is_file()
        )

    def has(self, name: str) -> bool:
        """Says whether a version exists."""
        return is_version_name(name) and (self.path / VERSIONS / name / MANIFEST_NAME).is_file()

    def fetch(self, files: Mapping[str, FileRecord], *, verify: bool) -> None:
        """Checks that files are there, complete, and by option that their checksums are right.

        Raises:
            CorruptFileError: One is missing, truncated or altered.
        """
        for name, record in files.items():
            check_content(self.path / name, record, verify=verify)

    def check(self, name: str, record: FileRecord, *, on_bytes: Callable[[int], None] = lambda num_bytes: None) -> None:
        """Reads a file and compares it with its record.

        Raises:
            CorruptFileError: It is missing, truncated or altered.
        """
        check_content(self.path / name, record, on_bytes=on_bytes)

    def prepare(self) -> None:
        """Makes the folder."""
        if not self.path.is_dir():
            self.path.mkdir(parents=True, exist_ok=True)
            flush(self.path.absolute().parent)

    def commit(self, temporary: Path, shared: Mapping[str, FileRecord], seal: Seal) -> str:
        """Makes a version of a temporary folder, by one rename; the lock makes its number its own.

        Raises:
            StorageError: The version exists, but a power failure may undo that.
        """
        flush_names(self.path)
        with committing(self.path):
            sequence = max(map(sequence_of, self.names()), default=0) + 1
            name = _version_name(sequence, seal(sequence))
            # The store's own entries may be as new as the version.
            flush(self.path)
            os.rename(temporary, self.path / VERSIONS / name)
            try:
                flush(self.path / VERSIONS)
            except OSError as exc:
                raise StorageError(
                    f"{self.path}: version {name} was written, but the disk did not confirm its name ({exc}), so a "
                    f"power failure may undo it: see whether `rankhouse version list {self.path}` has it"
                ) from exc
        return name

    def entries(self) -> list[Entry]:
        """Lists what lies in the store, sorted, finished or not."""
        folders = [self.path / folder for folder in (SEGMENTS, VERSIONS)]
        paths = [path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir())]
        return [self._entry(path) for path in paths]

    def remove(self, path: str) -> None:
        """Removes a file or folder; a folder is renamed to what readers look past first."""
        found = self.path / path
        if not found.is_dir():
            found.unlink(missing_ok=True)
            return
        if not found.name.startswith("."):
            removed = found.with_name(REMOVED + found.name)
            shutil.rmtree(removed, ignore_errors=True)  # A version of this name that went before and was restored.
            os.rename(found, removed)
            flush(found.parent)
            found = removed
        shutil.rmtree(found)

    def _entry(self, path: Path) -> Entry:
        try:
            stats = [part.stat() for part in (path, *path.rglob("*"))]
        except FileNotFoundError:  # A writer that the lock does not reach has just gone on.
            return Entry(str(path.relative_to(self.path)), 0, math.inf, is_complete=False)
        return Entry(
            str(path.relative_to(self.path)),
            sum(stat.st_size for stat in stats if S_ISREG(stat.st_mode)),
            max(stat.st_mtime for stat in stats),
            (path / MANIFEST_NAME).is_file(),
        )


class BucketStorage:
    """Versions in a bucket, mirrored in a local folder."""

    locks_writers = False

    def __init__(self, objects: ObjectStorage, path: Path) -> None:
        self.path = path
        self._objects = objects

    def names(self) -> list[str]:
        """Lists the versions, oldest first.

        Raises:
            StorageError: The storage cannot be reached, has no such bucket, or denies it.
        """
        return self._listed()[0]

    def has(self, name: str) -> bool:
        """Says whether a version exists; its manifest lies in the mirror then.

        Raises:
            ManifestError: It is not the one that the version's name promises.
            StorageError: The storage cannot be reached, has no such bucket, or denies it.
        """
        manifest = f"{VERSIONS}/{name}/{MANIFEST_NAME}"
        if not is_version_name(name):
            return False
        if (self.path / manifest).is_file() and _is_named(name, (self.path / manifest).read_bytes()):
            return True
        content = self._objects.read(manifest)
        if content is None:
            return False
        if not _is_named(name, content):
            raise ManifestError(
                f"{self._objects.url}/{manifest}: was altered: its SHA-256 is not the one that the version's name ends "
                "with; restore the object from another copy of the store"
            )
        with self._changing():
            (self.path / manifest).parent.mkdir(parents=True, exist_ok=True)
            write_durably(self.path / manifest, content)
        return True

    def fetch(self, files: Mapping[str, FileRecord], *, verify: bool) -> None:
        """Has files lie in the mirror, complete and verified; those that do already are not fetched again.

        Args:
            files: Path in the store to record.
            verify: Whether to compare also the checksums of files that are there; what differs is fetched again.

        Raises:
            CorruptFileError: An object is missing, truncated or altered.
            StorageError: The storage cannot be reached or denies it, or the mirror cannot be written.
        """
        missing = {name: record for name, record in files.items() if not self._has(name, record, verify=verify)}
        if not missing:
            return
        with self._changing():
            for name, record in missing.items():
                if not self._has(name, record, verify=verify):  # Another process may have fetched it meanwhile.
                    self._objects.fetch(name, self.path / name, record)

    def check(self, name: str, record: FileRecord, *, on_bytes: Callable[[int], None] = lambda num_bytes: None) -> None:
        """Reads an object of the bucket, whatever the mirror has, and compares it with its record.

        Raises:
            CorruptFileError: It is missing, truncated or altered.
            StorageError: The storage cannot be reached or denies it.
        """
        for block in self._objects.verified_blocks(name, record):
            on_bytes(len(block))

    def prepare(self) -> None:
        """Makes the mirror, and looks whether the bucket is there.

        Raises:
            StorageError: The storage cannot be reached, has no such bucket, or denies it; or the mirror cannot be made.
        """
        self._listed()
        self._make()

    def commit(self, temporary: Path, shared: Mapping[str, FileRecord], seal: Seal) -> str:
        """Makes a version of a temporary folder and of shared files: in the bucket, then in the mirror.

        Raises:
            StorageError: The storage cannot be reached, has no such bucket, or denies it; or too many others write.
        """
        for _ in range(_CLAIMS):
            names, claimed = self._listed()
            sequence = max([*map(sequence_of, names), *claimed], default=0) + 1
            manifest = seal(sequence)
            name = _version_name(sequence, manifest)
            self._put_missing(shared)
            if not self._objects.create(_claim(sequence), name.encode()):
                continue
            for file in manifest.files:
                self._objects.put(f"{VERSIONS}/{name}/{file}", temporary / file)
            self._put_missing(shared)  # What no version named may have been collected meanwhile.
            if self._is_ours(sequence, name):
                self._objects.put(f"{VERSIONS}/{name}/{MANIFEST_NAME}", temporary / MANIFEST_NAME)
                self._put_missing(shared)  # A collection that had not seen the manifest may have gone on until now.
                self._keep(temporary, name)
                return name
        raise StorageError(f"{self._objects.url}: {_CLAIMS} other writers were faster; try again when fewer write")

    def _is_ours(self, sequence: int, name: str) -> bool:
        """Says whether no other writer took a number. Where creation is not exclusive, another may have done so."""
        taken = [sequence_of(other) for other in self._listed()[0]]
        return self._objects.read(_claim(sequence)) == name.encode() and sequence not in taken

    def entries(self) -> list[Entry]:
        """Lists what lies in the bucket, sorted, finished or not; without the claims that still count."""
        entries: dict[str, Entry] = {}
        newest = max(map(sequence_of, self.names()), default=0)
        for folder in (SEGMENTS, VERSIONS):
            for name, found in self._objects.listing(folder).items():
                top, _, file = name.partition("/")
                claim = _CLAIM.fullmatch(top)
                if claim and int(claim[1]) >= newest:
                    continue
                path = f"{folder}/{top}"
                known = entries.get(path, Entry(path, 0, 0.0, is_complete=False))
                entries[path] = Entry(
                    path,
                    known.bytes + found.bytes,
                    max(known.last_change, found.last_change),
                    known.is_complete or file == MANIFEST_NAME,
                )
        return [entries[path] for path in sorted(entries)]

    def remove(self, path: str) -> None:
        """Removes an object, or all below a folder, its manifest first; and what the mirror has of it."""
        below = sorted(self._objects.listing(path), key=lambda name: name != MANIFEST_NAME)
        for name in below:
            self._objects.delete(f"{path}/{name}")
        if not below:
            self._objects.delete(path)
        LocalStorage(self.path).remove(path)

    def _listed(self) -> tuple[list[str], list[int]]:
        """Lists the versions that exist, and the sequence numbers that were taken, in one sweep."""
        names, claimed = [], []
        for path in self._objects.listing(VERSIONS):
            folder, _, file = path.partition("/")
            if is_version_name(folder) and file == MANIFEST_NAME:
                names.append(folder)
            elif claim := _CLAIM.fullmatch(path):
                claimed.append(int(claim[1]))
        return _sorted(names), claimed

    def _put_missing(self, shared: Mapping[str, FileRecord]) -> None:
        """Uploads shared files that the bucket does not have; their names are their contents' hashes."""
        present = {f"{SEGMENTS}/{name}": found.bytes for name, found in self._objects.listing(SEGMENTS).items()}
        for path, record in shared.items():
            if present.get(path) != record.bytes:
                check_content(self.path / path, record)  # Nobody would put it again, whatever it holds.
                self._objects.put(path, self.path / path)

    def _keep(self, temporary: Path, name: str) -> None:
        """Puts a version that was just written into the mirror, unless a reader was faster or the disk fails."""
        try:
            os.rename(temporary, self.path / VERSIONS / name)
            flush(self.path / VERSIONS)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)

    def _has(self, name: str, record: FileRecord, *, verify: bool) -> bool:
        path = self.path / name
        try:
            return path.stat().st_size == record.bytes and (not verify or file_record(path) == record)
        except OSError:
            return False

    def _make(self) -> None:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            hint = "set RANKHOUSE_CACHE to another folder"
            raise StorageError(f"{self.path}: cannot be made ({exc.strerror}); {hint}") from exc

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Lets one process at a time fetch, so that the others find what it fetched; keeps collections away."""
        self._make()
        with writing(self.path), fetching(self.path):
            yield


def _version_name(sequence: int, manifest: Manifest) -> str:
    return f"{sequence:06d}-{manifest.sha256[:8]}"


def _is_named(name: str, manifest: bytes) -> bool:
    """Says whether a manifest is the one that a version's name promises."""
    return name.endswith(hashlib.sha256(manifest).hexdigest()[:8])


def _claim(sequence: int) -> str:
    return f"{VERSIONS}/.{sequence:06d}"


def _sorted(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (sequence_of(name), name))


def _folder_name(url: str) -> str:
    """Names the mirror of a URL, readably and unmistakably."""
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', url)[:80]}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"
