"""The library's row caches, in the host's memory and in a GPU's, behind one interface."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

import rankhouse.embedding_cache
from rankhouse.kernels.errors import STATUS_ERRORS, InternalError

_POINTER, _INT64 = ctypes.c_void_p, ctypes.c_int64


class Options(ctypes.Structure):
    """rh_row_cache_options."""

    _fields_: ClassVar = [("capacity_bytes", _INT64), ("row_bytes", _INT64), ("policy", ctypes.c_int32)]


class Counters(ctypes.Structure):
    """rh_row_cache_counters."""

    _fields_: ClassVar = [
        (name, _INT64)
        for name in ("hits", "misses", "inserted", "evicted", "num_rows", "capacity_rows", "ways", "bytes")
    ]


FUNCTIONS: dict[str, list[Any]] = {
    "rh_row_cache_create": [ctypes.POINTER(Options), ctypes.POINTER(_POINTER)],
    "rh_row_cache_destroy": [_POINTER],
    "rh_row_cache_find": [_POINTER, _POINTER, _INT64, _POINTER, _POINTER, ctypes.POINTER(_INT64)],
    "rh_row_cache_insert": [_POINTER, _POINTER, _INT64, _POINTER],
    "rh_row_cache_count": [_POINTER, ctypes.POINTER(Counters)],
}


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, arguments in FUNCTIONS.items():
        getattr(library, name).argtypes = arguments
        getattr(library, name).restype = None if "destroy" in name else ctypes.c_int
    library.rh_last_error.restype = ctypes.c_char_p
    return library


@cache
def load() -> ctypes.CDLL:
    folders = [Path(folder) for folder in rankhouse.embedding_cache.__path__]
    found = [path for folder in folders if (path := folder / "librankhouse_engine.so").is_file()]
    return declare(ctypes.CDLL(str(found[0])))


class Cache(Protocol):
    """What tests do with a cache. A call that fails raises its error."""

    row_bytes: int

    def find(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]: ...
    def insert(self, keys: NDArray[np.uint64], rows: NDArray[np.uint8]) -> None: ...
    def counters(self) -> Counters: ...


class HostCache:
    """rh_row_cache. It is destroyed with this object."""

    def __init__(self, capacity_bytes: int, row_bytes: int, policy: int = 0) -> None:
        self.row_bytes, self._library, self._cache = row_bytes, load(), _POINTER()
        self.call("rh_row_cache_create", Options(capacity_bytes, row_bytes, policy), self._cache)

    def __del__(self) -> None:
        self._library.rh_row_cache_destroy(self._cache)

    def call(self, function: str, *arguments: Any) -> None:
        status = getattr(self._library, function)(*arguments)
        if status != 0:
            raise STATUS_ERRORS.get(status, InternalError)(self._library.rh_last_error().decode())

    def find(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
        rows = np.full((len(keys), self.row_bytes), 0xAB, np.uint8)
        missing, num_missing = np.full(len(keys), -7, np.int32), _INT64()
        keys = np.ascontiguousarray(keys, np.uint64)
        pointers = (rows.ctypes.data, missing.ctypes.data)
        self.call("rh_row_cache_find", self._cache, keys.ctypes.data, len(keys), *pointers, num_missing)
        return rows, missing[: num_missing.value]

    def insert(self, keys: NDArray[np.uint64], rows: NDArray[np.uint8]) -> None:
        keys, rows = np.ascontiguousarray(keys, np.uint64), np.ascontiguousarray(rows)
        assert rows.shape == (len(keys), self.row_bytes)
        self.call("rh_row_cache_insert", self._cache, keys.ctypes.data, len(keys), rows.ctypes.data)

    def counters(self) -> Counters:
        counters = Counters()
        self.call("rh_row_cache_count", self._cache, counters)
        return counters


def row_of(keys: NDArray[np.uint64], row_bytes: int, generation: int = 0) -> NDArray[np.uint8]:
    """Rows [n, row_bytes] that tell keys and generations apart."""
    words = -(-row_bytes // 8)
    mixed = keys.astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15) + np.arange(words, dtype=np.uint64)
    mixed += np.uint64(generation * 1_000_003)
    return np.ascontiguousarray(mixed).view(np.uint8)[:, :row_bytes]
