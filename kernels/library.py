"""The compiled library: finds it, loads it once, declares its functions, turns its statuses into errors."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import rankhouse.kernels
from rankhouse.kernels.errors import STATUS_ERRORS, InternalError, LibraryError

# RH_ABI_VERSION of the header that the declarations below were written from.
ABI_VERSION = 1

COMBINERS = {"sum": 0, "mean": 1}


class Table(ctypes.Structure):
    """rh_table."""

    _fields_: ClassVar = [("rows", ctypes.c_void_p), ("num_rows", ctypes.c_int64), ("dim", ctypes.c_int64)]


class Lookup(ctypes.Structure):
    """rh_lookup."""

    _fields_: ClassVar = [
        ("tables", ctypes.POINTER(Table)),
        ("feature_tables", ctypes.POINTER(ctypes.c_int32)),
        ("combiners", ctypes.POINTER(ctypes.c_int32)),
        ("ids", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("hotness", ctypes.POINTER(ctypes.c_int32)),
        ("num_ids", ctypes.c_int64),
        ("batch_size", ctypes.c_int64),
        ("num_tables", ctypes.c_int32),
        ("num_features", ctypes.c_int32),
    ]


class SparseGradientBuffer(ctypes.Structure):
    """rh_sparse_gradient."""

    _fields_: ClassVar = [
        ("ids", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("capacity", ctypes.c_int64),
        ("num_rows", ctypes.c_int64),
    ]


class Update(ctypes.Structure):
    """rh_update."""

    _fields_: ClassVar = [
        ("rows", ctypes.c_void_p),
        ("accumulator", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("gradient", ctypes.c_void_p),
        ("device_num_ids", ctypes.c_void_p),
        ("num_rows", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("num_ids", ctypes.c_int64),
    ]


class Executor(ctypes.Structure):
    """rh_executor. From Python only num_threads is set: a call starts threads of its own."""

    _fields_: ClassVar = [
        ("parallel_for", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("num_threads", ctypes.c_int32),
    ]


_LOOKUP, _TABLE_UPDATES, _EXECUTOR = ctypes.POINTER(Lookup), ctypes.POINTER(Update), ctypes.POINTER(Executor)
_GRADIENTS, _INT64S = ctypes.POINTER(SparseGradientBuffer), ctypes.POINTER(ctypes.c_int64)
_POINTER, _INT32, _INT64, _FLOAT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float
_WORKSPACE_AND_STREAM = [_POINTER, _INT64, _POINTER]

_FUNCTIONS: dict[str, list[Any]] = {
    "rh_built_with_cuda": [],
    "rh_pooled_lookup": [_LOOKUP, _POINTER, _EXECUTOR],
    "rh_gradient_capacity": [_LOOKUP, _INT64S],
    "rh_pooled_lookup_gradient": [_LOOKUP, _POINTER, _GRADIENTS, _EXECUTOR],
    "rh_apply_sgd": [_TABLE_UPDATES, _INT32, _FLOAT, _EXECUTOR],
    "rh_apply_adagrad": [_TABLE_UPDATES, _INT32, _FLOAT, _FLOAT, _EXECUTOR],
    "rh_pooled_lookup_workspace_cuda": [_LOOKUP, _INT64S],
    "rh_pooled_lookup_cuda": [_LOOKUP, _POINTER, *_WORKSPACE_AND_STREAM],
    "rh_pooled_lookup_gradient_workspace_cuda": [_LOOKUP, _INT64S],
    "rh_pooled_lookup_gradient_cuda": [_LOOKUP, _POINTER, _GRADIENTS, _POINTER, *_WORKSPACE_AND_STREAM],
    "rh_lookup_check_cuda": [_LOOKUP, _POINTER, _POINTER],
    "rh_apply_workspace_cuda": [_INT32, _INT64S],
    "rh_apply_sgd_cuda": [_TABLE_UPDATES, _INT32, _FLOAT, *_WORKSPACE_AND_STREAM],
    "rh_apply_adagrad_cuda": [_TABLE_UPDATES, _INT32, _FLOAT, _FLOAT, *_WORKSPACE_AND_STREAM],
    "rh_apply_check_cuda": [_TABLE_UPDATES, _INT32, _POINTER, _POINTER],
}


def find(name: str) -> Path:
    """Returns the path of a compiled file of this package.

    In an editable install the Python files lie in the checkout and the compiled ones in site-packages; both are in the
    package's path.

    Raises:
        LibraryError: The file was not built.
    """
    folders = [Path(folder) for folder in rankhouse.kernels.__path__]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    searched = ", ".join(str(folder) for folder in folders)
    raise LibraryError(f"{name} is missing (searched {searched}): build it with `make setup` or `pip install .`")


@cache
def load() -> ctypes.CDLL:
    """Loads the library on the first call, and returns it. Any thread may call it.

    Raises:
        LibraryError: It is missing, or of another version than this code.
    """
    path = find("librankhouse_kernels.so")
    try:
        library = ctypes.CDLL(str(path))
    except OSError as exc:
        raise LibraryError(f"{path} cannot be loaded: {exc}") from exc
    version = library.rh_abi_version()
    if version != ABI_VERSION:
        raise LibraryError(
            f"{path} has ABI version {version}: expected {ABI_VERSION}; build it with `make setup` or `pip install .`"
        )
    library.rh_last_error.restype = ctypes.c_char_p
    for name, arguments in _FUNCTIONS.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = ctypes.c_int
    return library


def check(status: int) -> None:
    """Raises the error that a status stands for, with the library's message; does nothing for success."""
    if status != 0:
        raise STATUS_ERRORS.get(status, InternalError)(load().rh_last_error().decode())
