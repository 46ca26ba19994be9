"""Variables of float16 and bfloat16 that are trained: with float32 gradients, and NumPy's bits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from rankhouse.kernels import arrays, optimizers, tf_ops
from rankhouse.kernels.bags import FixedHotness
from rankhouse.kernels.errors import ArgumentError
from rankhouse.kernels.optimizer_settings import Adagrad, Adam, Momentum, RowwiseAdagrad, Sgd
from rankhouse.kernels.rows import quantize_rows
from tests.kernels.batches import Batch, make_batch
from tests.kernels.training_steps import RULES, random_steps

pytestmark = pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16], ids=lambda dtype: dtype.name)

ROWS, DIM = 40, 6
IDS = tf.constant([1, 2, 1, 5], tf.int64)


def narrow(values: NDArray[np.float32], dtype: tf.DType) -> NDArray[Any]:
    return quantize_rows(values, dtype.name)


def variable_of(rows: NDArray[Any]) -> tf.Variable:
    """A variable of float16 or uint16 (bfloat16) rows, bit for bit."""
    return tf.Variable(tf.bitcast(rows, tf.bfloat16) if rows.dtype == np.uint16 else rows)


def bits_of(table: tf.Variable) -> NDArray[np.uint16]:
    return tf.bitcast(table, tf.uint16).numpy()  # type: ignore[no-any-return]


def random_table(dtype: tf.DType) -> NDArray[Any]:
    return narrow(np.random.default_rng(0).standard_normal((ROWS, DIM)).astype(np.float32), dtype)


def look_up(table: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    return tf_ops.pooled_lookup([table], ids, FixedHotness((1,)), feature_tables=[0], combiners=["sum"])


def eagerly(table: tf.Variable) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(look_up(table, IDS))
    return tape.gradient(loss, table)


def twice(table: tf.Variable) -> Any:
    with tf.GradientTape() as tape:
        loss = 0.25 * tf.reduce_sum(look_up(table, IDS)) + 0.75 * tf.reduce_sum(look_up(table, IDS))
    return tape.gradient(loss, table)


def over_a_function(table: tf.Variable) -> Any:
    forward = tf.function(lambda ids: tf.reduce_sum(look_up(table, ids)))
    with tf.GradientTape() as tape:
        loss = forward(IDS)
    return tape.gradient(loss, table)


def over_a_function_in_a_function(table: tf.Variable) -> Any:
    return tf.function(lambda: over_a_function(table))()


def in_a_function(table: tf.Variable) -> Any:
    return tf.function(lambda: eagerly(table))()


def in_a_branch(table: tf.Variable) -> Any:
    @tf.function
    def gradient(flag: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            sums = [lambda: tf.reduce_sum(look_up(table, IDS)), lambda: 2 * tf.reduce_sum(look_up(table, IDS))]
            loss = tf.cond(flag, *sums)
        return tape.gradient(loss, table)

    return gradient(tf.constant(True))


@pytest.mark.parametrize(
    "gradient_of", [eagerly, twice, over_a_function, over_a_function_in_a_function, in_a_function, in_a_branch]
)
def test_gradients_are_float32(gradient_of: Callable[[tf.Variable], Any], dtype: tf.DType) -> None:
    gradient = gradient_of(variable_of(random_table(dtype)))
    assert isinstance(gradient, tf.IndexedSlices)
    assert gradient.values.dtype == tf.float32
    expected = np.zeros((ROWS, DIM), np.float32)
    expected[[1, 2, 5]] = np.array([[2], [1], [1]])
    np.testing.assert_array_equal(tf.convert_to_tensor(gradient), expected)


def test_tensorflow_adds_up_no_gradients_in_loops(dtype: tf.DType) -> None:
    """TensorFlow's sums in a loop have the variable's dtype, whatever the gradient's."""
    table = variable_of(random_table(dtype))

    @tf.function
    def gradient(count: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.constant(0.0)
            for _ in tf.range(count):
                loss += tf.reduce_sum(look_up(table, IDS))
        return tape.gradient(loss, table)

    with pytest.raises(TypeError, match=f"have types .{dtype.name}, float32. that don't all match"):
        gradient(tf.constant(3))


def test_gradients_and_rows_equal_the_array_view(dtype: tf.DType) -> None:
    batch = make_batch(4, shapes=[(50, 16), (7, 5)], feature_tables=[0, 1, 0], batch_size=30)
    tables = [narrow(table, dtype) for table in batch.tables]
    weights = np.random.default_rng(1).random(len(batch.ids)).astype(np.float32)
    variables, weight_tensor = [variable_of(table) for table in tables], tf.constant(weights)
    with tf.GradientTape() as tape:
        tape.watch(weight_tensor)
        pooled = tf_ops.pooled_lookup(variables, batch.ids, batch.offsets, **batch.lookup, weights=weight_tensor)
        loss = tf.reduce_sum(pooled * batch.grad)
    *slices, weight_grad = tape.gradient(loss, [*variables, weight_tensor])
    given: dict[str, Any] = {"weights": weights, **batch.lookup}
    assert pooled.dtype == tf.float32
    np.testing.assert_array_equal(pooled, arrays.pooled_lookup(tables, batch.ids, batch.offsets, **given))
    gradients = arrays.pooled_lookup_gradient(
        batch.grad, batch.ids, batch.offsets, tables_shape=batch.tables_shape, **given
    )
    for ours, truth in zip(slices, gradients, strict=True):
        np.testing.assert_array_equal(ours.values, truth.rows)
        np.testing.assert_array_equal(ours.indices, truth.ids)
    truth = arrays.pooled_lookup_weight_gradient(batch.grad, tables, batch.ids, batch.offsets, **given)
    np.testing.assert_array_equal(weight_grad, truth)


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_ops_equal_the_array_view(rule: str, in_function: bool, dtype: tf.DType) -> None:
    chosen, array = RULES[rule], random_table(dtype)
    table, array_slots = variable_of(array), optimizers.make_slots(chosen, ROWS, DIM)
    slots = tf_ops.make_slots(table, chosen)
    assert all(slot.dtype == tf.float32 for slot in slots.variables)

    def one_step(ids: tf.Tensor, rows: tf.Tensor, step: tf.Tensor) -> None:
        given = {"learning_rate": 0.1, "step": step}
        tf_ops.apply(table, slots, tf.IndexedSlices(rows, ids), chosen, gradient_scale=tf.constant(0.5), **given)
        tf_ops.catch_up(table, slots, chosen, ids=tf.constant([7, 3, 3, -1, 99, 7]), **given)

    call: Callable[..., None] = tf.function(one_step) if in_function else one_step
    for step, gradient in random_steps(1, num_steps=4, num_rows=ROWS, dim=DIM, most_ids=9):
        call(tf.constant(gradient.ids), tf.constant(gradient.rows), tf.constant(step, tf.int64))
        given: dict[str, Any] = {"learning_rate": 0.1, "step": step}
        optimizers.apply(array, array_slots, gradient, chosen, gradient_scale=0.5, **given)
        optimizers.catch_up(array, array_slots, chosen, ids=np.array([3, 7]), **given)
    tf_ops.catch_up(table, slots, chosen, learning_rate=0.1, step=9)
    optimizers.catch_up(array, array_slots, chosen, learning_rate=0.1, step=9)
    np.testing.assert_array_equal(bits_of(table), array.view(np.uint16))
    for variable, expected in zip(slots.variables, array_slots.arrays, strict=True):
        np.testing.assert_array_equal(variable, expected)


def updated(batch: Batch, chosen: Any, dtype: tf.DType, *, fused: bool) -> list[tf.Variable]:
    tables = [variable_of(narrow(table, dtype)) for table in batch.tables]
    slots = [tf_ops.make_slots(table, chosen) for table in tables]
    for step in (1, 2):
        given: dict[str, Any] = {"learning_rate": 0.1, "step": step}
        if fused:
            tf_ops.pooled_lookup_update(
                tables, slots, chosen, batch.grad, batch.ids, batch.offsets, **batch.lookup, **given
            )
            continue
        with tf.GradientTape() as tape:
            pooled = tf_ops.pooled_lookup(tables, batch.ids, batch.offsets, **batch.lookup)
            loss = tf.reduce_sum(pooled * batch.grad)
        for table, its_slots, gradient in zip(tables, slots, tape.gradient(loss, tables), strict=True):
            tf_ops.apply(table, its_slots, gradient, chosen, **given)
    return [*tables, *(variable for its_slots in slots for variable in its_slots.variables)]


@pytest.mark.parametrize("chosen", [Sgd(), RowwiseAdagrad(), Adam(kind="exact"), Momentum(kind="dense")])
def test_the_fused_update_has_the_bits_of_the_two_steps(chosen: Any, dtype: tf.DType) -> None:
    batch = make_batch(3, shapes=[(30, 16), (12, 5)], feature_tables=[0, 1, 0], batch_size=9)
    for two, one in zip(*(updated(batch, chosen, dtype, fused=fused) for fused in (False, True)), strict=True):
        np.testing.assert_array_equal(tf.cast(two, tf.float32), tf.cast(one, tf.float32))


def test_a_step_without_its_number_is_refused(dtype: tf.DType) -> None:
    table = variable_of(random_table(dtype))
    slots, gradient = tf_ops.make_slots(table, Sgd()), tf.IndexedSlices(tf.ones((1, DIM)), tf.constant([1]))
    with pytest.raises(ArgumentError, match="step is missing: rows that are not float32 are rounded by its number"):
        tf_ops.apply(table, slots, gradient, Sgd(), learning_rate=1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="has step 0: expected at least 1"):
        tf_ops.apply(table, slots, gradient, Sgd(), learning_rate=1.0, step=0)
    np.testing.assert_array_equal(bits_of(table), random_table(dtype).view(np.uint16))


def test_slots_of_16_bits_are_refused(dtype: tf.DType) -> None:
    table = variable_of(random_table(dtype))
    slots = tf_ops.Slots((tf.Variable(tf.zeros((ROWS, DIM), dtype)),))
    gradient = tf.IndexedSlices(tf.ones((1, DIM)), tf.constant([1]))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"slot of .*: expected .* \[40,6\] with float"):
        tf_ops.apply(table, slots, gradient, Adagrad(), learning_rate=1.0, step=1)


def test_int8_rows_are_not_trained(dtype: tf.DType) -> None:
    rows = quantize_rows(np.ones((ROWS, DIM), np.float32), "int8")
    table = tf.Variable(rows, trainable=False)
    with pytest.raises(ArgumentError, match=r"is uint8 of shape .40, 14.: expected float32, float16 or bfloat16"):
        tf_ops.make_slots(table, Sgd())
    with pytest.raises(ArgumentError, match=r"is uint8 .int8 rows. and trainable, but only float32, float16 and"):
        look_up(tf.Variable(rows), IDS)
    mixed = [variable_of(random_table(dtype)), table]
    with tf.GradientTape() as tape:
        pooled = tf_ops.pooled_lookup(
            mixed, [1, 2], FixedHotness((1, 1)), feature_tables=[0, 1], combiners=["sum", "sum"]
        )
    slices, none = tape.gradient(pooled, mixed)
    assert slices.values.dtype == tf.float32
    assert none is None
