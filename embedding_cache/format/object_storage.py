"""Object storage: named bytes below a URL, through fsspec. The only module that knows it.

What a storage has to hold: an object appears whole or not at all, and whoever reads or lists after a write sees it.
Amazon S3, Google Cloud Storage and Azure Blob Storage do, and servers with the same interfaces. There is no rename and
no lock, only `create`.
"""

import errno
import hashlib
import math
import os
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from rankhouse.embedding_cache.format.errors import CorruptFileError, FormatError, StorageError
from rankhouse.embedding_cache.format.files import FileRecord, flush

# A client tries again by itself. These bound it: four attempts of a call, three readings of an answer that broke off.
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {
        "config_kwargs": {
            "connect_timeout": 10,
            "read_timeout": 30,
            "retries": {"mode": "standard", "total_max_attempts": 4},
            # Some servers send the whole object's checksum with a part of it; all that is fetched is verified anyway.
            "response_checksum_validation": "when_required",
        },
        "max_concurrency": 4,
    }
}
_READINGS = 3

_BLOCK_BYTES = 8 << 20
_BLOCKS_AHEAD = 4


@dataclass(frozen=True)
class ObjectEntry:
    """What a listing says of an object.

    Attributes:
        bytes: Its size.
        last_change: When it was written, in seconds since 1970; infinite where the storage does not say.
    """

    bytes: int
    last_change: float


