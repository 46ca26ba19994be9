"""The compiled transform in C++: what `format.transform.CompiledTransform` gives, to the bit, without its passes.

`CompiledTransform` stays the truth that this one is held against; this one is for where time counts.

Shapes: B rows of all batches, F categorical features, N ids in all.
"""

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache import library
from rankhouse.embedding_cache.format.errors import TransformError
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.transform import TransformedBatch
from rankhouse.kernels import library as kernels
from rankhouse.kernels.executor import Threads, executor_of

_INVALID_ARGUMENT = 1  # The rh_status.
_INT64 = ctypes.c_int64


@dataclass(frozen=True)
class RawTensors:
    """Raw values of some rows as they travel in a request (ARCHITECTURE.md, "The Triton ensemble").

    Attributes:
        float_values: float64 [rows, continuous features]; NaN is missing.
        int_values: int64 [n], the values of categorical int64 features, row by row.
        int_lengths: int32 [rows, categorical int64 features], the values of each; 0 is missing.
        text_bytes: uint8 [bytes], the texts of categorical text features, one after the other (UTF-8).
        text_sizes: int32 [m], the bytes of each text, 1 or more.
        text_lengths: int32 [rows, categorical text features], the texts of each; 0 is missing.

    Raises:
        TransformError: An array has another dtype or number of dimensions, or they disagree about the number of rows.
    """

    float_values: npt.NDArray[Any]
    int_values: npt.NDArray[Any]
    int_lengths: npt.NDArray[Any]
    text_bytes: npt.NDArray[Any]
    text_sizes: npt.NDArray[Any]
    text_lengths: npt.NDArray[Any]

    def __post_init__(self) -> None:
        for name, (dtype, num_dimensions) in _TENSORS.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.ndim != num_dimensions:
                raise TransformError(
                    f"{name} is {array.dtype} {list(array.shape)}; expected {np.dtype(dtype)} of {num_dimensions} "
                    "dimensions"
                )
            if num_dimensions == 2 and len(array) != len(self.float_values):
                raise TransformError(
                    f"{name} has shape {array.shape}; expected two dimensions and {len(self.float_values)} rows"
                )

    @classmethod
    def of(cls, raw: RawBatch) -> "RawTensors":
        """Joins the texts of a raw batch."""
        texts = raw.text_values.tolist()
        return cls(
            float_values=raw.float_values,
            int_values=raw.int_values,
            int_lengths=raw.int_lengths,
            text_bytes=np.frombuffer(b"".join(texts), dtype=np.uint8),
            text_sizes=np.fromiter(map(len, texts), dtype=np.int32, count=len(texts)),
            text_lengths=raw.text_lengths,
        )


_TENSORS: dict[str, tuple[Any, int]] = {
    "float_values": (np.float64, 2),
    "int_values": (np.int64, 1),
    "int_lengths": (np.int32, 2),
    "text_bytes": (np.uint8, 1),
    "text_sizes": (np.int32, 1),
    "text_lengths": (np.int32, 2),
}


