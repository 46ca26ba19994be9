"""The client of a Redis Cluster, where versions may lie: the engine's own, by its C interface (rankhouse/redis.h)."""

import ctypes
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache import library
from rankhouse.embedding_cache.errors import OptionError
from rankhouse.kernels import library as kernels

_INVALID_ARGUMENT = 1
_POINTER, _INT64, _TEXT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p
_HANDLE, _SIZE = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64)
_PROGRESS = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)


class _Push(ctypes.Structure):
    """rh_redis_push."""

    _fields_: ClassVar = [
        *(("expires_at_ms", _INT64), ("patience_ms", _INT64)),
        *(("progress", _PROGRESS), ("context", _POINTER)),
    ]


class _Layout(ctypes.Structure):
    """rh_redis_layout."""

    _fields_: ClassVar = [
        ("sha256", _TEXT),
        *((name, _INT64) for name in ("bytes", "rows_begin", "row_bytes", "num_rows")),
    ]


_LAYOUT, _PUSH = ctypes.POINTER(_Layout), ctypes.POINTER(_Push)

# The arguments of every function, in the order of the header.
_FUNCTIONS: dict[str, list[Any]] = {
    "rh_redis_create": [_TEXT, _HANDLE],
    "rh_redis_destroy": [_POINTER],
    "rh_redis_counters": [_POINTER, _TEXT, _INT64, _SIZE],
    "rh_redis_push_file": [_POINTER, _TEXT, _LAYOUT, _PUSH, _SIZE],
    "rh_redis_push_version": [_POINTER, _TEXT, _TEXT, _PUSH],
    "rh_redis_file_open": [_POINTER, _TEXT, _INT64, _HANDLE],
    "rh_redis_file_close": [_POINTER],
    "rh_redis_file_read": [_POINTER, _POINTER, _INT64, _POINTER, _INT64],
    "rh_redis_file_around": [_POINTER, _POINTER, _INT64, _INT64],
}
_NO_STATUS = ("rh_redis_destroy", "rh_redis_file_close")


@cache
def _load() -> ctypes.CDLL:
    loaded = library.load()
    kernels.require(loaded, _FUNCTIONS)
    for name, arguments in _FUNCTIONS.items():
        function = getattr(loaded, name)
        function.argtypes = arguments
        function.restype = None if name in _NO_STATUS else ctypes.c_int
    return loaded


def _check(status: int) -> None:
    if status == _INVALID_ARGUMENT:
        raise OptionError(kernels.load().rh_last_error().decode())
    library.check(status)


def read_options(path: Path) -> dict[str, str | int]:
    """Reads a client's options from a file of JSON.

    Raises:
        OptionError: It cannot be read, or is no JSON object.
    """
    try:
        options = json.loads(path.read_bytes())
    except (OSError, ValueError) as exc:
        raise OptionError(f"{path}: is no file of JSON with the client's options ({exc})") from exc
    if not isinstance(options, dict):
        raise OptionError(f"{path}: expected a JSON object of the client's options")
    return options


class StoredFile:
    """A file that was pushed. Any thread may read it, while its client is open."""

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle

    def read(self, rows: npt.NDArray[np.int64], *, row_bytes: int, deadline_ms: int = 0) -> npt.NDArray[np.uint8]:
        """Reads rows.

        Args:
            rows: int64 [n], numbers in the file; sorted ones are read fastest.
            row_bytes: The bytes of a row.
            deadline_ms: When it must be done; 0 is the client's `deadline_ms`.

        Returns:
            uint8 [n, row_bytes], as the rows lie in the file.

        Raises:
            TierError: A row is not there, or did not come by the deadline.
            OptionError: The file has no such row.
        """
        rows = np.ascontiguousarray(rows, np.int64)
        found = np.empty((len(rows), row_bytes), np.uint8)
        _check(_load().rh_redis_file_read(self._handle, rows.ctypes.data, len(rows), found.ctypes.data, deadline_ms))
        return found

    def read_around(self, num_bytes: int, *, deadline_ms: int = 0) -> bytes:
        """Reads what the file has before and behind its rows, which is `num_bytes` in all.

        Raises:
            TierError: It is not there, or did not come by the deadline.
        """
        found = ctypes.create_string_buffer(num_bytes)
        _check(_load().rh_redis_file_around(self._handle, found, num_bytes, deadline_ms))
        return found.raw

    def close(self) -> None:
        """Forgets the file; it may be closed again."""
        _load().rh_redis_file_close(self._handle)
        self._handle = ctypes.c_void_p()


