"""Versions in a bucket, which a local folder mirrors.

Shared files are put first, then the version's name and number are claimed (bucket_claims.py), then its own files are
put, and its manifest last, by exclusive creation: what has no manifest does not exist.

The mirror holds what was opened or written here. Everything in it is named or vouched for by a hash, so it is never out
of date; it may be deleted at any time, and `rankhouse version gc` keeps it small as any other store: what goes from it
is fetched again when it is opened again, and what a process has mapped stays readable.
"""

import hashlib
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from rankhouse.embedding_cache.format.bucket_claims import BucketClaims, claim_path, claimed_name
from rankhouse.embedding_cache.format.errors import CorruptFileError, ManifestError, StorageError
from rankhouse.embedding_cache.format.files import (
    MANIFEST_NAME,
    FileRecord,
    check_content,
    file_record,
    flush,
    write_durably,
)
from rankhouse.embedding_cache.format.local_storage import LocalStorage
from rankhouse.embedding_cache.format.locks import fetching, writing
from rankhouse.embedding_cache.format.object_storage import ObjectEntry, ObjectStorage
from rankhouse.embedding_cache.format.shared_files import SEGMENTS
from rankhouse.embedding_cache.format.store_layout import ABANDONED, VERSIONS, Entry, LastLook, Seal, version_name
from rankhouse.embedding_cache.format.version_record import is_version_name

# A writer whose number another claimed at the same time claims the next, so this many others were as fast.
_CLAIMS = 100


