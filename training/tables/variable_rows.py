"""Rows of a TensorFlow variable, read and written in place; of one that is a cache, those of the array behind it.

A table may fill most of the memory, so nothing here ever copies more than the rows asked for. Where the rows of a table
lie in host memory, and its variable and the optimizer's slots have some of them only (`host_rows.py`), row numbers are
those of the table all the same: who saves or loads a table need not know where it lies.
"""

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from rankhouse.training.errors import EmbeddingError

Rows = npt.NDArray[Any]

_MARK = "rankhouse_cached_array"


class CachedArray(Protocol):
    """An array of which a variable has some rows."""

    def read(self, rows: slice | npt.NDArray[np.int64]) -> Rows:
        """Returns a copy of rows as they are now."""

    def write(self, rows: slice | npt.NDArray[np.int64], values: Rows) -> None:
        """Overwrites rows, each of which is named once, also where the variable has them."""


def mark_cached(variable: tf.Variable, array: CachedArray) -> None:
    """Notes that a variable has some rows of an array only."""
    setattr(variable, _MARK, array)


def array_behind(variable: tf.Variable) -> CachedArray | None:
    """Returns the array of which a variable has some rows; None where it has all rows itself."""
    return getattr(variable, _MARK, None)


def read_rows(variable: tf.Variable, start: int, stop: int) -> Rows:
    """Returns a copy of rows [start, stop) in the variable's dtype, read-only."""
    array = array_behind(variable)
    if array is not None:
        return array.read(slice(start, stop))
    return gather(variable, tf.range(start, stop, dtype=tf.int64))


def write_rows(variable: tf.Variable, start: int, rows: Rows) -> None:
    """Overwrites the rows from `start` on; what the variable holds in fewer bits is rounded to the nearest.

    Raises:
        EmbeddingError: A number is beyond what the variable can hold.
    """
    rows = _as_held(rows, variable)
    array = array_behind(variable)
    if array is not None:
        array.write(slice(start, start + len(rows)), rows)
        return
    tf.raw_ops.ResourceStridedSliceAssign(
        ref=variable.handle,
        begin=[start],
        end=[start + len(rows)],
        strides=[1],
        value=tf.constant(rows, variable.dtype),
    )


def read_rows_at(variable: tf.Variable, numbers: npt.NDArray[np.int64]) -> Rows:
    """Returns a copy of the rows of these numbers in the variable's dtype, read-only."""
    array = array_behind(variable)
    return gather(variable, numbers) if array is None else array.read(numbers)


def write_rows_at(variable: tf.Variable, numbers: npt.NDArray[np.int64], rows: Rows) -> None:
    """Overwrites the rows of these numbers, each of which is there once; as `write_rows` does."""
    rows = _as_held(rows, variable)
    array = array_behind(variable)
    if array is None:
        scatter(variable, numbers, rows)
    else:
        array.write(numbers, rows)


def gather(variable: tf.Variable, indices: Any) -> Rows:
    """Returns a copy of rows of the variable itself, read-only."""
    # A gather reads the rows alone; slicing would first read the variable, which copies it whole once it was updated
    # sparsely. What it returns is a copy already, on several threads: `numpy()` would make another one, on one thread.
    rows = tf.raw_ops.ResourceGather(resource=variable.handle, indices=indices, dtype=variable.dtype)
    if variable.dtype == tf.bfloat16:  # Which memory views do not know.
        return np.asarray(memoryview(tf.bitcast(rows, tf.uint16))).view(variable.dtype.as_numpy_dtype)
    return np.asarray(memoryview(rows))


def scatter(variable: tf.Variable, indices: Any, rows: Any) -> None:
    """Overwrites rows of the variable itself."""
    tf.raw_ops.ResourceScatterUpdate(
        resource=variable.handle, indices=indices, updates=tf.constant(rows, variable.dtype)
    )


def _as_held(rows: Rows, variable: tf.Variable) -> Rows:
    dtype = np.dtype(variable.dtype.as_numpy_dtype)
    if rows.dtype == dtype:
        return rows
    with np.errstate(over="ignore"):
        held: Rows = rows.astype(dtype)
    if held.itemsize < rows.itemsize and not (np.isfinite(held) | ~np.isfinite(rows)).all():
        worst = np.abs(rows[np.isfinite(rows)]).max()
        raise EmbeddingError(
            f"rows of {variable.name} hold {worst:g}, which {dtype.name} cannot; hold the table as bfloat16 or float32"
        )
    return held