class RedisClient:
    """A Redis Cluster, or one plain server, with its connections. Any thread may use it until it is closed."""

    def __init__(self, url: str | int, **options: str | int) -> None:
        """Connects to nothing yet.

        Args:
            url: `redis://[user@]host[:port][,host[:port]...]`, or `rediss://` for TLS: any nodes of the cluster.
            options: As in rankhouse/redis.h: user, password_env or password_file, ca_file, certificate_file and
                key_file, server_name, deadline_ms, hedge_ms, breaker_failures, breaker_ms, connections, batch.

        Raises:
            OptionError: There is no such option, it cannot have this value, or a file or variable that it names is
                not there.
        """
        self._handle = ctypes.c_void_p()
        _check(_load().rh_redis_create(json.dumps({"url": url, **options}).encode(), ctypes.byref(self._handle)))

    def push_file(
        self,
        path: Path,
        *,
        sha256: str,
        rows: tuple[int, int, int],
        expires_at_ms: int = 0,
        patience_ms: int = 0,
        on_bytes: Callable[[int], None] = lambda _: None,
    ) -> int:
        """Sends what Redis lacks of a file, reads all of it back and compares it.

        Args:
            path: The file, whose content was verified.
            sha256: Its SHA-256.
            rows: Where its rows begin, the bytes of one, and how many there are.
            expires_at_ms: When its keys expire, in milliseconds since 1970; 0 is never. Keys that stay longer, stay.
            patience_ms: How long a step of some MiB may take; 0 is half a minute.
            on_bytes: Called with the bytes that have been done since the last call; what it raises ends the push.

        Returns:
            The bytes sent.

        Raises:
            TierError: Redis cannot be reached, is too slow, or does not hold what it was given.
            CorruptFileError: The file cannot be read.
        """
        stopped: list[BaseException] = []

        def progress(_: Any, num_bytes: int) -> int:
            try:
                on_bytes(num_bytes)
            except BaseException as exc:
                stopped.append(exc)
            return len(stopped)

        layout = _Layout(sha256.encode(), path.stat().st_size, *rows)
        push, num_sent = _Push(expires_at_ms, patience_ms, _PROGRESS(progress), None), ctypes.c_int64()
        status = _load().rh_redis_push_file(
            self._handle, str(path).encode(), ctypes.byref(layout), ctypes.byref(push), ctypes.byref(num_sent)
        )
        if stopped:
            raise stopped[0]
        _check(status)
        return num_sent.value

    def push_version(self, name: str, document: str, *, expires_at_ms: int = 0, patience_ms: int = 0) -> None:
        """Makes a version exist whose files have been pushed, when the replicas have them too.

        Args:
            name: Its name.
            document: What its key is to hold.
            expires_at_ms: As in `push_file`.
            patience_ms: As in `push_file`.

        Raises:
            TierError: Redis cannot be reached, replicas lag behind, or the key holds something else.
        """
        push = _Push(expires_at_ms, patience_ms, _PROGRESS(), None)
        _check(_load().rh_redis_push_version(self._handle, name.encode(), document.encode(), ctypes.byref(push)))

    def open_file(self, sha256: str, *, deadline_ms: int = 0) -> StoredFile:
        """Opens a pushed file.

        Raises:
            TierError: It is not there, or its description did not come by the deadline.
        """
        handle = ctypes.c_void_p()
        _check(_load().rh_redis_file_open(self._handle, sha256.encode(), deadline_ms, ctypes.byref(handle)))
        return StoredFile(handle)

    def counters(self) -> dict[str, int]:
        """What it did so far: commands, hedges, moved, asked, failures, refreshes, breakers_opened."""
        size, text = ctypes.c_int64(), ctypes.create_string_buffer(1024)
        _check(_load().rh_redis_counters(self._handle, text, len(text), ctypes.byref(size)))
        counters: dict[str, int] = json.loads(text.value)
        return counters

    def close(self) -> None:
        """Closes its connections; it may be closed again. No call may be in flight."""
        _load().rh_redis_destroy(self._handle)
        self._handle = ctypes.c_void_p()

    def __enter__(self) -> "RedisClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
