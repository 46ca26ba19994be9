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
from rankhouse.training.tables.key_owners import owners
from rankhouse.training.tables.specs import Input

# A batch has no more keys of a table than this; of one that learns them, they may be more than it has rows.
_MAX_KEYS = 1 << 31


@dataclass(frozen=True)
class UniqueIds:
    """The ids that a batch looks up in one table.

    Attributes:
        table: The table.
        batch: The ids of the table's inputs.
        ids: int64 [U], each once, all of them rows, or keys; in rising order, but keys of one owner after those of the
            one before.
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
            if not table.by_key
        ]
        ids = [keys.unique for keys in found]
        if bad:
            own_inputs = [inputs[number] for table in tables for number in table.numbers]
            num_rows = [None if table.by_key else table.num_rows for table in tables for _ in table.numbers]
            ids = require_rows(ids, tf.add_n(bad), batches, own_inputs, num_rows)
        parts = zip(tables, batches, ids, (keys.inverse for keys in found), strict=True)
        return [cls(*part)._by_owner() for part in parts]

    def within(self, shard: ShardSpec) -> tf.Tensor:
        """Returns those that are rows of a rectangle."""
        if (shard.row_start, shard.row_stop) == (0, self.table.num_rows):
            return self.ids
        if self.table.by_key:
            at = self.table.shards.index(shard)
            values, limits = owners(self.ids, len(self.table.shards)), tf.constant([at, at + 1])
        else:
            values, limits = self.ids, tf.constant([shard.row_start, shard.row_stop], tf.int64)
        begin, end = tf.unstack(tf.searchsorted(values, limits))
        return self.ids[begin:end]

    def join(self, parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Puts the rows [n, columns] of the table's rectangles together: [U, dim]."""
        if len(parts) == 1:
            return parts[0]
        return tf.concat(parts, axis=0 if self.table.is_cut_by_rows else 1)

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
        max_rows = _MAX_KEYS if self.table.by_key else self.table.num_rows
        if pooled:
            bags = batch.select(pooled)
            columns = tf_ops.pool_rows(
                rows,
                bags.ids,
                bags.offsets,
                max_rows=max_rows,
                combiners=[own[at] or "sum" for at in pooled],
                weights=bags.weights,
                all_rows=not apart,
            )
            outputs |= zip(pooled, tf.split(columns, len(pooled), axis=1), strict=True)
        if apart:
            ids = batch.select(apart)
            each = tf_ops.take_rows(rows, ids.ids, max_rows=max_rows, all_rows=not pooled)
            outputs |= zip(apart, tf.split(each, ids.counts, num=len(apart)), strict=True)
        return [outputs[at] for at in range(len(own))]

    def _by_owner(self) -> "UniqueIds":
        if not (self.table.by_key and self.table.is_cut_by_rows):
            return self
        count = len(self.table.shards)
        numbers = tf.range(tf.size(self.ids, out_type=tf.int64))
        parts = tf.dynamic_partition(numbers, owners(self.ids, count), count)
        order = tf.concat(parts, axis=0)
        places = tf.tensor_scatter_nd_update(numbers, order[:, tf.newaxis], numbers)
        return UniqueIds(self.table, self.batch, tf.gather(self.ids, order), tf.gather(places, self.positions))
