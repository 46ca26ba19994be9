"""The optimizers on variables, against NumPy's view bit for bit and against TensorFlow's own."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from rankhouse.kernels import optimizers, tf_ops
from rankhouse.kernels.bags import SparseGradient
from rankhouse.kernels.errors import ArgumentError, UnsupportedError
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
from tests.kernels.batches import make_batch
from tests.kernels.training_steps import RULES, random_steps

ROWS, DIM = 40, 6


def as_slices(gradient: SparseGradient) -> tf.IndexedSlices:
    return tf.IndexedSlices(gradient.rows, gradient.ids, tf.constant([ROWS, DIM], tf.int64))


def random_table() -> Any:
    return np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32)


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_ops_equal_the_array_view(rule: str, in_function: bool) -> None:
    chosen = RULES[rule]
    table = tf.Variable(random_table())
    slots = tf_ops.make_slots(table, chosen)
    array, array_slots = random_table(), optimizers.make_slots(chosen, ROWS, DIM)
    rates = np.full(6, 0.1, np.float32)

    def one_step(ids: tf.Tensor, rows: tf.Tensor, step: tf.Tensor) -> None:
        gradient = tf.IndexedSlices(rows, ids)
        given = {"learning_rate": 0.1, "learning_rates": tf.constant(rates), "step": step}
        tf_ops.apply(table, slots, gradient, chosen, gradient_scale=tf.constant(0.5), **given)
        tf_ops.catch_up(table, slots, chosen, ids=tf.constant([7, 3, 3, -1, 99, 7]), **given)

    call: Callable[..., None] = tf.function(one_step) if in_function else one_step
    for step, gradient in random_steps(1, num_steps=6, num_rows=ROWS, dim=DIM, most_ids=9):
        call(tf.constant(gradient.ids), tf.constant(gradient.rows), tf.constant(step, tf.int64))
        given: dict[str, Any] = {"learning_rate": 0.1, "learning_rates": rates, "step": step}
        optimizers.apply(array, array_slots, gradient, chosen, gradient_scale=0.5, **given)
        optimizers.catch_up(array, array_slots, chosen, ids=np.array([3, 7]), **given)
    tf_ops.catch_up(table, slots, chosen, learning_rate=0.1, step=9)
    optimizers.catch_up(array, array_slots, chosen, learning_rate=0.1, step=9)
    np.testing.assert_array_equal(table, array)
    for variable, expected in zip(slots.variables, array_slots.arrays, strict=True):
        np.testing.assert_array_equal(variable, expected)
    if slots.last_steps is not None:
        np.testing.assert_array_equal(slots.last_steps, array_slots.last_steps)


LEGACY = tf_keras.optimizers.legacy
RATE = tf_keras.optimizers.schedules.ExponentialDecay(0.1, decay_steps=10, decay_rate=0.7)

# Ours, and tf_keras' own with the same settings.
KERAS: dict[str, tuple[OptimizerSettings, Callable[[], Any]]] = {
    "sgd": (Sgd(), lambda: LEGACY.SGD(RATE)),
    "momentum": (Momentum(momentum=0.8), lambda: LEGACY.SGD(RATE, momentum=0.8)),
    "nesterov": (Momentum(momentum=0.8, nesterov=True), lambda: LEGACY.SGD(RATE, momentum=0.8, nesterov=True)),
    "adagrad": (Adagrad(), lambda: LEGACY.Adagrad(RATE)),
    "adam": (Adam(), lambda: LEGACY.Adam(RATE)),
    "ftrl": (
        Ftrl(l1_regularization_strength=0.05, l2_regularization_strength=0.1, beta=0.2),
        lambda: LEGACY.Ftrl(RATE, l1_regularization_strength=0.05, l2_regularization_strength=0.1, beta=0.2),
    ),
    "ftrl with shrinkage": (
        Ftrl(learning_rate_power=-0.6, l2_shrinkage_regularization_strength=0.1),
        lambda: LEGACY.Ftrl(RATE, learning_rate_power=-0.6, l2_shrinkage_regularization_strength=0.1),
    ),
    "rmsprop": (Rmsprop(), lambda: LEGACY.RMSprop(RATE)),
    "adadelta": (Adadelta(), lambda: LEGACY.Adadelta(RATE)),
    "adamax": (Adamax(), lambda: LEGACY.Adamax(RATE)),
}


@pytest.mark.parametrize("name", KERAS)
def test_where_all_rows_are_touched_rules_equal_tf_keras(name: str) -> None:
    chosen, make_theirs = KERAS[name]
    ours, theirs = tf.Variable(random_table()), tf.Variable(random_table())
    slots, keras = tf_ops.make_slots(ours, chosen), make_theirs()
    rng = np.random.default_rng(2)
    for step in range(1, 31):
        gradient = tf.constant(rng.standard_normal((ROWS, DIM)), tf.float32)
        slices = tf.IndexedSlices(gradient, tf.range(ROWS))
        tf_ops.apply(ours, slots, slices, chosen, learning_rate=RATE(step - 1), step=step)
        keras.apply_gradients([(gradient, theirs)])
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-5)


EVERYWHERE: dict[str, tuple[Callable[[Any], OptimizerSettings], Callable[[], Any]]] = {
    "momentum": (lambda kind: Momentum(momentum=0.9, kind=kind), lambda: LEGACY.SGD(RATE, momentum=0.9)),
    "nesterov": (
        lambda kind: Momentum(momentum=0.9, nesterov=True, kind=kind),
        lambda: LEGACY.SGD(RATE, momentum=0.9, nesterov=True),
    ),
    "adam": (lambda kind: Adam(kind=kind), lambda: LEGACY.Adam(RATE)),
}


@pytest.mark.parametrize("kind", ["dense", "exact"])
@pytest.mark.parametrize("name", EVERYWHERE)
def test_the_dense_and_exact_kinds_equal_tf_keras_with_dense_gradients(name: str, kind: str) -> None:
    make_ours, make_theirs = EVERYWHERE[name]
    chosen = make_ours(kind)
    ours, theirs = tf.Variable(random_table()), tf.Variable(random_table())
    slots, keras = tf_ops.make_slots(ours, chosen), make_theirs()
    rates = tf.constant([float(RATE(step)) for step in range(80)])
    for step, gradient in random_steps(5, num_steps=80, num_rows=ROWS, dim=DIM, most_ids=4):
        looked_up = np.array([step % ROWS, *gradient.ids])
        if step > 1:
            given = {"learning_rate": rates[step - 2], "learning_rates": rates}
            tf_ops.catch_up(ours, slots, chosen, ids=looked_up, step=step - 1, **given)
        rows = [tf.gather(table, looked_up) for table in (ours, theirs)]
        np.testing.assert_allclose(*rows, rtol=1e-5, atol=1e-5)
        given = {"learning_rate": rates[step - 1], "learning_rates": rates}
        tf_ops.apply(ours, slots, as_slices(gradient), chosen, step=step, **given)
        keras.apply_gradients([(tf.convert_to_tensor(as_slices(gradient)), theirs)])
    tf_ops.catch_up(ours, slots, chosen, step=80, **given)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_the_lazy_kind_differs_from_the_dense_one() -> None:
    tables = [tf.Variable(random_table()) for _ in range(2)]
    for table, kind in zip(tables, ("lazy", "dense"), strict=True):
        slots = tf_ops.make_slots(table, Adam(kind=kind))  # type: ignore[arg-type]
        for step, gradient in random_steps(5, num_steps=5, num_rows=ROWS, dim=DIM, most_ids=4):
            tf_ops.apply(table, slots, as_slices(gradient), Adam(kind=kind), learning_rate=0.1, step=step)  # type: ignore[arg-type]
    assert np.max(np.abs(tables[0].numpy() - tables[1].numpy())) > 0.01


def test_clipping_by_the_global_norm_is_tensorflows() -> None:
    rng = np.random.default_rng(1)
    dense = tf.constant(rng.standard_normal((3, 4)), tf.float32)
    slices = tf.IndexedSlices(tf.constant(rng.standard_normal((5, DIM)), tf.float32), tf.range(5))
    norm = tf.sqrt(tf_ops.squared_norm([dense, slices]))
    (_, clipped), theirs = tf.clip_by_global_norm([dense, slices], 0.5)
    np.testing.assert_allclose(norm, theirs, rtol=1e-6)
    ours, expected = tf.Variable(random_table()), tf.Variable(random_table())
    scale = 0.5 / tf.maximum(norm, 0.5)
    tf_ops.apply(ours, tf_ops.make_slots(ours, Sgd()), slices, Sgd(), learning_rate=1.0, gradient_scale=scale)
    expected.scatter_sub(clipped)
    np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)


def test_decoupled_weight_decay_is_adamws() -> None:
    chosen = Adam(weight_decay=0.05, decoupled=True)
    ours, theirs = tf.Variable(random_table()), tf.Variable(random_table())
    slots, keras = tf_ops.make_slots(ours, chosen), tf_keras.optimizers.AdamW(0.1, weight_decay=0.05, jit_compile=False)
    rng = np.random.default_rng(2)
    for step in range(1, 11):
        gradient = tf.constant(rng.standard_normal((ROWS, DIM)), tf.float32)
        tf_ops.apply(ours, slots, tf.IndexedSlices(gradient, tf.range(ROWS)), chosen, learning_rate=0.1, step=step)
        keras.apply_gradients([(gradient, theirs)])
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=2e-5)


def test_squared_norm_of_nothing_is_0() -> None:
    assert tf_ops.squared_norm([]).numpy() == 0
    assert tf_ops.squared_norm([tf.zeros((0, 3)), tf.constant(2.0)]).numpy() == 4


@pytest.mark.parametrize("rule", RULES)
def test_the_fused_update_has_the_bits_of_the_two_steps(rule: str) -> None:
    chosen = RULES[rule]
    batch = make_batch(3, shapes=[(30, 16), (12, 5)], feature_tables=[0, 1, 0], batch_size=9)
    weights = np.random.default_rng(1).random(len(batch.ids)).astype(np.float32)

    def fused_step(tables: Any, slots: Any, given: Any) -> None:
        batch_of = (batch.grad, batch.ids, batch.offsets)
        tf_ops.pooled_lookup_update(tables, slots, chosen, *batch_of, **batch.lookup, weights=weights, **given)

    states = []
    for fused in (False, True):
        tables = [tf.Variable(table) for table in batch.tables]
        slots = [tf_ops.make_slots(table, chosen) for table in tables]
        for step in (1, 2, 5):
            given: dict[str, Any] = {"learning_rate": 0.1, "step": step, "gradient_scale": 0.5}
            if fused:
                tf.function(lambda: fused_step(tables, slots, given))()  # noqa: B023
                continue
            with tf.GradientTape() as tape:
                pooled = tf_ops.pooled_lookup(tables, batch.ids, batch.offsets, **batch.lookup, weights=weights)
                loss = tf.reduce_sum(pooled * batch.grad)
            for table, its_slots, gradient in zip(tables, slots, tape.gradient(loss, tables), strict=True):
                tf_ops.apply(table, its_slots, gradient, chosen, **given)
        states.append([*tables, *(variable for its_slots in slots for variable in its_slots.variables)])
    for two, one in zip(*states, strict=True):
        np.testing.assert_array_equal(two, one)


def test_the_fused_update_refuses_what_does_not_fit() -> None:
    tables = [tf.Variable(random_table())]
    slots = [tf_ops.make_slots(tables[0], Adagrad())]

    def update(grad: tf.Tensor, ids: list[int], its_slots: list[tf_ops.Slots]) -> None:
        tf_ops.pooled_lookup_update(
            *(tables, its_slots, Adagrad(), grad, np.array(ids), np.array([0, 1, 2])),
            feature_tables=[0],
            combiners=["sum"],
            learning_rate=0.1,
        )

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"id 40 of feature 0 .sample 1"):
        update(tf.ones((2, DIM)), [0, 40], slots)
    with pytest.raises(tf.errors.InvalidArgumentError, match="grad"):
        update(tf.ones((3, DIM)), [0, 1], slots)
    with pytest.raises(ArgumentError, match="1 tables and 0 slots"):
        update(tf.ones((2, DIM)), [0, 1], [])
    np.testing.assert_array_equal(tables[0], random_table())


def test_an_update_does_not_reach_what_was_read_before() -> None:
    table = tf.Variable(random_table())
    before = table.read_value()
    slices = tf.IndexedSlices(tf.ones((1, DIM)), tf.constant([3]))
    tf_ops.apply(table, tf_ops.make_slots(table, Sgd()), slices, Sgd(), learning_rate=1.0)
    np.testing.assert_array_equal(before, random_table())
    np.testing.assert_array_equal(table[3], random_table()[3] - 1)


@pytest.mark.parametrize("rule", ["sgd", "adam", "exact momentum"])
@pytest.mark.parametrize(
    ("ids", "values", "message"),
    [
        ([1, 1], tf.ones((2, DIM)), "must increase, but 1 at position 1 follows 1: combine duplicates first"),
        ([1, ROWS], tf.ones((2, DIM)), "id 40 at position 1 of the gradient is out of range: table 0 has 40 rows"),
        ([1, 2], tf.ones((3, DIM)), "expected .U. and .U, 6."),
        ([1, 2], tf.ones((2, 5)), "expected .U. and .U, 6."),
    ],
)
def test_wrong_gradients_change_nothing(rule: str, ids: list[int], values: tf.Tensor, message: str) -> None:
    table = tf.Variable(random_table())
    slots = tf_ops.make_slots(table, RULES[rule])
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        tf_ops.apply(table, slots, tf.IndexedSlices(values, tf.constant(ids)), RULES[rule], learning_rate=1.0)
    np.testing.assert_array_equal(table, random_table())
    for slot in slots.variables:
        np.testing.assert_array_equal(slot, np.zeros((ROWS, DIM)))


ONE_ROW = tf.IndexedSlices(tf.ones((1, DIM)), tf.constant([1]))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"learning_rate": float("nan")}, "learning_rate -?nan"),
        ({"step": 0}, "step 0: expected at least 1"),
        ({"gradient_scale": 0.0}, "gradient_scale is 0: .* is the norm of the gradients infinite"),
        ({"gradient_scale": tf.ones(2)}, r"must have the shape \[\], but one has \[2\]"),
        ({"step": 4, "learning_rates": tf.ones(2)}, "learning_rates has 2 elements: step 4 needs those of all"),
    ],
)
def test_wrong_steps_are_refused(given: dict[str, Any], message: str) -> None:
    table, chosen = tf.Variable(random_table()), Adam(kind="exact")
    slots = tf_ops.make_slots(table, chosen)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        tf_ops.apply(table, slots, ONE_ROW, chosen, **({"learning_rate": 0.1} | given))
    np.testing.assert_array_equal(table, random_table())


def test_slots_of_other_tables_are_refused() -> None:
    table, other = tf.Variable(random_table()), tf.Variable(tf.ones((ROWS + 1, DIM)))
    for chosen, shape in ((Adagrad(), r"\[40,6\]"), (RowwiseAdagrad(), r"\[40\]")):
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"expected an initialized one of shape {shape}"):
            tf_ops.apply(table, tf_ops.make_slots(other, chosen), ONE_ROW, chosen, learning_rate=1.0)
    exact = Momentum(kind="exact")
    mixed = tf_ops.Slots(tf_ops.make_slots(table, exact).variables, tf_ops.make_slots(other, exact).last_steps)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"shape \[40\] with int32"):
        tf_ops.apply(table, mixed, ONE_ROW, exact, learning_rate=1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="are the same variable: each needs its own"):
        tf_ops.apply(table, tf_ops.Slots((table,)), ONE_ROW, Adagrad(), learning_rate=1.0)
    with pytest.raises(ArgumentError, match=r"made for other settings: Adam needs .'m', 'v'. and last_steps"):
        tf_ops.apply(table, tf_ops.make_slots(table, Adam()), ONE_ROW, Adam(kind="exact"), learning_rate=1.0)


def test_a_variable_of_another_type_has_no_slots() -> None:
    with pytest.raises(ArgumentError, match=r"is float64 of shape .2, 3.: expected float32"):
        tf_ops.make_slots(tf.Variable(tf.ones((2, 3), tf.float64)), Adagrad())


def test_xla_is_refused() -> None:
    table = tf.Variable(random_table())
    slots = tf_ops.make_slots(table, Sgd())

    @tf.function(jit_compile=True)
    def update() -> None:
        tf_ops.apply(table, slots, ONE_ROW, Sgd(), learning_rate=1.0)

    with pytest.raises(UnsupportedError, match="apply has no XLA version"):
        update()
