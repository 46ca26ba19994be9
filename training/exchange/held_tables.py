"""Lookups in the tables, or parts of them, that this rank holds."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from rankhouse.kernels import tf_ops
from rankhouse.kernels.bags import FixedHotness
from rankhouse.training.exchange.bad_ids import count_bad, require_rows
from rankhouse.training.exchange.batch import Batch
from rankhouse.training.exchange.layout import Feature
from rankhouse.training.plan import ShardSpec
from rankhouse.training.tables.host_rows import HostRows, check_gradient, check_weights, host_rows_of
from rankhouse.training.tables.row_maps import NO_ROW, RowMap, find_rows
from rankhouse.training.tables.specs import Input

_Key = tuple[str, ShardSpec]


class HeldTables:
    """The variables of one rank, by table and rectangle.

    Attributes:
        before_lookup: Called with a variable and the ids [n], rows of the variable, that are about to be looked up in
            it, where it is set.
    """

    def __init__(
        self,
        inputs: Sequence[Input],
        variables: Mapping[_Key, tf.Variable],
        *,
        row_maps: Mapping[_Key, RowMap] | None = None,
    ) -> None:
        """Takes the variables, and for those that have not one row for each id of their rectangle what maps ids."""
        self._inputs = list(inputs)
        self._variables = dict(variables)
        self._row_maps = dict(row_maps or {})
        self.before_lookup: Callable[[tf.Variable, tf.Tensor], Any] | None = None

    def pool(
        self,
        features: Sequence[Feature],
        batch: Batch,
        combiners: Sequence[str | None],
        *,
        training: bool | tf.Tensor = False,
    ) -> tf.Tensor:
        """Pools a batch of the given features.

        Args:
            features: Of this rank, with rectangles that have all rows.
            batch: Their ids.
            combiners: One for each of the layer's inputs.
            training: As maps of rows want to know it.

        Returns:
            float32 [B, summed widths of the features].

        Raises:
            tf.errors.InvalidArgumentError: An id is not a row of its table.
        """
        keys = [(feature.table, feature.shard) for feature in features]
        unique_keys = list(dict.fromkeys(keys))
        variables = [self._variables[key] for key in unique_keys]
        inputs = [self._inputs[feature.number] for feature in features]
        batch = self._to_rows(keys, batch, inputs, training)
        self._announce(unique_keys, keys, batch)
        weights, hosted = batch.weights, self._hosted(unique_keys)
        if weights is not None and hosted:
            weights = check_weights(weights, hosted, training)
        found = tf_ops.pooled_lookup_counted(
            variables,
            batch.ids,
            batch.offsets,
            feature_tables=[unique_keys.index(key) for key in keys],
            combiners=[combiners[feature.number] or "sum" for feature in features],
            weights=weights,
            out_of_range="zero",
        )
        plain = [at for at, key in enumerate(unique_keys) if key not in self._row_maps]
        num_bad = tf.reduce_sum(tf.gather(found.num_bad_ids, tf.constant(plain, tf.int64)))
        num_rows = [None if key in self._row_maps else key[1].row_stop for key in keys]
        (rows,) = require_rows([found.rows], num_bad, [batch], inputs, num_rows)
        return check_gradient(rows, hosted) if hosted else rows

    def rows(self, table: str, shard: ShardSpec, ids: tf.Tensor, *, training: bool | tf.Tensor = False) -> tf.Tensor:
        """Looks up rows one by one.

        Args:
            table: The table's name.
            shard: A rectangle of it on this rank.
            ids: int64 [n], rows of the table within the rectangle.
            training: As maps of rows want to know it.

        Returns:
            float32 [n, columns of the rectangle]. Its gradient has every row once; those of one row add up in the order
            of the ids.
        """
        key = (table, shard)
        row_map, variable = self._row_maps.get(key), self._variables[key]
        rows = ids - shard.row_start if row_map is None else find_rows(row_map, ids, training)
        if self.before_lookup is not None:
            self.before_lookup(variable, self._held(key, rows))
        found = tf_ops.pooled_lookup(
            [variable],
            rows,
            FixedHotness((1,)),
            feature_tables=[0],
            combiners=["sum"],
            out_of_range="error" if row_map is None else "zero",
        )
        hosted = self._hosted([key])
        return check_gradient(found, hosted) if hosted else found

    def _hosted(self, keys: Sequence[_Key]) -> list[HostRows]:
        return [found for found in map(host_rows_of, map(self._variables.__getitem__, keys)) if found]

    def _to_rows(
        self, keys: Sequence[_Key], batch: Batch, inputs: Sequence[Input], training: bool | tf.Tensor
    ) -> Batch:
        """Puts rows of the variables in the place of the ids that are mapped."""
        mapped = [key for key in dict.fromkeys(keys) if key in self._row_maps]
        if not mapped:
            return batch
        parts = tf.split(self._checked(keys, batch, inputs), batch.counts, num=len(keys))
        for key in mapped:
            own = [at for at, other in enumerate(keys) if other == key]
            rows = find_rows(self._row_maps[key], tf.concat([parts[at] for at in own], axis=0), training)
            sizes = [tf.size(parts[at], out_type=tf.int64) for at in own]
            for at, part in zip(own, tf.split(rows, tf.stack(sizes), num=len(own)), strict=True):
                parts[at] = part
        return Batch(tf.concat(parts, axis=0), batch.lengths, batch.weights)

    def _checked(self, keys: Sequence[_Key], batch: Batch, inputs: Sequence[Input]) -> tf.Tensor:
        """Returns the ids, of which no wrong one may come to a map: it might load it."""
        num_ids = [self._row_maps[key].num_ids if key in self._row_maps else None for key in keys]
        if all(limit is None for limit in num_ids):
            return batch.ids
        (ids,) = require_rows([batch.ids], count_bad(batch, num_ids), [batch], inputs, num_ids)
        return ids

    def _held(self, key: _Key, rows: tf.Tensor) -> tf.Tensor:
        return rows if key not in self._row_maps else tf.boolean_mask(rows, rows != NO_ROW)

    def _announce(
        self,
        unique_keys: Sequence[_Key],
        keys: Sequence[_Key],
        batch: Batch,
    ) -> None:
        if self.before_lookup is None:
            return
        parts = tf.split(batch.ids, batch.counts, num=len(keys))
        for unique_key in unique_keys:
            own = [part for part, key in zip(parts, keys, strict=True) if key == unique_key]
            self.before_lookup(self._variables[unique_key], self._held(unique_key, tf.concat(own, axis=0)))
