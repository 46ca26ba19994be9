"""The compiled library: finds it, loads it once, declares its functions, turns its statuses into errors."""

import ctypes
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import rankhouse.kernels
from rankhouse.kernels.errors import STATUS_ERRORS, InternalError, LibraryError

# RH_ABI_VERSION of the header that the declarations below were written from.
ABI_VERSION = 3

COMBINERS = {"sum": 0, "mean": 1, "sqrtn": 2, "none": 3}

# The rh_row_types.
ROW_TYPES = {"float32": 0, "float16": 1, "bfloat16": 2, "int8": 3}

# The rh_weightings.
WEIGHTINGS = {"tensorflow": 0, "fbgemm": 1}

# The rh_out_of_range policies that need no row, and the one that does.
OUT_OF_RANGE = {"error": 0, "zero": 1, "clip": 2}
OOV_ROW = 3

# The rh_optimizer_rules.
RULES = {
    name: number
    for number, name in enumerate(
        ["sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "ftrl", "rmsprop", "adadelta", "adamax"]
    )
}


class Table(ctypes.Structure):
    """rh_table."""

    _fields_: ClassVar = [
        ("rows", ctypes.c_void_p),
        ("num_rows", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("stride", ctypes.c_int64),
        ("oov_row", ctypes.c_int64),
        ("type", ctypes.c_int32),
        ("out_of_range", ctypes.c_int32),
    ]


class Lookup(ctypes.Structure):
    """rh_lookup."""

    _fields_: ClassVar = [
        ("tables", ctypes.POINTER(Table)),
        ("feature_tables", ctypes.POINTER(ctypes.c_int32)),
        ("combiners", ctypes.POINTER(ctypes.c_int32)),
        ("ids", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
        ("offsets", ctypes.c_void_p),
        ("hotness", ctypes.POINTER(ctypes.c_int32)),
        ("num_ids", ctypes.c_int64),
        ("batch_size", ctypes.c_int64),
        ("num_tables", ctypes.c_int32),
        ("num_features", ctypes.c_int32),
        ("id_type", ctypes.c_int32),
        ("weighting", ctypes.c_int32),
    ]


class FeatureRows(ctypes.Structure):
    """rh_feature_rows."""

    _fields_: ClassVar = [("data", ctypes.c_void_p), ("stride", ctypes.c_int64)]


class BadIds(ctypes.Structure):
    """rh_bad_ids."""

    _fields_: ClassVar = [(name, ctypes.c_int64) for name in ("count", "feature", "sample", "position", "id")]


class SparseGradientBuffer(ctypes.Structure):
    """rh_sparse_gradient."""

    _fields_: ClassVar = [
        ("ids", ctypes.c_void_p),
        ("rows", ctypes.c_void_p),
        ("capacity", ctypes.c_int64),
        ("num_rows", ctypes.c_int64),
    ]


class Optimizer(ctypes.Structure):
    """rh_optimizer."""

    _fields_: ClassVar = [
        *((name, ctypes.c_int32) for name in ("rule", "kind", "nesterov", "decoupled")),
        *(
            (name, ctypes.c_float)
            for name in (
                *("learning_rate", "epsilon", "momentum", "beta_1", "beta_2", "rho", "l1", "l2", "l2_shrinkage"),
                *("learning_rate_power", "beta", "weight_decay", "gradient_scale"),
            )
        ),
        ("step", ctypes.c_int64),
        ("learning_rates", ctypes.c_void_p),
    ]


class TrainedTable(ctypes.Structure):
    """rh_trained_table."""

    _fields_: ClassVar = [
        ("rows", ctypes.c_void_p),
        ("slots", ctypes.c_void_p * 2),
        ("last_steps", ctypes.c_void_p),
        ("num_rows", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("type", ctypes.c_int32),
    ]


class Update(ctypes.Structure):
    """rh_update."""

    _fields_: ClassVar = [
        ("table", TrainedTable),
        ("optimizer", ctypes.POINTER(Optimizer)),
        ("ids", ctypes.c_void_p),
        ("gradient", ctypes.c_void_p),
        ("device_num_ids", ctypes.c_void_p),
        ("num_ids", ctypes.c_int64),
    ]


class Executor(ctypes.Structure):
    """rh_executor; see rankhouse.kernels.executor."""

    _fields_: ClassVar = [
        ("parallel_for", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
        ("num_threads", ctypes.c_int32),
        ("scratch", ctypes.c_void_p),
    ]


class Interaction(ctypes.Structure):
    """rh_interaction."""

    _fields_: ClassVar = [
        *((name, ctypes.c_int64) for name in ("batch_size", "dim")),
        *((name, ctypes.c_int32) for name in ("num_embeddings", "has_bottom", "self_interaction")),
    ]


class VocabularyOptions(ctypes.Structure):
    """rh_vocabulary_options."""

    _fields_: ClassVar = [
        *((name, ctypes.c_int64) for name in ("first_id", "max_keys", "unknown_id", "min_count", "max_candidates")),
        ("eviction", ctypes.c_int32),
    ]


_LOOKUP, _FEATURE_ROWS, _BAD_IDS = ctypes.POINTER(Lookup), ctypes.POINTER(FeatureRows), ctypes.POINTER(BadIds)
_GRADIENTS, _UPDATES = ctypes.POINTER(SparseGradientBuffer), ctypes.POINTER(Update)
_OPTIMIZERS, _TRAINED = ctypes.POINTER(Optimizer), ctypes.POINTER(TrainedTable)
_INTERACTION, _VOCABULARY_OPTIONS = ctypes.POINTER(Interaction), ctypes.POINTER(VocabularyOptions)
_EXECUTOR, _HANDLE = ctypes.POINTER(Executor), ctypes.POINTER(ctypes.c_void_p)
_POINTER, _INT32, _INT64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64

# The arguments of every function, in the order of the headers.
_FUNCTIONS: dict[str, list[Any]] = {
    "rh_built_with_cuda": [],
    "rh_scratch_create": [_HANDLE],
    "rh_scratch_destroy": [_POINTER],
    "rh_thread_pool_create": [_INT32, _HANDLE],
    "rh_thread_pool_destroy": [_POINTER],
    "rh_thread_pool_for": [_POINTER, _INT64, _INT64, _POINTER, _POINTER],
    "rh_pooled_lookup": [_LOOKUP, _FEATURE_ROWS, _BAD_IDS, _EXECUTOR],
    "rh_gradient_capacity": [_LOOKUP, _POINTER],
    "rh_pooled_lookup_gradient": [_LOOKUP, _FEATURE_ROWS, _GRADIENTS, _EXECUTOR],
    "rh_pooled_lookup_weight_gradient": [_LOOKUP, _FEATURE_ROWS, _POINTER, _EXECUTOR],
    "rh_offsets_from_samples": [_POINTER, _INT64, _INT64, _INT64, _POINTER],
    "rh_pooled_lookup_workspace_cuda": [_LOOKUP, _POINTER],
    "rh_pooled_lookup_cuda": [_LOOKUP, _FEATURE_ROWS, _POINTER, _INT64, _POINTER],
    "rh_pooled_lookup_gradient_workspace_cuda": [_LOOKUP, _POINTER],
    "rh_pooled_lookup_gradient_cuda": [_LOOKUP, _FEATURE_ROWS, _GRADIENTS, _POINTER, _POINTER, _INT64, _POINTER],
    "rh_pooled_lookup_weight_gradient_cuda": [_LOOKUP, _FEATURE_ROWS, _POINTER, _POINTER, _INT64, _POINTER],
    "rh_lookup_check_cuda": [_LOOKUP, _POINTER, _BAD_IDS, _POINTER],
    "rh_row_bytes": [_INT32, _INT64],
    "rh_quantize_rows": [_POINTER, _INT64, _INT64, _INT32, _INT64, _POINTER, _EXECUTOR],
    "rh_dequantize_rows": [_POINTER, _INT64, _INT64, _INT32, _INT64, _POINTER, _EXECUTOR],
    "rh_allocate": [_INT64, _HANDLE],
    "rh_free": [_POINTER, _INT64],
    "rh_advise_huge_pages": [_POINTER, _INT64],
    "rh_quantize_rows_workspace_cuda": [_INT64, _POINTER],
    "rh_quantize_rows_cuda": [_POINTER, _INT64, _INT64, _INT32, _INT64, _POINTER, _POINTER, _INT64, _POINTER],
    "rh_dequantize_rows_cuda": [_POINTER, _INT64, _INT64, _INT32, _INT64, _POINTER, _POINTER],
    "rh_quantize_rows_check_cuda": [_POINTER, _POINTER],
    "rh_dot_interaction_width": [_INTERACTION],
    "rh_dot_interaction": [_INTERACTION, _POINTER, _POINTER, _POINTER, _EXECUTOR],
    "rh_dot_interaction_gradient": [_INTERACTION, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _EXECUTOR],
    "rh_dot_interaction_cuda": [_INTERACTION, _POINTER, _POINTER, _POINTER, _POINTER],
    "rh_dot_interaction_gradient_cuda": [_INTERACTION, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER],
    "rh_num_slots": [_INT32],
    "rh_apply": [_UPDATES, _INT32, _EXECUTOR],
    "rh_pooled_lookup_update": [_LOOKUP, _FEATURE_ROWS, _OPTIMIZERS, _TRAINED, _EXECUTOR],
    "rh_catch_up": [_UPDATES, _INT32, _EXECUTOR],
    "rh_squared_norm": [_GRADIENTS, _POINTER, _INT32, _POINTER, _EXECUTOR],
    "rh_apply_workspace_cuda": [_INT32, _POINTER],
    "rh_apply_cuda": [_UPDATES, _INT32, _POINTER, _INT64, _POINTER],
    "rh_catch_up_cuda": [_UPDATES, _INT32, _POINTER, _INT64, _POINTER],
    "rh_pooled_lookup_update_workspace_cuda": [_LOOKUP, _POINTER],
    "rh_pooled_lookup_update_cuda": [_LOOKUP, _FEATURE_ROWS, _OPTIMIZERS, _TRAINED, _POINTER, _INT64, _POINTER],
    "rh_squared_norm_workspace_cuda": [_INT32, _POINTER],
    "rh_squared_norm_cuda": [_GRADIENTS, _POINTER, _POINTER, _INT32, _POINTER, _POINTER, _INT64, _POINTER],
    "rh_apply_check_cuda": [_UPDATES, _INT32, _POINTER, _POINTER],
    "rh_unique": [_POINTER, _INT64, _POINTER, _POINTER, _POINTER, _POINTER, _EXECUTOR],
    "rh_vocabulary_create": [_VOCABULARY_OPTIONS, _HANDLE],
    "rh_vocabulary_destroy": [_POINTER],
    "rh_vocabulary_lookup": [_POINTER, _POINTER, _INT64, _POINTER, _EXECUTOR],
    "rh_vocabulary_observe": [_POINTER, _POINTER, _POINTER, _INT64, _INT64, _POINTER, _POINTER],
    "rh_vocabulary_evict": [_POINTER, _INT64, _INT64, _POINTER, _POINTER],
    "rh_vocabulary_size": [_POINTER],
    "rh_vocabulary_num_entries": [_POINTER],
    "rh_vocabulary_export": [_POINTER, _POINTER, _POINTER, _POINTER, _POINTER],
    "rh_vocabulary_import": [_POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _INT64],
    "rh_unique_workspace_cuda": [_INT64, _POINTER],
    "rh_unique_cuda": [_POINTER, _INT64, _POINTER, _POINTER, _POINTER, _POINTER, _POINTER, _INT64, _POINTER],
}

# What returns no status.
_RESULTS: dict[str, Any] = {
    "rh_scratch_destroy": None,
    "rh_thread_pool_destroy": None,
    "rh_thread_pool_for": None,
    "rh_row_bytes": _INT64,
    "rh_free": None,
    "rh_dot_interaction_width": _INT64,
    "rh_vocabulary_destroy": None,
    "rh_vocabulary_size": _INT64,
    "rh_vocabulary_num_entries": _INT64,
}


def find(name: str, package: ModuleType = rankhouse.kernels) -> Path:
    """Returns the path of a compiled file of a package, by default of this one.

    In an editable install the Python files lie in the checkout and the compiled ones in site-packages; both are in the
    package's path.

    Raises:
        LibraryError: The file was not built.
    """
    folders = [Path(folder) for folder in package.__path__]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    searched = ", ".join(str(folder) for folder in folders)
    raise LibraryError(f"{name} is missing (searched {searched}): build it with `make setup` or `pip install .`")


@cache
def load() -> ctypes.CDLL:
    """Loads the library on the first call, and returns it. Any thread may call it.

    Raises:
        LibraryError: It is missing, or of another version than this code, or lacks a function.
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
    require(library, _FUNCTIONS)
    declare(library)
    return library


def require(library: ctypes.CDLL, names: Iterable[str]) -> None:
    """Checks that a library has functions.

    Raises:
        LibraryError: It lacks some: it was built from other sources than this code.
    """
    missing = [name for name in names if not hasattr(library, name)]
    if missing:
        raise LibraryError(
            f"{library._name} has no {', '.join(missing)}: build it with `make setup` or `pip install .`"
        )


def declare(library: ctypes.CDLL) -> None:
    """Tells ctypes the arguments and results of the functions that a library has (one for tests may lack some)."""
    library.rh_last_error.restype = ctypes.c_char_p
    for name, arguments in _FUNCTIONS.items():
        function = getattr(library, name, None)
        if function is None:
            continue
        function.argtypes = arguments
        function.restype = _RESULTS.get(name, ctypes.c_int)


def check(status: int) -> None:
    """Raises the error that a status stands for, with the library's message; does nothing for success."""
    if status != 0:
        raise STATUS_ERRORS.get(status, InternalError)(load().rh_last_error().decode())