class ObjectStorage:
    """The objects below a URL. Any thread may use it; after a fork, a process needs one of its own."""

    def __init__(self, url: str) -> None:
        """Names a place; nothing is read or written yet.

        Args:
            url: For example `s3://bucket/prefix`. Credentials, endpoint and the like come from where the storage's
                own client looks for them (S3: the environment, `AWS_ENDPOINT_URL` among it, and `~/.aws`) or from
                fsspec's configuration.
        """
        self.url = url.rstrip("/")

    def listing(self, folder: str) -> dict[str, ObjectEntry]:
        """Lists all objects below a folder, by their names relative to it, sorted.

        Raises:
            StorageError: The storage cannot be reached, has no such bucket, or denies it.
        """
        base = self._path(folder) + "/"
        with self._translated(folder):
            found = self._files.find(base, detail=True)
            return {
                path[len(base) :]: ObjectEntry(int(entry["size"]), _last_change(entry))
                for path, entry in sorted(found.items())
                if path.startswith(base)
            }

    def size(self, name: str) -> int | None:
        """Returns an object's size in bytes; None if there is no such object.

        Raises:
            StorageError: The storage cannot be reached, has no such bucket, or denies it.
        """
        with self._translated(name):
            try:
                return int(self._files.info(self._path(name))["size"])
            except FileNotFoundError as exc:
                _check_bucket(exc)
                return None

    def read(self, name: str) -> bytes | None:
        """Returns a small object's bytes; None if there is no such object.

        Raises:
            StorageError: The storage cannot be reached, has no such bucket, or denies it.
        """
        with self._translated(name):
            try:
                return bytes(self._files.cat_file(self._path(name)))
            except FileNotFoundError as exc:
                _check_bucket(exc)
                return None

    def put(self, name: str, source: Path) -> None:
        """Uploads a file; an object of this name is replaced.

        Raises:
            StorageError: The storage cannot be reached, has no such bucket, denies it, or kept another size.
        """
        expected = source.stat().st_size
        with self._translated(name):
            self._files.put_file(str(source), self._path(name))
        if (found := self.size(name)) != expected:
            raise StorageError(
                f"{self.url}/{name}: was truncated on its way: {expected} bytes were sent, the storage has "
                f"{found if found is not None else 'nothing'}; write the version again"
            )

    def write(self, name: str, content: bytes) -> None:
        """Writes a small object; one of this name is replaced.

        Raises:
            StorageError: The storage cannot be reached, has no such bucket, or denies it.
        """
        with self._translated(name):
            self._files.pipe_file(self._path(name), content)

    def create(self, name: str, content: bytes) -> bool:
        """Writes a small object unless there is one of this name.

        Exactly one of several writers succeeds where the storage creates exclusively (S3: `If-None-Match: *`). Where it
        ignores that, the last of several at the same time replaces the others' content: read it before relying on it.

        Returns:
            Whether the object has this content.

        Raises:
            StorageError: The storage cannot be reached, has no such bucket, or denies it.
        """
        with self._translated(name):
            try:
                self._files.pipe_file(self._path(name), content, mode="create")
            except OSError as exc:
                # s3fs names it so only where a server also says which condition failed, as Amazon's do.
                is_there = isinstance(exc, FileExistsError) or exc.errno == errno.EINVAL
                if not is_there or (found := self.read(name)) is None:
                    raise
                # It may be ours: the answer to an attempt that succeeded can be lost.
                return found == content
        return True

    def delete(self, name: str) -> None:
        """Deletes an object; one that is not there is no error.

        Raises:
            StorageError: The storage cannot be reached, has no such bucket, or denies it.
        """
        with self._translated(name):
            try:
                self._files.rm_file(self._path(name))
            except FileNotFoundError as exc:
                _check_bucket(exc)

    def fetch(self, name: str, target: Path, record: FileRecord) -> None:
        """Downloads an object into a file, which appears complete and verified or not at all.

        Raises:
            CorruptFileError: The object is missing, or has another size or content than the record says.
            StorageError: The storage cannot be reached, or the file cannot be written.
        """
        temporary = target.with_name(f".tmp-{uuid.uuid4().hex}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(temporary, "wb") as file:
                for block in self.verified_blocks(name, record):
                    file.write(block)
            flush(temporary)
            os.replace(temporary, target)
            flush(target.parent)
        except OSError as exc:
            raise StorageError(
                f"{target}: cannot be written ({exc.strerror}); free space, or set RANKHOUSE_CACHE to another folder"
            ) from exc
        finally:
            with suppress(OSError):
                temporary.unlink()

    def verified_blocks(self, name: str, record: FileRecord) -> Iterator[bytes]:
        """Yields an object's bytes in constant memory; whether they are right is known after the last.

        Raises:
            CorruptFileError: The object is missing, or has another size or content than the record says.
            StorageError: The storage cannot be reached, or denies it.
        """
        size = self.size(name)
        if size is None:
            raise CorruptFileError(f"{self.url}/{name}: is missing; restore the object from another copy of the store")
        if size != record.bytes:
            state = "truncated" if size < record.bytes else "altered"
            raise CorruptFileError(
                f"{self.url}/{name}: was {state}: expected {record.bytes} bytes, found {size}; "
                "restore the object from another copy of the store"
            )
        digest = hashlib.sha256()
        for block in self._blocks(name, size):
            digest.update(block)
            yield block
        if digest.hexdigest() != record.sha256:
            raise CorruptFileError(
                f"{self.url}/{name}: its content was altered: expected SHA-256 {record.sha256}, found "
                f"{digest.hexdigest()}; restore the object from another copy of the store"
            )

    def ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Reads parts of an object, from begin to end in bytes, several at a time; they are not verified.

        Raises:
            CorruptFileError: The object is missing or ends before.
            StorageError: The storage cannot be reached, has no such bucket, or denies it.
        """
        begins, ends = [begin for begin, _ in ranges], [end for _, end in ranges]
        with self._translated(name):
            try:
                parts = self._files.cat_ranges([self._path(name)] * len(ranges), begins, ends, on_error="raise")
            except FileNotFoundError as exc:
                _check_bucket(exc)
                raise CorruptFileError(f"{self.url}/{name}: is missing; verify the store") from exc
        if [len(part) for part in parts] != [end - begin for begin, end in ranges]:
            raise CorruptFileError(f"{self.url}/{name}: ends before what is to be read of it; verify the store")
        return [bytes(part) for part in parts]

    def _blocks(self, name: str, size: int) -> Iterator[bytes]:
        """Reads an object in order, some blocks ahead: one connection alone does not fill a fast network."""
        pending: deque[Future[bytes]] = deque()
        with ThreadPoolExecutor(_BLOCKS_AHEAD) as pool:
            try:
                for begin in range(0, size, _BLOCK_BYTES):
                    pending.append(pool.submit(self._range, name, begin, min(begin + _BLOCK_BYTES, size)))
                    if len(pending) > _BLOCKS_AHEAD:
                        yield pending.popleft().result()
                while pending:
                    yield pending.popleft().result()
            finally:
                for future in pending:
                    future.cancel()

    def _range(self, name: str, begin: int, end: int) -> bytes:
        with self._translated(name):
            return bytes(self._files.cat_file(self._path(name), start=begin, end=end))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    @property
    def _files(self) -> Any:
        return self._opened[0]

    @property
    def _root(self) -> str:
        return self._opened[1]

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        try:
            import fsspec
        except ImportError as exc:
            raise StorageError(f"{self.url}: needs the package fsspec; pip install 'rankhouse[s3]'") from exc
        protocol = "s3" if self.url.startswith("s3a:") else self.url.split("://")[0]
        options = {**_OPTIONS.get(protocol, {}), **fsspec.config.conf.get(protocol, {})}
        try:
            files, root = fsspec.url_to_fs(self.url, use_listings_cache=False, **options)
        except ImportError as exc:
            hint = "pip install 'rankhouse[s3]'" if protocol == "s3" else "install it"
            raise StorageError(f"{self.url}: its storage needs a package that is not there: {exc}; {hint}") from exc
        except ValueError as exc:
            raise StorageError(f"{self.url}: is not a storage's URL: {exc}; for example s3://bucket/prefix") from exc
        if protocol == "s3":
            files.retries = _READINGS
        return files, root.rstrip("/")

    @contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        """Makes one error of the many that clients of storages raise, naming the object."""
        try:
            yield
        except FormatError:
            raise
        except Exception as exc:
            raise StorageError(f"{self.url}/{name}: {_reason(exc)}") from exc


def _last_change(entry: Mapping[str, Any]) -> float:
    """Each storage's client gives the time under a name of its own."""
    for key in ("LastModified", "last_modified", "updated", "mtime", "created"):
        value = entry.get(key)
        if isinstance(value, str):
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, float):
            return value
    return math.inf


def _check_bucket(exc: FileNotFoundError) -> None:
    """Lets pass that an object is not there, but not that its bucket is not."""
    if "bucket" in str(exc).lower().split():
        raise exc


def _reason(exc: Exception) -> str:
    """Says what went wrong and what to do. Clients' own errors are told by name: their packages may not be there."""
    kind, text = type(exc).__name__, str(exc) or type(exc).__name__
    if "Credential" in kind or "Token" in kind:
        return f"there are no credentials ({text}); for S3, set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if isinstance(exc, PermissionError):
        return f"access was denied ({text}); check the credentials and what they may do with this name"
    if isinstance(exc, FileNotFoundError):
        return f"there is no such bucket ({text}); create it or correct the URL"
    return f"the storage did not answer as it should, also after further attempts ({kind}: {text}); try again"
