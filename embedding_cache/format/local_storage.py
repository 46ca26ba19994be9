"""Versions in a local folder: all files are flushed, then the version's folder appears by one rename, under a lock."""

import math
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG

from rankhouse.embedding_cache.format.errors import StorageError, VersionNotFoundError
from rankhouse.embedding_cache.format.files import MANIFEST_NAME, FileRecord, check_content, flush
from rankhouse.embedding_cache.format.locks import committing
from rankhouse.embedding_cache.format.shared_files import SEGMENTS, flush_names
from rankhouse.embedding_cache.format.store_layout import (
    ABANDONED,
    REMOVED,
    VERSIONS,
    Entry,
    LastLook,
    Seal,
    oldest_first,
    version_name,
)
from rankhouse.embedding_cache.format.version_record import is_version_name, sequence_of


class LocalStorage:
    """Versions in a local folder."""

    locks_writers = True
    ranges = None

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
        return oldest_first(entry.name for entry in entries if is_version_name(entry.name) and _is_complete(entry))

    def has(self, name: str) -> bool:
        """Says whether a version exists."""
        return is_version_name(name) and _is_complete(self.path / VERSIONS / name)

    def fetch(self, files: Mapping[str, FileRecord], *, verify: bool) -> None:
        """Checks that files are there, complete, and by option that their checksums are right.

        Raises:
            CorruptFileError: One is missing, truncated or altered.
        """
        for name, record in files.items():
            check_content(self.path / name, record, verify=verify)

    def look(self, files: Mapping[str, FileRecord]) -> None:
        """Checks that files are there, complete.

        Raises:
            CorruptFileError: One is missing or truncated.
        """
        self.fetch(files, verify=False)

    def check(self, name: str, record: FileRecord, *, on_bytes: Callable[[int], None] = lambda num_bytes: None) -> None:
        """Reads a file and compares it with its record.

        Raises:
            CorruptFileError: It is missing, truncated or altered.
        """
        check_content(self.path / name, record, on_bytes=on_bytes)

    def prepare(self) -> None:
        """Makes the folder.

        Raises:
            StorageError: It cannot be made.
        """
        if self.path.is_dir():
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            flush(self.path.absolute().parent)
        except OSError as exc:
            raise StorageError(
                f"{self.path}: cannot be made ({exc.strerror}); correct the permissions, or give the store another "
                "folder"
            ) from exc

    def commit(
        self, temporary: Path, shared: Mapping[str, FileRecord], seal: Seal, *, last_look: LastLook | None = None
    ) -> str:
        """Makes a version of a temporary folder, by one rename; the lock makes its number its own.

        Raises:
            CorruptFileError: A shared file is missing or truncated.
            StorageError: The version exists, but a power failure may undo that.
        """
        self.look(shared)
        flush_names(self.path)
        with committing(self.path):
            sequence = max(map(sequence_of, self.names()), default=0) + 1
            name = version_name(sequence, seal(sequence))
            if last_look is not None:
                last_look()
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

    def claims(self) -> dict[str, frozenset[str]]:
        """Returns nothing: writers hold a lock."""
        return {}

    @contextmanager
    def announced(self, paths: Collection[str]) -> Iterator[Callable[[], bool]]:
        """Does nothing: whoever removes files holds a lock."""
        yield lambda: True

    def abandon(self, path: str) -> None:
        """Removes what a writer that died left behind."""
        self.remove(path)

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
            _is_complete(path),
        )


def _is_complete(folder: Path) -> bool:
    """Says whether a folder has a manifest; what was given up in a bucket has none, also in a copy on a disk."""
    manifest = folder / MANIFEST_NAME
    try:
        found = manifest.stat()
        is_abandoned = found.st_size == len(ABANDONED) and manifest.read_bytes() == ABANDONED
    except (FileNotFoundError, NotADirectoryError):
        return False
    return S_ISREG(found.st_mode) and not is_abandoned
