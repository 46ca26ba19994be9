from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from rankhouse.kernels.optimizer_settings import (
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Ftrl,
    Momentum,
    OptimizerSettings,
    Rmsprop,
    RowwiseAdagrad,
    Sgd,
)
from rankhouse.training.errors import OptimizerError
from rankhouse.training.optimizers.learning_rates import Warmup
from rankhouse.training.optimizers.optimizers import Optimizer

LEGACY = tf_keras.optimizers.legacy
RATE = tf_keras.optimizers.schedules.ExponentialDecay(0.3, decay_steps=5, decay_rate=0.8)

# Ours, and tf_keras' own.
PAIRS: dict[str, tuple[OptimizerSettings, Callable[[], Any]]] = {
    "sgd": (Sgd(), lambda: LEGACY.SGD(RATE)),
    "momentum": (Momentum(momentum=0.8), lambda: LEGACY.SGD(RATE, momentum=0.8)),
    "nesterov": (Momentum(nesterov=True), lambda: LEGACY.SGD(RATE, momentum=0.9, nesterov=True)),
    "adagrad": (Adagrad(), lambda: LEGACY.Adagrad(RATE)),
    "adagrad, other settings": (
        Adagrad(initial_accumulator_value=0.0, epsilon=1e-3),
        lambda: LEGACY.Adagrad(RATE, initial_accumulator_value=0.0, epsilon=1e-3),
    ),
    "dense adam": (Adam(kind="dense"), lambda: LEGACY.Adam(RATE)),
    "exact adam": (Adam(kind="exact"), lambda: LEGACY.Adam(RATE)),
    "ftrl": (
        Ftrl(l1_regularization_strength=0.01, l2_shrinkage_regularization_strength=0.1, beta=0.5),
        lambda: LEGACY.Ftrl(RATE, l1_regularization_strength=0.01, l2_shrinkage_regularization_strength=0.1, beta=0.5),
    ),
    "adadelta": (Adadelta(), lambda: LEGACY.Adadelta(RATE)),
}
# Of these tf_keras moves some slots of rows that a step does not touch, so every row is touched.
DENSE_PAIRS = {
    "adam": (Adam(), lambda: LEGACY.Adam(RATE)),
    "rmsprop": (Rmsprop(), lambda: LEGACY.RMSprop(RATE)),
    "adamax": (Adamax(), lambda: LEGACY.Adamax(RATE)),
}


def variables(seed: int) -> list[tf.Variable]:
    """A table and a dense kernel."""
    generator = np.random.default_rng(seed)
    return [tf.Variable(generator.normal(size=shape).astype(np.float32)) for shape in [(9, 3), (4, 2)]]


def gradients(seed: int, num_rows: int = 4) -> list[tf.Tensor | tf.IndexedSlices]:
    generator = np.random.default_rng(seed)
    rows = np.sort(generator.permutation(9)[:num_rows])
    values = tf.constant(generator.normal(size=(num_rows, 3)), tf.float32)
    kernel = tf.constant(generator.normal(size=(4, 2)), tf.float32)
    return [tf.IndexedSlices(values, tf.constant(rows), tf.constant([9, 3], tf.int64)), kernel]


def make(settings: OptimizerSettings, pair: list[tf.Variable], learning_rate: Any = RATE) -> Optimizer:
    return Optimizer(settings, tables=pair[:1], dense=pair[1:], learning_rate=learning_rate)


def train_beside_keras(settings: OptimizerSettings, keras: Any, wrap: Callable[..., Any], num_rows: int) -> None:
    ours, theirs = variables(0), variables(0)
    optimizer = make(settings, ours)

    @wrap
    def step(rows: tf.Tensor, indices: tf.Tensor, kernel: tf.Tensor) -> None:
        table = tf.IndexedSlices(rows, indices, tf.constant([9, 3], tf.int64))
        optimizer.apply_gradients([(table, ours[0]), (kernel, ours[1])])

    for number in range(20):
        table, kernel = gradients(number, num_rows)
        step(table.values, table.indices, kernel)
        keras.apply_gradients([(table, theirs[0]), (kernel, theirs[1])])
    optimizer.catch_up_all()
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(our.numpy(), their.numpy(), rtol=1e-5, atol=1e-5)
    assert optimizer.iterations.numpy() == 20


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("wrap", [lambda step: step, tf.function], ids=["eager", "graph"])
def test_equals_keras(name: str, wrap: Callable[..., Any]) -> None:
    settings, make_keras = PAIRS[name]
    train_beside_keras(settings, make_keras(), wrap, num_rows=4)


@pytest.mark.parametrize("name", DENSE_PAIRS)
def test_equals_keras_where_all_rows_are_touched(name: str) -> None:
    settings, make_keras = DENSE_PAIRS[name]
    train_beside_keras(settings, make_keras(), tf.function, num_rows=9)


