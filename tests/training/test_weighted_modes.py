"""Gradients of weights: on one rank those of TensorFlow and of NumPy, and on three ranks those of one, to the bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from rankhouse.kernels.optimizer_settings import Sgd
from rankhouse.kernels.reference.lookup import pooled_lookup_weight_gradient
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.optimizers.optimizers import Optimizer
from rankhouse.training.plan import Plan, TableSpec, place
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.specs import EmbeddingSpec, Input
from tests.training.launching import run_on_ranks
from tests.training.modes import loss_of
from tests.training.weighted_modes import NUM_KEYS, NUM_STEPS, batch, build, gradients, learn, look_up_all

ALONE = Ranks(0, 1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("weighted_modes")


@pytest.fixture(scope="module")
def alone(directory: Path) -> dict[str, Any]:
    return look_up_all(ALONE, directory)


@pytest.fixture(scope="module")
def together(directory: Path, alone: dict[str, Any]) -> list[dict[str, Any]]:
    return run_on_ranks(look_up_all, directory, num_ranks=3)


@pytest.mark.horovod
def test_gradients_are_those_of_one_rank_to_the_bit(together: list[dict[str, Any]], directory: Path) -> None:
    one = np.load(directory / "weighted-1-0.npz")
    many = [np.load(directory / f"weighted-3-{rank}.npz") for rank in range(3)]
    assert len(one.files) == NUM_STEPS * (7 + 2) * 3
    for name in one.files:
        assert np.array_equal(np.concatenate([arrays[name] for arrays in many]), one[name]), name
        assert np.abs(one[name]).max() > 0, name


def test_ids_that_were_sent_ahead_give_the_same_on_one_rank(alone: dict[str, Any]) -> None:
    assert all(answer["sent"] for answer in alone.values())


@pytest.mark.horovod
def test_ids_that_were_sent_ahead_give_the_same(together: list[dict[str, Any]]) -> None:
    assert all(answer["sent"] for answers in together for answer in answers.values())


@pytest.mark.horovod
def test_they_travel_where_they_are_asked_for_and_are_counted(together: list[dict[str, Any]]) -> None:
    for answers in together:
        for answer in answers.values():
            assert answer["free"]
            assert answer["bytes"] == answer["expected"]


def test_one_rank_agrees_with_tensorflow_and_numpy() -> None:
    layer = build(ALONE)
    learn(layer)
    tables = dict(zip((spec.name for spec in layer.specs), layer.get_weights(), strict=True))
    found = gradients(layer, 0)
    ids, weights, factors = batch(layer, 0)
    for number, item in enumerate(layer.inputs):
        if weights[number] is None:
            continue
        table = rows_by_id(tables[item.table])
        bags, values = ragged(ids[number]), ragged(weights[number])
        with tf.GradientTape() as tape:
            tape.watch(values.values)
            output = pool(tf.constant(table), bags, values.values, str(item.combiner))
            loss = loss_of(output, factors[number])
        expected = tape.gradient(loss, values.values)
        np.testing.assert_allclose(found[item.name], expected, rtol=2e-5, atol=2e-6, err_msg=item.name)
        truth = pooled_lookup_weight_gradient(
            (2 * (output - 0.1) * factors[number][:, np.newaxis]).numpy(),
            [table],
            bags.values.numpy(),
            bags.row_splits.numpy(),
            weights=values.values.numpy(),
            feature_tables=[0],
            combiners=[str(item.combiner)],
        )
        np.testing.assert_allclose(found[item.name], truth, rtol=2e-5, atol=2e-6, err_msg=item.name)


def rows_by_id(table: Any) -> np.ndarray:
    """The rows of a table that learns its keys, with zeros for those that it does not know."""
    if isinstance(table, np.ndarray):
        return table
    rows = np.zeros([NUM_KEYS, table.rows.shape[1]], np.float32)
    rows[table.keys] = table.rows
    return rows


def ragged(tensor: Any) -> tf.RaggedTensor:
    if isinstance(tensor, tf.SparseTensor):
        return tf.RaggedTensor.from_sparse(tensor)
    return tensor if isinstance(tensor, tf.RaggedTensor) else tf.RaggedTensor.from_tensor(tensor)


def pool(table: tf.Tensor, bags: tf.RaggedTensor, weights: tf.Tensor, combiner: str) -> tf.Tensor:
    def add_up(values: tf.Tensor) -> tf.Tensor:
        return tf.math.unsorted_segment_sum(values, bags.value_rowids(), bags.nrows())

    total = add_up(tf.gather(table, bags.values) * weights[:, tf.newaxis])
    if combiner == "sum":
        return total
    divisor = add_up(weights) if combiner == "mean" else tf.sqrt(add_up(weights**2) + 1e-30)
    return tf.math.divide_no_nan(total, divisor[:, tf.newaxis])


def hosted(cache_rows: int | None) -> DistributedEmbedding:
    table = TableSpec("a", 20, 4)
    placement = place(table, "column_wise", num_ranks=1, num_slices=2)
    if cache_rows:
        placement = replace(placement, device="host", cache_rows=cache_rows)
    inputs = [Input("x", "a", "mean")]
    layer = DistributedEmbedding([EmbeddingSpec(20, 4, "a")], inputs=inputs, plan=Plan((table,), (placement,), 1))
    Optimizer(Sgd(), tables=[shard.variable for shard in layer.shards], learning_rate=0.1)
    return layer


def gradient_of_weights(layer: DistributedEmbedding, *, training: bool) -> tf.Tensor:
    ids, weights = tf.constant([[3, 17], [3, 5]]), tf.constant([[1.0, 2.0], [0.5, 4.0]])
    layer([tf.constant([[7, 8, 9, 10]])], training=training)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        (output,) = layer([ids], weights=[weights], training=training)
        loss = tf.reduce_sum(output**2)
    return tape.gradient(loss, weights)


def test_a_table_on_the_host_gives_the_same_where_its_rows_stay() -> None:
    found, expected = (gradient_of_weights(hosted(rows), training=True) for rows in (8, None))
    assert np.array_equal(found, expected)
    assert np.abs(found).max() > 0
    with pytest.raises(tf.errors.InvalidArgumentError, match="needs rows of table a, which lies in host memory"):
        gradient_of_weights(hosted(8), training=False)


def test_weights_of_another_type_have_gradients_of_theirs() -> None:
    layer, ids = hosted(None), [tf.constant([[1, 2]])]
    weights = tf.Variable([[1.0, 3.0]], dtype=tf.float64)
    with tf.GradientTape() as tape:
        (output,) = layer(ids, weights=[tf.convert_to_tensor(weights)])
        loss = tf.reduce_sum(output)
    found = tape.gradient(loss, weights)
    assert found.dtype == tf.float64
    first, second = layer.get_weights()[0][1:3].sum(axis=1)
    np.testing.assert_allclose(found, [[3 * (first - second) / 16, (second - first) / 16]], rtol=1e-5)
