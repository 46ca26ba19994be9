"""Rows in other formats than float32, and memory for them.

The dtype of an array of rows says its format: float32, float16, uint16 for the bits of bfloat16 (NumPy has no such
type), uint8 [R, D + 8] for "int8": D bytes q, then float32 scale and offset; a value is q * scale + offset (FBGEMM's
fused 8-bit rowwise format). Letters in shapes: R rows, D their width. Any thread may call these functions.
"""

import ctypes
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankhouse.kernels import library
from rankhouse.kernels.errors import ArgumentError, OutOfMemoryError
from rankhouse.kernels.executor import Threads, executor_of

_DTYPES: dict[str, Any] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(np.uint16),
    "int8": np.dtype(np.uint8),
}


def quantize_rows(
    rows: NDArray[np.float32],
    row_type: str,
    *,
    out: NDArray[Any] | None = None,
    num_threads: Threads = None,
) -> NDArray[Any]:
    """Converts rows into another format.

    float16 and bfloat16 round to the nearest, ties to even; beyond float16's range (65504) they become infinite. int8
    is off by at most half its row's scale, (max - min) / 255.

    Args:
        rows: float32 [R, D].
        row_type: "float32", "float16", "bfloat16" or "int8".
        out: Where to write: of the result's dtype and shape; its rows may lie apart, but each in one piece.
        num_threads: Most threads to use; None: as many as there are processors.

    Returns:
        float32, float16 or uint16 [R, D], or uint8 [R, D + 8]; it is `out` where that is given.

    Raises:
        ArgumentError: For int8, an element is not finite (the message names row and column); or an array or the row
            type is not as said here.
    """
    check_rows(rows, "rows", np.dtype(np.float32))
    if not rows.flags.c_contiguous:
        raise ArgumentError("rows is not contiguous: pass np.ascontiguousarray(rows)")
    number = row_type_number(row_type)
    num_rows, dim = rows.shape
    shape = (num_rows, _columns(row_type, dim))
    out = np.empty(shape, _DTYPES[row_type]) if out is None else out
    check_rows(out, "out", _DTYPES[row_type])
    if out.shape != shape or not out.flags.writeable:
        raise ArgumentError(f"out has shape {out.shape}: expected a writeable array of shape {shape}")
    library.check(
        library.load().rh_quantize_rows(
            rows.ctypes.data, num_rows, dim, number, stride_of(out, "out"), out.ctypes.data, executor_of(num_threads)
        )
    )
    return out


def dequantize_rows(quantized: NDArray[Any], *, num_threads: Threads = None) -> NDArray[np.float32]:
    """Converts rows of any format into float32 [R, D], as the lookup reads them.

    Args:
        quantized: Rows whose dtype says their format; they may lie apart, but each in one piece.
        num_threads: Most threads to use; None: as many as there are processors.

    Raises:
        ArgumentError: The array is not one of rows.
    """
    row_type = row_type_of(quantized)
    check_rows(quantized, "quantized", _DTYPES[row_type])
    num_rows = quantized.shape[0]
    dim = dim_of(quantized)
    rows = np.empty((num_rows, dim), np.float32)
    library.check(
        library.load().rh_dequantize_rows(
            *(quantized.ctypes.data, num_rows, dim, row_type_number(row_type), stride_of(quantized, "quantized")),
            *(rows.ctypes.data, executor_of(num_threads)),
        )
    )
    return rows


def allocate_rows(num_rows: int, dim: int, row_type: str = "float32") -> NDArray[Any]:
    """Returns rows of zeros that begin on 2 MiB, in huge pages where the system grants them.

    Reading such rows at random is up to three times as fast as in small pages. The memory goes back to the system with
    the last array that shows it.

    Raises:
        ArgumentError: A size is out of range, or the row type is unknown.
        OutOfMemoryError: The system has not so much memory to give.
    """
    number = row_type_number(row_type)
    kernels = library.load()
    row_bytes = kernels.rh_row_bytes(number, dim)
    if num_rows < 0 or row_bytes == 0:
        raise ArgumentError(f"rows of shape [{num_rows}, {dim}]: expected rows >= 0 and a width of 1 to 2^31 - 1")
    dtype, shape = _DTYPES[row_type], (num_rows, _columns(row_type, dim))
    if num_rows == 0:
        return np.zeros(shape, dtype)
    memory = ctypes.c_void_p()
    num_bytes = num_rows * row_bytes
    if num_bytes >= 2**63:  # ctypes would cut it off
        raise OutOfMemoryError(f"rows of shape [{num_rows}, {dim}] need {num_bytes} bytes, more than any system has")
    library.check(kernels.rh_allocate(num_bytes, ctypes.byref(memory)))
    assert memory.value is not None  # rh_allocate has succeeded
    buffer = (ctypes.c_char * num_bytes).from_address(memory.value)
    weakref.finalize(buffer, kernels.rh_free, memory.value, num_bytes).atexit = False
    return np.frombuffer(buffer, dtype).reshape(shape)


def row_type_of(rows: NDArray[Any]) -> str:
    """Returns the format that an array's dtype stands for.

    Raises:
        ArgumentError: It stands for none.
    """
    for row_type, dtype in _DTYPES.items():
        if rows.dtype == dtype:
            return row_type
    listed = ", ".join(f"{dtype} ({row_type})" for row_type, dtype in _DTYPES.items())
    raise ArgumentError(f"rows of {rows.dtype}: expected one of {listed}")


def dim_of(rows: NDArray[Any]) -> int:
    """Returns the width D of an array of rows [R, ...] of any format."""
    return int(rows.shape[1]) - (8 if row_type_of(rows) == "int8" else 0)


def row_type_number(row_type: str) -> int:
    """Returns the rh_row_type of a format's name.

    Raises:
        ArgumentError: There is no such format.
    """
    if row_type not in library.ROW_TYPES:
        raise ArgumentError(f"row type {row_type!r}: expected one of {sorted(library.ROW_TYPES)}")
    return library.ROW_TYPES[row_type]


def _columns(row_type: str, dim: int) -> int:
    return dim + 8 if row_type == "int8" else dim


def check_rows(rows: NDArray[Any], name: str, dtype: np.dtype[Any]) -> None:
    """Raises ArgumentError for what is not an array of rows of that dtype."""
    if not isinstance(rows, np.ndarray):
        raise ArgumentError(f"{name} is a {type(rows).__name__}: expected a NumPy array")
    if rows.dtype != dtype or rows.ndim != 2 or dim_of(rows) < 1:
        raise ArgumentError(f"{name} is {rows.dtype} of shape {rows.shape}: expected {dtype} [rows, width]")


def stride_of(rows: NDArray[Any], name: str) -> int:
    """Returns the bytes from one row to the next.

    Raises:
        ArgumentError: A row is not in one piece, or rows overlap.
    """
    row_bytes = rows.shape[1] * rows.itemsize
    # NumPy leaves the strides of axes with less than two elements open.
    in_one_piece = rows.size == 0 or rows.shape[1] == 1 or rows.strides[1] == rows.itemsize
    stride = rows.strides[0] if len(rows) > 1 else row_bytes
    if not in_one_piece or stride < row_bytes:
        raise ArgumentError(f"{name} has strides {rows.strides}: expected each row in one piece, one after the other")
    return stride
