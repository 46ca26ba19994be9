"""Ranges of rows of a TensorFlow variable, read and written in place.

A table may fill most of the memory, so nothing here ever copies more than the rows asked for.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf


def read_rows(variable: tf.Variable, start: int, stop: int) -> npt.NDArray[Any]:
    """Returns a copy of rows [start, stop), read-only."""
    # A gather reads the rows alone; slicing would first read the variable, which copies it whole once it was updated
    # sparsely. What it returns is a copy already, on several threads: `numpy()` would make another one, on one thread.
    rows = tf.raw_ops.ResourceGather(
        resource=variable.handle, indices=tf.range(start, stop, dtype=tf.int64), dtype=variable.dtype
    )
    return np.asarray(memoryview(rows))


def write_rows(variable: tf.Variable, start: int, rows: npt.NDArray[Any]) -> None:
    """Overwrites the rows from `start` on."""
    tf.raw_ops.ResourceStridedSliceAssign(
        ref=variable.handle,
        begin=[start],
        end=[start + len(rows)],
        strides=[1],
        value=tf.constant(rows, variable.dtype),
    )
