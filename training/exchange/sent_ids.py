"""The ids of a batch on their way: sent by one function, and looked up by another one later."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from rankhouse.training.exchange.batch import Batch
from rankhouse.training.exchange.layout import Layout
from rankhouse.training.exchange.unique_rows import UniqueIds


class SentIds(NamedTuple):
    """A batch whose ids are where their rows are; no row has been read yet.

    Made of tensors alone, so a `tf.function` takes and returns it. Only the layer that made it can look it up.

    Attributes:
        ids: int64 [N], this rank's own, as they were given.
        lengths: int64 [F, B].
        weights: float32 [N]; nothing where all are 1.
        unique: For each table whose rows travel, its unique ids int64 [U], and where each id is among them, int64 [n].
        requests: What all ranks ask of this one, int64 [M], and how many numbers of it each, int32 [R]; nothing where
            nothing travels.
    """

    ids: tf.Tensor
    lengths: tf.Tensor
    weights: tuple[tf.Tensor, ...] = ()
    unique: tuple[tuple[tf.Tensor, tf.Tensor], ...] = ()
    requests: tuple[tf.Tensor, ...] = ()

    @classmethod
    def of(cls, batch: Batch, unique: Sequence[UniqueIds] = (), requests: tuple[tf.Tensor, ...] = ()) -> "SentIds":
        """Puts together what was found in a batch and what was exchanged for it."""
        weights = () if batch.weights is None else (batch.weights,)
        return cls(batch.ids, batch.lengths, weights, tuple((one.ids, one.positions) for one in unique), requests)

    @classmethod
    def spec(cls, layout: Layout, *, num_inputs: int, weighted: bool) -> "SentIds":
        """Returns the types of those of a layout, `tf.TensorSpec`s, whatever the sizes."""
        ids = tf.TensorSpec([None], tf.int64)
        requests = (ids, tf.TensorSpec([len(layout.pooled)], tf.int32)) if layout.travels else ()
        return cls(
            ids,
            tf.TensorSpec([num_inputs, None], tf.int64),
            (tf.TensorSpec([None], tf.float32),) if weighted else (),
            ((ids, ids),) * len(layout.rows),
            requests,
        )

    @property
    def batch(self) -> Batch:
        """This rank's own ids."""
        return Batch(self.ids, self.lengths, *self.weights)

    def unique_ids(self, layout: Layout) -> list[UniqueIds]:
        """Returns the unique ids of each table whose rows travel."""
        pairs = zip(layout.rows, self.unique, strict=True)
        return [UniqueIds(table, self.batch.select(table.numbers), *found) for table, found in pairs]
