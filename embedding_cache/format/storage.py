"""Where a store of versions lies: a local folder, or a bucket that a local folder mirrors.

Readers and writers only ever see local files, in the same layout. What differs is how a version comes to exist: by a
rename under a lock (local_storage.py), or by its manifest after a claim (bucket_storage.py). A writer that dies at any
point leaves the old state or the new one, and what it left is named by nothing.
"""

import os
import re
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from rankhouse.embedding_cache.format.bucket_storage import BucketStorage, mirror_of
from rankhouse.embedding_cache.format.errors import StorageError
from rankhouse.embedding_cache.format.files import FileRecord
from rankhouse.embedding_cache.format.local_storage import LocalStorage
from rankhouse.embedding_cache.format.object_storage import ObjectStorage
from rankhouse.embedding_cache.format.store_layout import Entry, LastLook, Ranges, Seal

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)", re.DOTALL)


class Storage(Protocol):
    """A place for versions. Any thread and any process may use it.

    Attributes:
        path: The local folder, in which readers find the files.
        locks_writers: Whether `collecting` keeps writers on other machines away, too.
        ranges: Reads parts of files that are not in the local folder; None where all files are.
    """

    path: Path
    locks_writers: bool

    @property
    def ranges(self) -> Ranges | None: ...

    def names(self) -> list[str]:
        """Lists the versions that exist, oldest first."""

    def has(self, name: str) -> bool:
        """Says whether a version exists; its manifest lies in the local folder then."""

    def fetch(self, files: Mapping[str, FileRecord], *, verify: bool) -> None:
        """Has files lie in the local folder, sound."""

    def look(self, files: Mapping[str, FileRecord]) -> None:
        """Checks that files are where they are kept, of the right size."""

    def check(self, name: str, record: FileRecord, *, on_bytes: Callable[[int], None]) -> None:
        """Reads a file where it is kept, and compares it with its record."""

    def prepare(self) -> None:
        """Has the place exist, before the work of writing to it begins."""

    def commit(
        self, temporary: Path, shared: Mapping[str, FileRecord], seal: Seal, *, last_look: LastLook | None = None
    ) -> str:
        """Makes a version of a temporary folder of `versions/` and of shared files, and returns its name."""

    def entries(self) -> list[Entry]:
        """Lists what lies in the store, sorted, finished or not."""

    def claims(self) -> dict[str, frozenset[str]]:
        """Returns which shared files writers without a lock rely on: path of the claim to paths of the files."""

    def announced(self, paths: Collection[str]) -> AbstractContextManager[Callable[[], bool]]:
        """Announces a removal of shared files: whoever claims one afterwards waits for it, as long as it says True."""

    def abandon(self, path: str) -> None:
        """Removes what a writer that died left behind; should it live, its version cannot appear any more."""

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
    return BucketStorage(objects, Path(cache or default_cache()) / mirror_of(objects.url))


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