ALL = [*(pair[0] for pair in PAIRS.values()), *(pair[0] for pair in DENSE_PAIRS.values()), Adam(kind="exact")]


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("settings", ALL, ids=lambda settings: type(settings).__name__)
def test_a_table_all_touched_and_a_dense_variable_are_the_same_step(
    settings: OptimizerSettings, decoupled: bool
) -> None:
    settings = type(settings)(**(vars(settings) | {"weight_decay": 0.05, "decoupled": decoupled}))
    (table, _), (dense, _) = variables(2), variables(2)
    optimizer = Optimizer(settings, tables=[table], dense=[dense], learning_rate=0.1)
    for number in range(5):
        gradient = tf.convert_to_tensor(gradients(number)[0])
        optimizer.apply_gradients([(gradient, table), (gradient, dense)], gradient_scale=tf.constant(0.7))
    np.testing.assert_allclose(table.numpy(), dense.numpy(), rtol=1e-5, atol=5e-6)
    for name, slot in optimizer.slots(table).items():
        np.testing.assert_allclose(slot, optimizer.slots(dense)[name], rtol=1e-5, atol=1e-6)


def test_rowwise_adagrad_has_one_number_for_a_row_and_is_adagrad_elsewhere() -> None:
    (table, kernel), (_, same) = variables(3), variables(3)
    optimizer = make(RowwiseAdagrad(), [table, kernel], 0.1)
    adagrad = Optimizer(Adagrad(), dense=[same], learning_rate=0.1)
    gradient, kernel_gradient = gradients(1)
    optimizer.apply_gradients([(gradient, table), (kernel_gradient, kernel)])
    adagrad.apply_gradients([(kernel_gradient, same)])
    np.testing.assert_array_equal(kernel, same)
    accumulator = np.full(9, 0.1, np.float32)
    accumulator[gradient.indices.numpy()] += np.mean(gradient.values.numpy() ** 2, axis=1)
    np.testing.assert_allclose(optimizer.slots(table)["accumulator"], accumulator, rtol=1e-6)


def test_rows_without_gradient_stay_as_they_are() -> None:
    table, kernel = variables(1)
    before = table.numpy()
    optimizer = make(Adagrad(), [table, kernel], 1.0)
    gradient = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([3, 5]), tf.constant([9, 3], tf.int64))
    optimizer.apply_gradients([(gradient, table)])
    assert np.flatnonzero((table.numpy() != before).any(axis=1)).tolist() == [3, 5]
    accumulator = optimizer.slots(table)["accumulator"].numpy()
    assert np.flatnonzero((accumulator != np.float32(0.1)).any(axis=1)).tolist() == [3, 5]


def test_learning_rates_are_remembered_for_longer_than_there_is_room() -> None:
    """The exact kind of Adam needs those of all steps; the room for them is 1,024 at first."""
    exact, dense = variables(2), variables(2)
    first, second = make(Adam(kind="exact"), exact), make(Adam(kind="dense"), dense)
    for optimizer in (first, second):
        optimizer.set_iterations(1020)

    @tf.function
    def step(rows: tf.Tensor, indices: tf.Tensor) -> None:
        for optimizer, (table, _) in ((first, exact), (second, dense)):
            optimizer.apply_gradients([(tf.IndexedSlices(rows, indices), table)])

    assert first._learning_rates is not None
    first._learning_rates._rates.assign(tf.zeros([1024]))
    for number in range(12):
        gradient = gradients(number, num_rows=2)[0]
        step(gradient.values, gradient.indices)
    first.catch_up_all()
    np.testing.assert_allclose(exact[0], dense[0], rtol=1e-5, atol=1e-5)


def test_learning_rates_follow_the_steps() -> None:
    table, kernel = variables(4)
    optimizer = make(Sgd(), [table, kernel], Warmup(0.8, num_steps=4))
    rates = []
    for _ in range(6):
        rates.append(float(optimizer.learning_rate()))
        optimizer.apply_gradients([(tf.zeros([4, 2]), kernel)])
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_an_impossible_learning_rate(value: float) -> None:
    with pytest.raises(OptimizerError, match=r"learning_rate is .*; expected a positive number"):
        Optimizer(Sgd(), learning_rate=value)


def test_refuses_variables_it_does_not_know_or_that_have_no_gradient() -> None:
    known, unknown = variables(5)
    optimizer = Optimizer(Adagrad(), tables=[known], learning_rate=1)
    with pytest.raises(OptimizerError, match="not among this optimizer's variables"):
        optimizer.apply_gradients([(tf.zeros([4, 2]), unknown)])
    with pytest.raises(OptimizerError, match="has no gradient: the loss does not depend on it"):
        optimizer.apply_gradients([(None, known)])
    with pytest.raises(OptimizerError, match="listed twice"):
        Optimizer(Sgd(), tables=[known, known], learning_rate=1)
    with pytest.raises(OptimizerError, match="listed twice"):
        Optimizer(Sgd(), tables=[known], dense=[known], learning_rate=1)


def test_refuses_rows_that_come_twice() -> None:
    table, kernel = variables(6)
    gradient = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([5, 5]), tf.constant([9, 3], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError):
        make(Sgd(), [table, kernel], 1).apply_gradients([(gradient, table)])
