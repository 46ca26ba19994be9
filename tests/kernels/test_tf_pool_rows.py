"""Pooling of rows that are a tensor, against pooling of those of a variable: the same bits, forward and backward."""

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from rankhouse.kernels import tf_ops
from rankhouse.kernels.tf_ops import native

NUM_ROWS, DIM, BATCH = 9, 5, 6


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("combiners", [["sum"], ["mean"], ["sqrtn"], ["sum", "mean", "sqrtn"]])
@pytest.mark.parametrize("compiled", [False, True])
def test_pools_as_a_lookup_in_a_variable(combiners: list[str], weighted: bool, compiled: bool) -> None:
    generator = np.random.default_rng(5)
    rows = generator.normal(size=(NUM_ROWS, DIM)).astype(np.float32)
    lengths = generator.integers(0, 5, len(combiners) * BATCH)
    offsets = tf.constant(np.cumsum([0, *lengths]))
    # Not every row is among them.
    positions = tf.constant(generator.integers(0, NUM_ROWS - 1, lengths.sum()))
    weights = tf.constant(generator.normal(size=len(positions)).astype(np.float32)) if weighted else None
    upstream = tf.constant(generator.normal(size=(BATCH, len(combiners) * DIM)).astype(np.float32))
    table, tensor = tf.Variable(rows), tf.constant(rows)
    weight_list = [] if weights is None else [weights]

    def run() -> tuple[Any, ...]:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([tensor, *weight_list])
            expected = tf_ops.pooled_lookup(
                [table], positions, offsets, feature_tables=[0] * len(combiners), combiners=combiners, weights=weights
            )
            found = tf_ops.pool_rows(
                tensor, positions, offsets, max_rows=NUM_ROWS, combiners=combiners, weights=weights
            )
        of_table, *expected_weights = tape.gradient(expected, [table, *weight_list], upstream)
        return (expected, tf.convert_to_tensor(of_table), *expected_weights), (
            found,
            *tape.gradient(found, [tensor, *weight_list], upstream),
        )

    expected, found = (tf.function(run, autograph=False) if compiled else run)()
    assert len(found) == 2 + weighted
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))


def test_only_what_is_asked_for_is_calculated_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    recorder = Recorder(called)
    for name in ("lookup", "pool_rows"):
        # By its name: the package has a function that is called as its module.
        monkeypatch.setattr(import_module(f"rankhouse.kernels.tf_ops.{name}"), "ops", lambda: recorder)
    rows, weights = tf.Variable([[1.0], [2.0]]), tf.constant([3.0, 4.0])
    positions, offsets = tf.constant([0, 1], tf.int64), tf.constant([0, 2], tf.int64)
    for watched in ([], [weights]):
        with tf.GradientTape() as tape:
            tape.watch(watched)
            first = tf_ops.pooled_lookup(
                [rows], positions, offsets, feature_tables=[0], combiners=["sum"], weights=weights
            )
            second = tf_ops.pool_rows(
                tf.convert_to_tensor(rows), positions, offsets, max_rows=2, combiners=["sum"], weights=weights
            )
            total = tf.reduce_sum(first + second)
        of_rows, *of_weights = tape.gradient(total, [rows, *watched])
        assert tf.convert_to_tensor(of_rows).numpy().tolist() == [[6.0], [8.0]]
        assert [gradient.numpy().tolist() for gradient in of_weights] == [[2.0, 4.0]] * len(watched)
        assert len([name for name in called if name.endswith("weight_gradient")]) == 2 * len(watched)


class Recorder:
    """The ops, which notes the name of each that is called."""

    def __init__(self, called: list[str]) -> None:
        self._ops, self._called = native.ops(), called

    def __getattr__(self, name: str) -> Any:
        self._called.append(name)
        return getattr(self._ops, name)


@pytest.mark.parametrize("kind", [np.float32, list, tf.Variable])
def test_weights_may_be_all_that_becomes_a_tensor(kind: Any) -> None:
    rows, weights = tf.constant([[1.0], [2.0]]), kind([3.0, 4.0])
    positions, offsets = tf.constant([0, 1], tf.int64), tf.constant([0, 2], tf.int64)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        pooled = tf_ops.pool_rows(rows, positions, offsets, max_rows=2, combiners=["sum"], weights=weights)
    sources = [rows, weights] if isinstance(weights, tf.Variable) else [rows]
    assert pooled.numpy().tolist() == [[11.0]]
    gradients = [gradient.numpy().tolist() for gradient in tape.gradient(pooled, sources)]
    assert gradients == [[[3.0], [4.0]], [1.0, 2.0]][: len(sources)]


def test_weights_that_add_up_to_zero_give_zeros() -> None:
    rows, positions, weights = tf.ones([2, 1]), tf.constant([0, 1], tf.int64), tf.constant([1.0, -1.0])
    pooled = tf_ops.pool_rows(
        rows, positions, tf.constant([0, 2], tf.int64), max_rows=2, combiners=["mean"], weights=weights
    )
    assert pooled.numpy().tolist() == [[0.0]]


def test_takes_rows_and_adds_their_gradients_up() -> None:
    rows = tf.Variable([[1.0], [2.0], [3.0]])
    with tf.GradientTape() as tape:
        taken = tf_ops.take_rows(tf.convert_to_tensor(rows), tf.constant([2, 0, 2], tf.int64), max_rows=3)
    assert taken.numpy().ravel().tolist() == [3.0, 1.0, 3.0]
    assert tape.gradient(taken, rows, tf.constant([[1.0], [10.0], [100.0]])).numpy().ravel().tolist() == [10, 0, 101]


def test_a_gradient_of_all_rows_is_not_copied() -> None:
    rows, positions = tf.Variable([[1.0], [2.0]]), tf.constant([1, 0, 1], tf.int64)
    for all_rows in (False, True):
        with tf.GradientTape() as tape:
            taken = tf_ops.take_rows(tf.convert_to_tensor(rows), positions, max_rows=2, all_rows=all_rows)
        assert tape.gradient(taken, rows, tf.constant([[1.0], [10.0], [100.0]])).numpy().ravel().tolist() == [10, 101]


def test_no_rows_and_no_positions_are_fine() -> None:
    rows, positions = tf.zeros([0, 3]), tf.zeros([0], tf.int64)
    offsets = tf.zeros([3], tf.int64)
    assert (
        tf_ops.pool_rows(rows, positions, offsets, max_rows=1, combiners=["mean"]).numpy().tolist() == [[0.0] * 3] * 2
    )
    assert tf_ops.take_rows(rows, positions, max_rows=1).shape == (0, 3)


@pytest.mark.parametrize("position", [-1, 2])
def test_refuses_positions_that_are_no_rows(position: int) -> None:
    rows, positions = tf.zeros([2, 1]), tf.constant([position], tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf_ops.pool_rows(rows, positions, tf.constant([0, 1], tf.int64), max_rows=2, combiners=["sum"])
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf_ops.take_rows(rows, positions, max_rows=2)
