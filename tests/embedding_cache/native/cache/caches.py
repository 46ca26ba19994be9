"""The library's row caches, in the host's memory and in a GPU's, behind one interface."""

import ctypes
import os
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

import rankhouse.embedding_cache
from rankhouse.kernels import library
from rankhouse.kernels.errors import STATUS_ERRORS, InternalError
from tests.kernels import device_memory
from tests.kernels.device_memory import Kernels

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


READ_ROWS = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER, _INT64, _POINTER)


class Fetch(ctypes.Structure):
    """rh_row_fetch."""

    _fields_: ClassVar = [
        *(("keys", _POINTER), ("n", _INT64), ("rows", _POINTER), ("read", READ_ROWS), ("context", _POINTER)),
        *(("host_memory", _POINTER), ("host_bytes", _INT64), ("is_complete", _POINTER)),
    ]


FUNCTIONS: dict[str, list[Any]] = {
    "rh_row_cache_create": [ctypes.POINTER(Options), ctypes.POINTER(_POINTER)],
    "rh_row_cache_destroy": [_POINTER],
    "rh_row_cache_find": [_POINTER, _POINTER, _INT64, _POINTER, _POINTER, ctypes.POINTER(_INT64)],
    "rh_row_cache_insert": [_POINTER, _POINTER, _INT64, _POINTER],
    "rh_row_cache_count": [_POINTER, ctypes.POINTER(Counters)],
    "rh_row_cache_create_cuda": [ctypes.POINTER(Options), ctypes.POINTER(_POINTER)],
    "rh_row_cache_destroy_cuda": [_POINTER],
    "rh_row_cache_find_workspace_cuda": [_INT64, ctypes.POINTER(_INT64)],
    "rh_row_cache_find_cuda": [_POINTER, _POINTER, _INT64, *[_POINTER] * 4, _INT64, _POINTER],
    "rh_row_cache_insert_workspace_cuda": [_INT64, ctypes.POINTER(_INT64)],
    "rh_row_cache_insert_cuda": [_POINTER, _POINTER, _INT64, _POINTER, _POINTER, _INT64, _POINTER],
    "rh_row_cache_count_cuda": [_POINTER, ctypes.POINTER(Counters), _POINTER],
    "rh_row_cache_fetch_workspace_cuda": [_POINTER, _INT64, ctypes.POINTER(_INT64), ctypes.POINTER(_INT64)],
    "rh_row_cache_fetch_cuda": [_POINTER, ctypes.POINTER(Fetch), _POINTER, _INT64, _POINTER],
}


def declare(functions: ctypes.CDLL) -> ctypes.CDLL:
    """Tells ctypes the arguments and results of the functions that a library has (an emulated one lacks the host's)."""
    for name, arguments in FUNCTIONS.items():
        if hasattr(functions, name):
            getattr(functions, name).argtypes = arguments
            getattr(functions, name).restype = None if "destroy" in name else ctypes.c_int
    functions.rh_last_error.restype = ctypes.c_char_p
    return functions


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


@cache
def find_cuda() -> Kernels | None:
    """The CUDA functions of caches and kernels in one, or None where there is no GPU or the build has none."""
    kernels = device_memory.find_cuda()
    if kernels is None:
        return None
    emulated = bool(os.environ.get(device_memory.EMULATED_LIBRARY))
    functions = kernels.functions if emulated else load()
    library.declare(functions)
    return Kernels(declare(functions), kernels.memory, is_cuda=True)


class DeviceCache:
    """rh_device_row_cache. It is destroyed with this object; what its calls take is freed with the process.

    Args:
        cuda: Where it lives.
        capacity_bytes, row_bytes, policy: Its options.
        misaligned: By how many bytes rows lie away from a good address.
    """

    def __init__(
        self, cuda: Kernels, capacity_bytes: int, row_bytes: int, policy: int = 0, *, misaligned: int = 0
    ) -> None:
        self.row_bytes, self.handle, self._cuda, self._misaligned = row_bytes, _POINTER(), cuda, misaligned
        cuda.call("rh_row_cache_create_cuda", Options(capacity_bytes, row_bytes, policy), self.handle)

    def __del__(self) -> None:
        self._cuda.functions.rh_row_cache_destroy_cuda(self.handle)

    def find(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
        memory, n = self._cuda.memory, len(keys)
        rows = memory.allocate(n * self.row_bytes + self._misaligned) + self._misaligned
        missing, num_missing = memory.allocate(4 * n), memory.allocate(8)
        workspace = self._cuda.workspace("rh_row_cache_find_workspace_cuda", n)
        arguments = (memory.put(keys), n, rows, missing, num_missing, *workspace, None)
        self._cuda.call("rh_row_cache_find_cuda", self.handle, *arguments)
        count = int(memory.get(num_missing, (1,), np.int64)[0])
        return memory.get(rows, (n, self.row_bytes), np.uint8), memory.get(missing, (count,), np.int32)

    def insert(self, keys: NDArray[np.uint64], rows: NDArray[np.uint8]) -> None:
        memory, n = self._cuda.memory, len(keys)
        shifted = np.concatenate([np.zeros(self._misaligned, np.uint8), rows.reshape(-1)])
        at = memory.put(shifted) + self._misaligned
        workspace = self._cuda.workspace("rh_row_cache_insert_workspace_cuda", n)
        self._cuda.call("rh_row_cache_insert_cuda", self.handle, memory.put(keys), n, at, *workspace, None)

    def counters(self) -> Counters:
        counters = Counters()
        self._cuda.call("rh_row_cache_count_cuda", self.handle, counters, None)
        return counters


def row_of(keys: NDArray[np.uint64], row_bytes: int, generation: int = 0) -> NDArray[np.uint8]:
    """Rows [n, row_bytes] that tell keys and generations apart."""
    words = -(-row_bytes // 8)
    mixed = keys.astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15) + np.arange(words, dtype=np.uint64)
    mixed += np.uint64(generation * 1_000_003)
    return np.ascontiguousarray(mixed.view(np.uint8)[:, :row_bytes])
