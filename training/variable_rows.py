"""Ranges of rows of a TensorFlow variable, read and written in place.

A table may fill most of the memory, so nothing here ever copies more than the rows asked for.
"""

import numpy as np
import tensorflow as tf


def read_rows(variable: tf.Variable, start: int, stop: int) -> np.ndarray:
    """Returns a copy of rows [start, stop)."""
    # A gather reads the rows alone; slicing would first read the variable, which copies it whole once it was updated
    # sparsely.
    rows: np.ndarray = tf.raw_ops.ResourceGather(
        resource=variable.handle, indices=tf.range(start, stop, dtype=tf.int64), dtype=variable.dtype
    ).numpy()
    return rows


def write_rows(variable: tf.Variable, start: int, rows: np.ndarray) -> None:
    """Overwrites the rows from `start` on."""
    tf.raw_ops.ResourceStridedSliceAssign(
        ref=variable.handle,
        begin=[start],
        end=[start + len(rows)],
        strides=[1],
        value=tf.constant(rows, variable.dtype),
    )
