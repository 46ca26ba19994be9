from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from rankhouse.kernels import interaction, tf_ops
from rankhouse.kernels.errors import ArgumentError, UnsupportedError
from rankhouse.kernels.tf_ops.native import ops

DIM = 16


def inputs(
    batch_size: int, num_embeddings: int = 26, *, with_bottom: bool = True
) -> tuple[tf.Tensor | None, tf.Tensor]:
    rng = np.random.default_rng(0)
    bottom = tf.constant(rng.standard_normal((batch_size, DIM), np.float32)) if with_bottom else None
    return bottom, tf.constant(rng.standard_normal((batch_size, num_embeddings * DIM), np.float32))


def tensorflows_own(bottom: tf.Tensor | None, embeddings: tf.Tensor, self_interaction: bool) -> tf.Tensor:
    """The interaction by TensorFlow's operations."""
    rows = embeddings if bottom is None else tf.concat([bottom, embeddings], 1)
    vectors = tf.reshape(rows, [tf.shape(rows)[0], rows.shape[1] // DIM, DIM])
    products = tf.matmul(vectors, vectors, transpose_b=True)
    mask = np.tril(np.ones(products.shape[1:], bool), k=0 if self_interaction else -1)
    pairs = tf.boolean_mask(products, mask, axis=1)
    return pairs if bottom is None else tf.concat([bottom, pairs], 1)


@pytest.mark.parametrize("in_a_function", [False, True])
@pytest.mark.parametrize("self_interaction", [False, True])
@pytest.mark.parametrize("with_bottom", [False, True])
def test_values_and_gradients_equal_tensorflows(with_bottom: bool, self_interaction: bool, in_a_function: bool) -> None:
    bottom, embeddings = inputs(50, with_bottom=with_bottom)
    sources = [tensor for tensor in (bottom, embeddings) if tensor is not None]

    def ours() -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(sources)
            out = tf_ops.dot_interaction(bottom, embeddings, dim=DIM, self_interaction=self_interaction)
            loss = tf.reduce_sum(tf.sin(out))
        return out, tape.gradient(loss, sources)

    with tf.GradientTape() as tape:
        tape.watch(sources)
        expected = tensorflows_own(bottom, embeddings, self_interaction)
        loss = tf.reduce_sum(tf.sin(expected))
    out, gradients = (tf.function(ours) if in_a_function else ours)()
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    for gradient, truth in zip(gradients, tape.gradient(loss, sources), strict=True):
        np.testing.assert_allclose(gradient, truth, rtol=1e-4, atol=1e-4)


def test_the_op_equals_the_array_view() -> None:
    bottom, embeddings = inputs(7)
    np.testing.assert_array_equal(
        tf_ops.dot_interaction(bottom, embeddings, dim=DIM),
        interaction.dot_interaction(bottom.numpy(), embeddings.numpy(), dim=DIM),
    )


def test_shapes_are_known_in_graphs() -> None:
    shapes: list[Any] = []

    @tf.function(input_signature=[tf.TensorSpec([None, DIM]), tf.TensorSpec([None, 26 * DIM])])  # type: ignore[untyped-decorator]
    def trace(bottom: tf.Tensor, embeddings: tf.Tensor) -> list[tf.Tensor]:
        out = tf_ops.dot_interaction(bottom, embeddings, dim=DIM)
        gradients = tf.gradients(out, [bottom, embeddings])
        shapes.extend(tensor.shape.as_list() for tensor in (out, *gradients))
        return [out, *gradients]

    results = trace(*inputs(5))
    assert shapes == [[None, DIM + 351], [None, DIM], [None, 26 * DIM]]
    assert [result.shape.as_list() for result in results] == [[5, DIM + 351], [5, DIM], [5, 26 * DIM]]


@pytest.mark.parametrize(("batch_size", "num_embeddings"), [(0, 26), (4, 0), (0, 0)])
def test_nothing_may_be_there(batch_size: int, num_embeddings: int) -> None:
    bottom, embeddings = inputs(batch_size, num_embeddings)
    with tf.GradientTape() as tape:
        tape.watch([bottom, embeddings])
        out = tf_ops.dot_interaction(bottom, embeddings, dim=DIM)
    assert out.shape == (batch_size, DIM + num_embeddings * (num_embeddings + 1) // 2)
    gradients = tape.gradient(out, [bottom, embeddings])
    assert [gradient.shape for gradient in gradients] == [bottom.shape, embeddings.shape]


def test_what_does_not_fit_is_refused() -> None:
    bottom, embeddings = inputs(4)
    with pytest.raises(ArgumentError, match="dim is 0"):
        tf_ops.dot_interaction(bottom, embeddings, dim=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"embeddings have shape \[4,416\]: expected \[B, F"):
        tf_ops.dot_interaction(None, embeddings, dim=15)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"bottom has shape \[3,16\]: expected \[4,16\] beside"):
        tf_ops.dot_interaction(bottom[:3], embeddings, dim=DIM)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected 0 to 2\^15 embeddings"):
        tf_ops.dot_interaction(None, tf.zeros([1, 2**15 + 1]), dim=1)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"grad has shape \[4,3\]: expected \[4,367\]"):
        ops().rankhouse_dot_interaction_gradient(
            grad=tf.zeros([4, 3]), bottom=[bottom], embeddings=embeddings, dim=DIM, self_interaction=False
        )
    with pytest.raises(tf.errors.InvalidArgumentError, match="there are 2 bottoms: expected 0 or 1"):
        ops().rankhouse_dot_interaction(bottom=[bottom, bottom], embeddings=embeddings, dim=DIM, self_interaction=False)


def test_shapes_that_do_not_fit_are_refused_while_tracing() -> None:
    with pytest.raises(ValueError, match="Dimensions must be equal"):
        tf.function(lambda: tf_ops.dot_interaction(tf.zeros([3, DIM]), tf.zeros([4, DIM]), dim=DIM))()


def test_xla_is_refused() -> None:
    bottom, embeddings = inputs(4)
    compiled = tf.function(lambda: tf_ops.dot_interaction(bottom, embeddings, dim=DIM), jit_compile=True)
    with pytest.raises(UnsupportedError, match="dot_interaction has no XLA version"):
        compiled()
