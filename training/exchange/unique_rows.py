"""Lookups by unique ids: each row is read, and travels, once; then its bags pool it where they are.

So weights, combiners and the shape of the bags never travel, and neither does an id twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from rankhouse.kernels import tf_ops
from rankhouse.training.exchange.bad_ids import require_rows
from rankhouse.training.exchange.batch import Batch
from rankhouse.training.exchange.layout import RowsTable
from rankhouse.training.plan import ShardSpec
from rankhouse.training.tables.specs import Input


@dataclass(frozen=True)
class UniqueIds:
    """The ids that a batch looks up in one table.

    Attributes:
        table: The table.
        batch: The ids of the table's inputs.
        ids: int64 [U], in rising order, each once, all of them rows.
        positions: int64 [N], where each id of the batch is among them.
    """

    table: RowsTable
    batch: Batch
    ids: tf.Tensor
    positions: tf.Tensor

    @classmethod
    def of_tables(cls, tables: Sequence[RowsTable], batch: Batch, inputs: Sequence[Input]) -> list["UniqueIds"]:
        """Finds those of each table in the batch of the layer's inputs.

        Raises:
            tf.errors.InvalidArgumentError: An id is not a row of its table.
        """
        if not tables:
            return []
        batches = [batch.select(table.numbers) for table in tables]
        found = [tf_ops.unique(own.ids) for own in batches]
        bad = [
            tf.math.count_nonzero((keys.unique < 0) | (keys.unique >= table.num_rows))
            for table, keys in zip(tables, found, strict=True)
        ]
        own_inputs = [inputs[number] for table in tables for number in table.numbers]
        num_rows = [table.num_rows for table in tables for _ in table.numbers]
        ids = require_rows([keys.unique for keys in found], tf.add_n(bad), batches, own_inputs, num_rows)
        parts = zip(tables, batches, ids, (keys.inverse for keys in found), strict=True)
        return [cls(*part) for part in parts]

    def within(self, shard: ShardSpec) -> tf.Tensor:
        """Returns those that are rows of a rectangle."""
        if (shard.row_start, shard.row_stop) == (0, self.table.num_rows):
            return self.ids
        begin, end = tf.unstack(tf.searchsorted(self.ids, tf.constant([shard.row_start, shard.row_stop], tf.int64)))
        return self.ids[begin:end]

    def join(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Puts the rows [n, columns] of the table's rectangles together: [U, dim]."""
        if len(parts) == 1:
            return parts[0]
        by_rows = self.table.shards[0].row_stop < self.table.num_rows
        return tf.concat(parts, axis=0 if by_rows else 1)

    def pool(self, rows: tf.Tensor, combiners: Sequence[str | None]) -> list[tf.Tensor]:
        """Pools rows [U, dim] for each input of the table.

        Args:
            rows: The rows of `ids`.
            combiners: One for each of the layer's inputs.

        Returns:
            For each input float32 [B, dim]; or [n, dim], a row for each of its n ids, where it has no combiner.
        """
        own = [combiners[number] for number in self.table.numbers]
        pooled = [at for at, combiner in enumerate(own) if combiner is not None]
        apart = [at for at, combiner in enumerate(own) if combiner is None]
        # The positions are the ids of a small table, that of the rows.
        batch = Batch(self.positions, self.batch.lengths, self.batch.weights)
        outputs: dict[int, tf.Tensor] = {}
        if pooled:
            bags = batch.select(pooled)
            columns = tf_ops.pool_rows(
                rows,
                bags.ids,
                bags.offsets,
                max_rows=self.table.num_rows,
                combiners=[own[at] or "sum" for at in pooled],
                weights=bags.weights,
                all_rows=not apart,
            )
            outputs |= zip(pooled, tf.split(columns, len(pooled), axis=1), strict=True)
        if apart:
            ids = batch.select(apart)
            each = tf_ops.take_rows(rows, ids.ids, max_rows=self.table.num_rows, all_rows=not pooled)
            outputs |= zip(apart, tf.split(each, ids.counts, num=len(apart)), strict=True)
        return [outputs[at] for at in range(len(own))]
