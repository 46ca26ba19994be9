"""Dense layers in the forms that suit the processor: they give what Keras' layers give."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from numpy.typing import NDArray

from rankhouse.training.errors import ModelError
from rankhouse.training.models.dense_products import dense

# Widths of the parts and of the layer: one for each form that a product or a gradient can have.
SHAPES = [
    pytest.param((70, 10), 64, id="parts that add up"),
    pytest.param((300, 13), 1024, id="parts, and too many weights to convolve in float32"),
    pytest.param((256,), 96, id="a narrow gradient transposed"),
    pytest.param((128,), 64, id="a narrow gradient as a batch"),
    pytest.param((13,), 40, id="a few columns"),
]
BATCH_SIZES = (0, 1, 37)


def make_layer(num_inputs: int, num_outputs: int, *, precision: str = "float32") -> tf_keras.layers.Dense:
    """A layer with weights and biases by chance."""
    layer = tf_keras.layers.Dense(
        num_outputs,
        "relu",
        dtype=precision,
        kernel_initializer=tf_keras.initializers.GlorotUniform(seed=1),
        bias_initializer=tf_keras.initializers.RandomNormal(stddev=0.1, seed=2),
    )
    layer.build((None, num_inputs))
    return layer


def draw_parts(widths: tuple[int, ...], batch_size: int) -> list[NDArray[np.float32]]:
    """The parts of a batch."""
    draws = np.random.default_rng(batch_size)
    return [draws.standard_normal((batch_size, width), np.float32) for width in widths]


def expected(
    layer: tf_keras.layers.Dense, parts: list[NDArray[np.float32]]
) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
    """What the layer gives, and the gradients of its sum by the parts, the kernel and the bias, in float64."""
    kernel, bias = (weights.astype(np.float64) for weights in layer.get_weights())
    rows = np.concatenate(parts, axis=1).astype(np.float64)
    out = np.maximum(rows @ kernel + bias, 0)
    reached = (out > 0).astype(np.float64)
    cuts = np.cumsum([part.shape[1] for part in parts])[:-1]
    return out, [*np.split(reached @ kernel.T, cuts, axis=1), rows.T @ reached, reached.sum(axis=0)]


def computed(
    layer: tf_keras.layers.Dense, parts: list[NDArray[np.float32]]
) -> tuple[NDArray[np.float64], list[NDArray[np.float64]]]:
    """The same by `dense`, as a function that is traced once for all batches."""

    def step(*given: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(given)
            out = dense(layer, *given)
            total = tf.reduce_sum(tf.cast(out, tf.float32))
        return out, tape.gradient(total, [*given, layer.kernel, layer.bias])

    signature = [tf.TensorSpec([None, part.shape[1]], tf.float32) for part in parts]
    out, gradients = tf.function(step, input_signature=signature, autograph=False)(*parts)
    return tf.cast(out, tf.float64).numpy(), [tf.cast(gradient, tf.float64).numpy() for gradient in gradients]


@pytest.mark.parametrize(("widths", "num_outputs"), SHAPES)
def test_values_and_gradients_are_those_of_the_layer(widths: tuple[int, ...], num_outputs: int) -> None:
    layer = make_layer(sum(widths), num_outputs)
    for batch_size in BATCH_SIZES:
        parts = draw_parts(widths, batch_size)
        out, gradients = computed(layer, parts)
        expected_out, expected_gradients = expected(layer, parts)
        np.testing.assert_allclose(out, expected_out, atol=2e-5)
        for found, wanted in zip(gradients, expected_gradients, strict=True):
            np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_in_mixed_bfloat16_values_are_as_near_as_that_can_be() -> None:
    layer = make_layer(80, 64, precision="mixed_bfloat16")
    for batch_size in BATCH_SIZES:
        parts = draw_parts((70, 10), batch_size)
        out, _ = computed(layer, parts)
        # Both factors of a product are rounded by at most 2^-9 of themselves, and so is what comes out.
        magnitude = np.abs(np.concatenate(parts, axis=1)) @ np.abs(layer.get_weights()[0]) + 1
        np.testing.assert_array_less(np.abs(out - expected(layer, parts)[0]), 4 * 2.0**-9 * magnitude)


def test_in_mixed_bfloat16_gradients_of_biases_add_up_in_float32() -> None:
    layer = make_layer(13, 40, precision="mixed_bfloat16")
    layer.bias.assign(tf.fill([40], 100.0))  # So that ReLU lets all through.
    _, (_, _, bias_gradient) = computed(layer, draw_parts((13,), 1000))
    # A sum in bfloat16 would have ended at 256: one more is nothing to it.
    np.testing.assert_allclose(bias_gradient, 1000)


def test_a_batch_of_a_known_size_is_as_one_of_any() -> None:
    layer, parts = make_layer(80, 64), draw_parts((70, 10), 37)
    known = tf.function(lambda *given: dense(layer, *given), autograph=False)(*map(tf.constant, parts))
    np.testing.assert_allclose(known, expected(layer, parts)[0], atol=2e-5)
    nothing = tf.function(lambda *given: dense(layer, *given), autograph=False)(*(part[:0] for part in parts))
    assert nothing.shape == (0, 64)


def test_a_layer_without_relu_does_its_own() -> None:
    layer = tf_keras.layers.Dense(1, kernel_initializer="ones", dtype="float32")
    layer.build((None, 5))
    np.testing.assert_allclose(dense(layer, tf.ones([2, 3]), tf.ones([2, 2])), [[5], [5]])


def test_parts_that_are_not_as_wide_as_the_input_are_refused() -> None:
    layer = make_layer(80, 64)
    with pytest.raises(ModelError, match=r"rows of width 80, but its parts are \[70, 9\] wide, 79 together"):
        dense(layer, tf.zeros([1, 70]), tf.zeros([1, 9]))


def test_a_layer_that_is_not_built_is_refused_by_name() -> None:
    with pytest.raises(ModelError, match="layer 'hidden' has no weights yet: build it"):
        dense(tf_keras.layers.Dense(4, "relu", name="hidden"), tf.zeros([1, 3]))


def test_jacobians_are_those_of_the_layer() -> None:
    layer = make_layer(13, 40)
    found = []
    for call in (dense, lambda layer, rows: layer(rows)):
        with tf.GradientTape(persistent=True) as tape:
            rows = tf.constant(draw_parts((13,), 3)[0])
            tape.watch(rows)
            out = call(layer, rows)
        found.append((tape.batch_jacobian(out, rows), tape.jacobian(out, layer.kernel)))
    for values, wanted in zip(*found, strict=True):
        np.testing.assert_allclose(values, wanted, atol=1e-5)


@pytest.mark.parametrize("options", [{"use_bias": False}, {"activity_regularizer": "l2"}])
def test_what_has_no_such_form_is_left_to_the_layer(options: dict[str, object]) -> None:
    layer = tf_keras.layers.Dense(4, "relu", **options)
    layer.build((None, 3))
    rows = tf.ones([2, 3])
    out = dense(layer, rows[:, :1], rows[:, 1:])
    assert len(layer.losses) == ("activity_regularizer" in options)
    np.testing.assert_allclose(out, layer(rows), atol=1e-6)
