"""Lookups in the tables, or parts of them, that this rank holds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from rankhouse.kernels import tf_ops
from rankhouse.kernels.bags import FixedHotness
from rankhouse.training.exchange.bad_ids import require_rows
from rankhouse.training.exchange.batch import Batch
from rankhouse.training.exchange.layout import Feature
from rankhouse.training.plan import ShardSpec
from rankhouse.training.tables.specs import Input


class HeldTables:
    """The variables of one rank, by table and rectangle.

    Attributes:
        before_lookup: Called with a variable and the ids [n], rows of the variable, that are about to be looked up in
            it, where it is set.
    """

    def __init__(self, inputs: Sequence[Input], variables: Mapping[tuple[str, ShardSpec], tf.Variable]) -> None:
        self._inputs = list(inputs)
        self._variables = dict(variables)
        self.before_lookup: Callable[[tf.Variable, tf.Tensor], Any] | None = None

    def pool(self, features: Sequence[Feature], batch: Batch, combiners: Sequence[str | None]) -> tf.Tensor:
        """Pools a batch of the given features.

        Args:
            features: Of this rank, with rectangles that have all rows.
            batch: Their ids.
            combiners: One for each of the layer's inputs.

        Returns:
            float32 [B, summed widths of the features].

        Raises:
            tf.errors.InvalidArgumentError: An id is not a row of its table.
        """
        keys = [(feature.table, feature.shard) for feature in features]
        unique_keys = list(dict.fromkeys(keys))
        variables = [self._variables[key] for key in unique_keys]
        self._announce(unique_keys, keys, batch)
        found = tf_ops.pooled_lookup_counted(
            variables,
            batch.ids,
            batch.offsets,
            feature_tables=[unique_keys.index(key) for key in keys],
            combiners=[combiners[feature.number] or "sum" for feature in features],
            weights=batch.weights,
            out_of_range="zero",
        )
        inputs = [self._inputs[feature.number] for feature in features]
        num_rows = [feature.shard.row_stop for feature in features]
        (rows,) = require_rows([found.rows], tf.reduce_sum(found.num_bad_ids), [batch], inputs, num_rows)
        return rows

    def rows(self, table: str, shard: ShardSpec, ids: tf.Tensor) -> tf.Tensor:
        """Looks up rows one by one.

        Args:
            table: The table's name.
            shard: A rectangle of it on this rank.
            ids: int64 [n], rows of the table within the rectangle.

        Returns:
            float32 [n, columns of the rectangle]. Its gradient has every row once; those of one row add up in the order
            of the ids.
        """
        variable, ids = self._variables[table, shard], ids - shard.row_start
        if self.before_lookup is not None:
            self.before_lookup(variable, ids)
        return tf_ops.pooled_lookup([variable], ids, FixedHotness((1,)), feature_tables=[0], combiners=["sum"])

    def _announce(
        self,
        unique_keys: Sequence[tuple[str, ShardSpec]],
        keys: Sequence[tuple[str, ShardSpec]],
        batch: Batch,
    ) -> None:
        if self.before_lookup is None:
            return
        parts = tf.split(batch.ids, batch.counts, num=len(keys))
        for unique_key in unique_keys:
            own = [part for part, key in zip(parts, keys, strict=True) if key == unique_key]
            self.before_lookup(self._variables[unique_key], tf.concat(own, axis=0))
