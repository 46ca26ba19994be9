from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from rankhouse.training.errors import OptimizerError
from rankhouse.training.optimizers import Adagrad, Optimizer, Sgd, Warmup

LEGACY = tf_keras.optimizers.legacy

PAIRS = {
    "sgd": (lambda v: Sgd(v, learning_rate=0.3), lambda: LEGACY.SGD(0.3)),
    "adagrad": (lambda v: Adagrad(v, learning_rate=0.3), lambda: LEGACY.Adagrad(0.3)),
    "adagrad, other settings": (
        lambda v: Adagrad(v, learning_rate=0.05, initial_accumulator_value=0.0, epsilon=1e-3),
        lambda: LEGACY.Adagrad(0.05, initial_accumulator_value=0.0, epsilon=1e-3),
    ),
}


def variables(seed: int) -> list[tf.Variable]:
    """A table and a dense kernel."""
    generator = np.random.default_rng(seed)
    return [tf.Variable(generator.normal(size=shape).astype(np.float32)) for shape in [(9, 3), (4, 2)]]


def gradients(seed: int) -> list[tf.Tensor | tf.IndexedSlices]:
    generator = np.random.default_rng(seed)
    rows = np.sort(generator.permutation(9)[:4])
    values = tf.constant(generator.normal(size=(4, 3)), tf.float32)
    kernel = tf.constant(generator.normal(size=(4, 2)), tf.float32)
    return [tf.IndexedSlices(values, tf.constant(rows), tf.constant([9, 3], tf.int64)), kernel]


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("wrap", [lambda step: step, tf.function], ids=["eager", "graph"])
def test_equals_keras(name: str, wrap: Callable) -> None:
    ours, theirs = variables(0), variables(0)
    optimizer, keras = PAIRS[name][0](ours), PAIRS[name][1]()

    @wrap
    def step(rows: tf.Tensor, indices: tf.Tensor, kernel: tf.Tensor) -> None:
        table = tf.IndexedSlices(rows, indices, tf.constant([9, 3], tf.int64))
        optimizer.apply_gradients([(table, ours[0]), (kernel, ours[1])])

    for number in range(20):
        table, kernel = gradients(number)
        step(table.values, table.indices, kernel)
        keras.apply_gradients([(table, theirs[0]), (kernel, theirs[1])])
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(our.numpy(), their.numpy(), rtol=2e-6, atol=2e-6)
    assert optimizer.iterations.numpy() == 20


def test_rows_without_gradient_stay_as_they_are() -> None:
    table, _ = ours = variables(1)
    before = table.numpy()
    optimizer = Adagrad(ours, learning_rate=1.0)
    gradient = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([3, 5]), tf.constant([9, 3], tf.int64))
    optimizer.apply_gradients([(gradient, table)])
    assert np.flatnonzero((table.numpy() != before).any(axis=1)).tolist() == [3, 5]
    assert np.flatnonzero((optimizer.slots(table)["accumulator"].numpy() != np.float32(0.1)).any(axis=1)).tolist() == [
        3,
        5,
    ]


def test_a_sparse_and_a_dense_gradient_are_the_same_step() -> None:
    (sparse, _), (dense, _) = one, other = variables(2), variables(2)
    gradient = gradients(3)[0]
    first, second = Adagrad(one, learning_rate=0.1), Adagrad(other, learning_rate=0.1)
    first.apply_gradients([(gradient, sparse)])
    second.apply_gradients([(tf.convert_to_tensor(gradient), dense)])
    np.testing.assert_allclose(sparse.numpy(), dense.numpy(), rtol=1e-6, atol=1e-7)


def test_warmup_grows_and_stays() -> None:
    (table, kernel) = variables(4)
    optimizer = Sgd([table, kernel], learning_rate=Warmup(0.8, num_steps=4))
    rates = []
    for _ in range(6):
        rates.append(float(optimizer.learning_rate()))
        optimizer.apply_gradients([(tf.zeros([4, 2]), kernel)])
    assert rates == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("kind", [Sgd, Adagrad])
def test_refuses_an_impossible_learning_rate(kind: type[Optimizer], value: float) -> None:
    with pytest.raises(OptimizerError, match=r"learning_rate is .*; expected a positive number"):
        kind([], learning_rate=value)


def test_refuses_other_impossible_settings() -> None:
    with pytest.raises(OptimizerError, match="initial_accumulator_value is -1"):
        Adagrad([], learning_rate=1, initial_accumulator_value=-1)
    with pytest.raises(OptimizerError, match="epsilon is 0"):
        Adagrad([], learning_rate=1, epsilon=0)
    with pytest.raises(OptimizerError, match="num_steps is 0"):
        Warmup(0.1, num_steps=0)


def test_refuses_variables_it_does_not_know_or_that_have_no_gradient() -> None:
    known, unknown = variables(5)
    optimizer = Adagrad([known], learning_rate=1)
    with pytest.raises(OptimizerError, match="not among this optimizer's variables"):
        optimizer.apply_gradients([(tf.zeros([4, 2]), unknown)])
    with pytest.raises(OptimizerError, match="has no gradient: the loss does not depend on it"):
        optimizer.apply_gradients([(None, known)])
    with pytest.raises(OptimizerError, match="listed twice"):
        Sgd([known, known], learning_rate=1)


def test_refuses_rows_that_come_twice() -> None:
    table, kernel = variables(6)
    gradient = tf.IndexedSlices(tf.ones([2, 3]), tf.constant([5, 5]), tf.constant([9, 3], tf.int64))
    with pytest.raises(tf.errors.InvalidArgumentError):
        Sgd([table, kernel], learning_rate=1).apply_gradients([(gradient, table)])