class BucketStorage:
    """Versions in a bucket, mirrored in a local folder."""

    locks_writers = False

    def __init__(self, objects: ObjectStorage, path: Path) -> None:
        self.path = path
        self._objects = objects
        self._claims = BucketClaims(objects)

    def names(self) -> list[str]:
        """Lists the versions, oldest first.

        Raises:
            StorageError: The storage cannot be reached, has no such bucket, or denies it.
        """
        return self._claims.look().versions

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
        if content is None or content == ABANDONED:
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
        self._claims.look()
        self._make()

    def ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Reads parts of an object, from begin to end in bytes; they are not verified.

        Raises:
            CorruptFileError: The object is missing or shorter.
            StorageError: The storage cannot be reached or denies it.
        """
        return self._objects.ranges(name, ranges)

    def look(self, files: Mapping[str, FileRecord]) -> None:
        """Checks that objects are in the bucket, of the right size.

        Raises:
            CorruptFileError: One is missing, truncated or longer.
            StorageError: The storage cannot be reached or denies it.
        """
        present: dict[str, ObjectEntry] = {}
        for folder in sorted({name.rpartition("/")[0] for name in files}):
            present |= {f"{folder}/{name}": found for name, found in self._objects.listing(folder).items()}
        for name, record in files.items():
            if (found := present.get(name)) is None or found.bytes != record.bytes:
                state = "is missing" if found is None else f"has {found.bytes} bytes, expected {record.bytes}"
                raise CorruptFileError(
                    f"{self._objects.url}/{name}: {state}; restore the object from another copy of the store"
                )

    def commit(
        self, temporary: Path, shared: Mapping[str, FileRecord], seal: Seal, *, last_look: LastLook | None = None
    ) -> str:
        """Makes a version of a temporary folder and of shared files: in the bucket, then in the mirror.

        Raises:
            CorruptFileError: The bucket lost a shared file that the mirror does not have.
            StorageError: The storage cannot be reached, has no such bucket, or denies it; or too many others write.
            ContentError: The writer of a version of a lower number does not come to an end.
        """
        for attempt in range(_CLAIMS):
            manifest = seal(sequence := self._claims.look().next_sequence)
            name = version_name(sequence, manifest)
            self._put_missing(shared)  # The large part; once claimed, the rest takes little time.
            is_ready = False
            try:
                self._claims.put(name, shared)
                is_ready = self._put_all_but_manifest(name, temporary, list(manifest.files), shared, last_look)
            finally:
                if not is_ready:
                    self._claims.drop(name)
            if is_ready and self._create_manifest(name, temporary):
                self._claims.drop(name)
                self._keep(temporary, name)
                return name
            # Of several that claimed a number at the same time each may have stepped back.
            time.sleep(random.uniform(0, 0.02 * attempt))
        raise StorageError(f"{self._objects.url}: {_CLAIMS} other writers were faster; try again when fewer write")

    def _put_all_but_manifest(
        self,
        name: str,
        temporary: Path,
        files: Sequence[str],
        shared: Mapping[str, FileRecord],
        last_look: LastLook | None,
    ) -> bool:
        """Says whether a version that was claimed may appear; all but its manifest is in the bucket then."""
        if not self._claims.look().is_ahead(name):
            return False
        if last_look is not None:
            self._claims.wait_for_earlier(name)
            last_look()
        self._claims.wait_for_removals(shared)
        self._put_missing(shared)  # What nobody had claimed may have been removed until now, but no longer.
        for file in files:
            self._objects.put(f"{VERSIONS}/{name}/{file}", temporary / file)
        return self._claims.look().is_open(name)

    def _create_manifest(self, name: str, temporary: Path) -> bool:
        """Lets a version appear, unless it was given up. If this fails, its claim stays: it may appear yet."""
        return self._objects.create(f"{VERSIONS}/{name}/{MANIFEST_NAME}", (temporary / MANIFEST_NAME).read_bytes())

    def claims(self) -> dict[str, frozenset[str]]:
        """Returns which shared files writers rely on: path of the claim to paths of the files."""
        return self._claims.claimed()

    def announced(self, paths: Collection[str]) -> AbstractContextManager[Callable[[], bool]]:
        """Announces a removal of shared files; what the block is given says whether it may remove more."""
        return self._claims.announced(paths)

    def entries(self) -> list[Entry]:
        """Lists what lies in the bucket, sorted, finished or not; without what only says that a version was given up.

        Raises:
            StorageError: The storage cannot be reached, has no such bucket, or denies it.
        """
        entries: dict[str, Entry] = {}
        for folder in (SEGMENTS, VERSIONS):
            for name, found in self._objects.listing(folder).items():
                top, _, file = name.partition("/")
                if file == MANIFEST_NAME and found.bytes == len(ABANDONED):
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

    def abandon(self, path: str) -> None:
        """Removes what a writer that died left behind; should it live, it has to claim another number.

        If its version appeared meanwhile, that stays, and only a claim goes.
        """
        name = claimed_name(path)
        if name is None:
            self.remove(path)
            return
        if self._claims.abandon(name):
            for file in self._objects.listing(f"{VERSIONS}/{name}"):
                if file != MANIFEST_NAME:
                    self._objects.delete(f"{VERSIONS}/{name}/{file}")
        self._objects.delete(claim_path(name))

    def remove(self, path: str) -> None:
        """Removes an object, or all below a folder, its manifest first; and what the mirror has of it."""
        below = sorted(self._objects.listing(path), key=lambda name: name != MANIFEST_NAME)
        for name in below:
            self._objects.delete(f"{path}/{name}")
        if not below:
            self._objects.delete(path)
        LocalStorage(self.path).remove(path)

    def _put_missing(self, shared: Mapping[str, FileRecord]) -> None:
        """Uploads shared files that the bucket does not have; their names are their contents' hashes."""
        present = {f"{SEGMENTS}/{name}": found.bytes for name, found in self._objects.listing(SEGMENTS).items()}
        for path, record in shared.items():
            if present.get(path) != record.bytes:
                self._check_source(path, record)
                self._objects.put(path, self.path / path)

    def _check_source(self, path: str, record: FileRecord) -> None:
        """Checks what is to be uploaded: nobody would put it again, whatever it holds."""
        try:
            check_content(self.path / path, record)
        except CorruptFileError as exc:
            raise CorruptFileError(
                f"{self._objects.url}/{path}: is not in the bucket, or not any more, and cannot be put: {exc}"
            ) from exc

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


def mirror_of(url: str) -> str:
    """Names the mirror of a URL, readably and unmistakably."""
    return f"{re.sub(r'[^A-Za-z0-9.]+', '-', url)[:80]}-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


def _is_named(name: str, manifest: bytes) -> bool:
    """Says whether a manifest is the one that a version's name promises."""
    return name.endswith(hashlib.sha256(manifest).hexdigest()[:8])
