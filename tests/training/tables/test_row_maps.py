"""Lookups in tables whose rows come and go: a map stands between an id and its row."""

import numpy as np
import pytest
import tensorflow as tf

from rankhouse.training.exchange.batch import Batch
from rankhouse.training.exchange.held_tables import HeldTables
from rankhouse.training.exchange.layout import Feature
from rankhouse.training.exchange.wire_format import WireFormat
from rankhouse.training.plan import ShardSpec
from rankhouse.training.tables.row_maps import NO_ROW, RowMap
from rankhouse.training.tables.specs import Input

SHARD = ShardSpec(rank=0, row_start=0, row_stop=4, column_start=0, column_stop=2)
INPUTS = [Input("x", "mapped"), Input("y", "plain", "mean"), Input("z", "mapped", "mean")]
FEATURES = [Feature(number, item.table, SHARD, WireFormat()) for number, item in enumerate(INPUTS)]
VALUES = np.arange(1, 9, dtype=np.float32).reshape(4, 2)


class Tens:
    """Ids 0, 10, 20, ... lie in the rows 3, 2, 1, ...; in training it notes what it was asked."""

    def __init__(self, num_ids: int | None) -> None:
        self.num_ids = num_ids
        self.asked: list[list[int]] = []

    def rows(self, ids: tf.Tensor, *, training: bool) -> tf.Tensor:
        if training:
            self.asked.append(ids.numpy().tolist())
        return tf.where(ids % 10 == 0, 3 - ids // 10, NO_ROW)


def held(row_map: RowMap) -> tuple[HeldTables, tf.Variable]:
    variables = {(name, SHARD): tf.Variable(VALUES) for name in ("mapped", "plain")}
    return HeldTables(INPUTS, variables, row_maps={("mapped", SHARD): row_map}), variables["mapped", SHARD]


def test_a_pooled_lookup_reads_the_rows_that_a_map_names() -> None:
    row_map = Tens(None)
    tables, variable = held(row_map)
    announced: list[list[int]] = []
    tables.before_lookup = lambda _, rows: announced.append(rows.numpy().tolist())
    batch = Batch(tf.constant([0, 11, 1, 2, 0, 30, -7], tf.int64), tf.constant([[2, 0], [1, 1], [0, 3]], tf.int64))
    for training in (True, tf.constant(True), False):
        with tf.GradientTape() as tape:
            rows = tables.pool(FEATURES, batch, ["sum", "mean", "mean"], training=training)
        # 11 and -7 have no row: zeros, which count as ids of their bag.
        expected = [[*VALUES[3], *VALUES[1], 0, 0], [0, 0, *VALUES[2], *(VALUES[3] + VALUES[0]) / 3]]
        np.testing.assert_allclose(rows, expected, rtol=1e-6)
        assert tape.gradient(rows, variable).indices.numpy().tolist() == [0, 3]
    assert row_map.asked == [[0, 11, 0, 30, -7]] * 2
    assert announced[0] == [3, 3, 0]


def test_rows_apart_come_from_the_map_too() -> None:
    tables, variable = held(Tens(None))
    with tf.GradientTape() as tape:
        rows = tables.rows("mapped", SHARD, tf.constant([10, 5, 10], tf.int64))
    np.testing.assert_array_equal(rows, [VALUES[2], [0, 0], VALUES[2]])
    assert tape.gradient(rows, variable).indices.numpy().tolist() == [2]


def test_an_id_out_of_range_never_comes_to_the_map() -> None:
    row_map = Tens(40)
    tables, _ = held(row_map)
    batch = Batch(tf.constant([0, 40, 1], tf.int64), tf.constant([[1], [0], [2]], tf.int64))
    message = "id 40 of input z is out of range: table mapped has 40 rows"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        tables.pool(FEATURES, batch, ["sum", "mean", "mean"], training=True)
    assert row_map.asked == []


def test_ids_of_other_tables_are_still_checked() -> None:
    tables, _ = held(Tens(None))
    batch = Batch(tf.constant([99, 4, -1], tf.int64), tf.constant([[1], [1], [1]], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError, match="id 4 of input y is out of range: table plain has 4 rows"):
        tables.pool(FEATURES, batch, ["sum", "mean", "mean"])
