"""The compiled library of this package: finds it, loads it once, and turns its statuses into errors."""

import ctypes
from functools import cache
from typing import Any, ClassVar

import rankhouse.embedding_cache
from rankhouse.embedding_cache.errors import BatchError, TierError
from rankhouse.embedding_cache.format.errors import CorruptFileError, ManifestError, VersionNotFoundError
from rankhouse.kernels import library as kernels
from rankhouse.kernels.errors import LibraryError

# RH_ENGINE_ABI_VERSION of the header that the declarations below were written from.
ABI_VERSION = 4

_POINTER, _INT32, _INT64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64


class Batch(ctypes.Structure):
    """rh_engine_batch."""

    _fields_: ClassVar = [
        *((name, _POINTER) for name in ("ids", "offsets", "lengths", "hotness", "weights", "combiners")),
        *((name, _INT64) for name in ("num_ids", "batch_size")),
        *((name, _INT32) for name in ("id_type", "memory")),
        ("started_ns", _INT64),
    ]


class Answer(ctypes.Structure):
    """rh_engine_answer: what a lookup says beside its rows.

    Attributes:
        num_unknown: How many ids were no rows of their tables, and were treated as the engine's out_of_range says.
        degraded: 1 where default rows stand in for rows of a tier that failed, else 0.
    """

    _fields_: ClassVar = [("num_unknown", _INT64), ("degraded", _INT32)]


_ANSWER, _EXECUTOR = ctypes.POINTER(Answer), ctypes.POINTER(kernels.Executor)
_HANDLE, _SIZE = ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(_INT64)

# The arguments of every function, in the order of the headers.
_FUNCTIONS: dict[str, list[Any]] = {
    "rh_engine_create": [ctypes.c_char_p, _HANDLE],
    "rh_engine_destroy": [_POINTER],
    "rh_engine_open": [_POINTER, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int, _HANDLE],
    "rh_engine_close": [_POINTER],
    "rh_engine_version_json": [_POINTER, ctypes.POINTER(ctypes.c_char_p)],
    "rh_engine_lookup": [_POINTER, ctypes.POINTER(Batch), _POINTER, _ANSWER, _EXECUTOR],
    "rh_engine_lookup_matrix": [_POINTER, ctypes.POINTER(Batch), _POINTER, _INT64, _ANSWER, _EXECUTOR],
    "rh_engine_lookup_cuda": [_POINTER, ctypes.POINTER(Batch), _POINTER, _ANSWER, _EXECUTOR, _POINTER],
    "rh_engine_gather": [_POINTER, _INT32, _POINTER, _INT64, _POINTER, _ANSWER, _EXECUTOR],
    "rh_engine_metrics": [_POINTER, ctypes.c_char_p, _INT64, _SIZE],
}

# What returns no status.
_NO_STATUS = ("rh_engine_destroy", "rh_engine_close")

# Ids and their bags are the batch's; other statuses below 16 are the kernels'.
_ERRORS: dict[int, type[Exception]] = {
    1: BatchError,
    2: BatchError,
    16: VersionNotFoundError,
    17: CorruptFileError,
    18: TierError,
    19: ManifestError,
}


@cache
def load() -> ctypes.CDLL:
    """Loads the library on the first call, and returns it. Any thread may call it.

    Raises:
        LibraryError: It is missing, or of another version than this code, or lacks a function.
    """
    kernels.load()
    path = kernels.find("librankhouse_engine.so", rankhouse.embedding_cache)
    try:
        library = ctypes.CDLL(str(path))
    except OSError as exc:
        raise LibraryError(f"{path} cannot be loaded: {exc}") from exc
    version = library.rh_engine_abi_version()
    if version != ABI_VERSION:
        raise LibraryError(
            f"{path} has ABI version {version}: expected {ABI_VERSION}; build it with `make setup` or `pip install .`"
        )
    kernels.require(library, _FUNCTIONS)
    for name, arguments in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = None if name in _NO_STATUS else ctypes.c_int
    return library


def check(status: int) -> None:
    """Raises the error that a status stands for, with the library's message; does nothing for success."""
    if status == 0:
        return
    if status in _ERRORS:
        raise _ERRORS[status](kernels.load().rh_last_error().decode(errors="replace"))
    kernels.check(status)
