"""Tables whose variable has not simply one row for each id: what stands between an id and its row."""

from typing import Protocol

import tensorflow as tf

# What a map gives for an id that has no row: zeros are looked up, without a gradient.
NO_ROW = -1


class RowMap(Protocol):
    """Says which row of a variable holds an id, and brings it there.

    A lookup asks it once, before the rows are read, in the graph or eagerly; with all ids that the lookup reads of the
    variable.
    """

    @property
    def num_ids(self) -> int | None:
        """Ids are 0 to num_ids - 1, and others never come here; None: every int64 is one."""

    def rows(self, ids: tf.Tensor, *, training: bool) -> tf.Tensor:
        """Finds the rows of ids; may insert, load and evict, but no row that a lookup still uses, its update included.

        Args:
            ids: int64 [n], of the table (not of the variable's rectangle), in any order and several times.
            training: Whether the lookup belongs to a step of training.

        Returns:
            int64 [n], rows of the variable, or `NO_ROW`.
        """


def find_rows(row_map: RowMap, ids: tf.Tensor, training: bool | tf.Tensor) -> tf.Tensor:
    """Asks a map; `training` may be a tensor, as Keras has it while it puts a model together."""
    if isinstance(training, tf.Tensor):
        return tf.cond(
            tf.cast(training, tf.bool),
            lambda: row_map.rows(ids, training=True),
            lambda: row_map.rows(ids, training=False),
        )
    return row_map.rows(ids, training=bool(training))