class NativeTransform:
    """Turns raw rows into the model's input. Immutable; any thread may use it until it is closed.

    Args:
        directory: The folder of `transform.json`.
        layers: The tensor file of each layer of the vocabularies, the oldest first, where they lie elsewhere, as a
            version's do.

    Raises:
        CorruptFileError: A file is missing or malformed, of another kind, made by a newer release, or they contradict
            each other.
    """

    def __init__(self, directory: Path | str, layers: Sequence[Path] | None = None) -> None:
        self._library = _load()
        self._handle = ctypes.c_void_p()
        paths = [os.fsencode(layer) for layer in layers or ()]
        array = (ctypes.c_char_p * len(paths))(*paths)
        _check(self._library.rh_transform_open(os.fsencode(directory), array, len(paths), ctypes.byref(self._handle)))
        self._shape = _Shape()
        _check(self._library.rh_transform_get_shape(self._handle, ctypes.byref(self._shape)))

    @property
    def num_dense(self) -> int:
        """The number of continuous features."""
        return int(self._shape.num_floats)

    def apply(self, *batches: RawTensors, num_threads: Threads = None) -> TransformedBatch:
        """Transforms batches, as if their rows stood in one.

        Args:
            batches: The batches.
            num_threads: How many threads to use, or an executor; None: as many as there are processors.

        Raises:
            TransformError: A batch has another number of features, or contradicts itself, a value is infinite, or a
                single-valued feature has several values.
        """
        if not self._handle:
            raise TransformError("the transform is closed: make calls before close() or the end of its with block")
        num_rows, num_features = sum(len(batch.float_values) for batch in batches), int(self._shape.num_features)
        num_values = sum(len(batch.int_values) + len(batch.text_sizes) for batch in batches)
        dense = np.empty((num_rows, self.num_dense), dtype=np.float32)
        ids = np.empty(num_rows * num_features + num_values, dtype=np.int64)
        lengths = np.empty((num_features, num_rows), dtype=np.int32)
        num_unknown = np.empty(len(batches), dtype=np.int64)
        output = _ModelInput(
            dense.ctypes.data, ids.ctypes.data, len(ids), None, lengths.ctypes.data, num_unknown.ctypes.data
        )
        # The arrays that the structs point into live until the call returns.
        arrays = [_contiguous(batch) for batch in batches]
        raw = (_RawBatch * len(batches))(*map(_raw_batch, arrays))
        executor = executor_of(num_threads)
        _check(
            self._library.rh_transform_apply(
                self._handle,
                raw,
                len(batches),
                ctypes.byref(output),
                None if executor is None else ctypes.byref(executor),
            )
        )
        return TransformedBatch(dense=dense, ids=ids[: output.num_ids], lengths=lengths, num_unknown=num_unknown)

    def close(self) -> None:
        """Unmaps the files; no call may be running."""
        self._library.rh_transform_close(self._handle)
        self._handle = ctypes.c_void_p()

    def __enter__(self) -> "NativeTransform":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # Nothing was opened where the library is missing.
        if hasattr(self, "_handle"):
            self.close()


class _Shape(ctypes.Structure):
    _fields_: ClassVar = [(name, _INT64) for name in ("num_floats", "num_ints", "num_texts", "num_features")]


class _RawBatch(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, ctypes.c_void_p) for name in _TENSORS),
        ("num_rows", _INT64),
        *((f"num_{name}_columns", _INT64) for name in ("float", "int", "text")),
        *((f"num_{name}", _INT64) for name in ("ints", "texts", "text_bytes")),
    ]


class _ModelInput(ctypes.Structure):
    _fields_: ClassVar = [
        ("dense", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("ids_capacity", _INT64),
        ("offsets", ctypes.c_void_p),
        ("lengths", ctypes.c_void_p),
        ("num_unknown", ctypes.c_void_p),
        ("num_ids", _INT64),
    ]


def _contiguous(batch: RawTensors) -> dict[str, npt.NDArray[Any]]:
    return {name: np.ascontiguousarray(getattr(batch, name)) for name in _TENSORS}


def _raw_batch(arrays: dict[str, npt.NDArray[Any]]) -> _RawBatch:
    return _RawBatch(
        *(array.ctypes.data for array in arrays.values()),
        len(arrays["float_values"]),
        *(arrays[name].shape[1] for name in ("float_values", "int_lengths", "text_lengths")),
        *(len(arrays[name]) for name in ("int_values", "text_sizes", "text_bytes")),
    )


@cache
def _load() -> ctypes.CDLL:
    engine = library.load()
    kernels.require(engine, [f"rh_transform_{name}" for name in ("open", "close", "get_shape", "apply")])
    pointer = ctypes.c_void_p
    engine.rh_transform_open.argtypes = [ctypes.c_char_p, pointer, _INT64, pointer]
    engine.rh_transform_close.argtypes = [pointer]
    engine.rh_transform_close.restype = None
    engine.rh_transform_get_shape.argtypes = [pointer, pointer]
    engine.rh_transform_apply.argtypes = [pointer, pointer, _INT64, pointer, pointer]
    return engine


def _check(status: int) -> None:
    if status == _INVALID_ARGUMENT:
        raise TransformError(kernels.load().rh_last_error().decode(errors="replace"))
    library.check(status)
