"""Fully connected layers with ReLU, in the forms in which TensorFlow's oneDNN operations are fastest on processors.

The layers stay Keras' own: this computes what they do, to rounding, and their gradients. Measured on two cores with
AVX-512 and AMX, CPU time against Keras' form:

- The gradient of a weight, x^T g, has both factors tall. As a plain MatMul it runs at half the speed of the other
  products where it is narrow; as a batch of one product, or transposed, it does not.
- In bfloat16 a MatMul that is fused with bias and ReLU is two to three times as slow as one that is not, as oneDNN
  takes another implementation. The same product as a 1x1 convolution is fused and fast. In float32 that is so for
  small weights only.
- Batches of one product are `BatchMatMul`'s, not `BatchMatMulV2`'s, which is as fast: vectorized, as for Jacobians, the
  latter has products of rank four, which oneDNN calculates wrongly in TensorFlow 2.17, or ends the process.
- What lies side by side in front of a layer need not be put together, nor its gradient be cut apart: the products
  add up, within the convolution.

Shapes: B samples, K inputs, N outputs of a layer.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tf_keras

from rankhouse.training.errors import ModelError

# Most float32 weights of a layer whose product is as fast by convolution: above, MatMul is up to 1.5 times as fast.
_FEW_WEIGHTS = 1 << 18
_WIDE = 64


def dense(layer: tf_keras.layers.Dense, *parts: tf.Tensor) -> tf.Tensor:
    """Does what a built layer does to parts that lie side by side.

    On a GPU the layer itself does it, and one without a bias or with more than ReLU behind it.

    Args:
        layer: In float32 or mixed bfloat16.
        parts: [B, K_i], at least one, whose widths add up to K. B may be 0.

    Returns:
        [B, N] in the layer's compute dtype.

    Raises:
        ModelError: The layer is not built, or the parts are not as wide together as its input.
    """
    if not layer.built:
        raise ModelError(f"layer {layer.name!r} has no weights yet: build it for the width of its input")
    widths = [part.shape[1] for part in parts]
    if sum(widths) != layer.kernel.shape[0]:
        raise ModelError(
            f"layer {layer.name!r} takes rows of width {layer.kernel.shape[0]}, but its parts are {widths} wide, "
            f"{sum(widths)} together"
        )
    if not _has_form(layer) or tf.config.list_logical_devices("GPU"):
        return layer(tf.concat(parts, axis=1) if len(parts) > 1 else parts[0])
    dtype = layer.compute_dtype
    kernel, bias = tf.cast(layer.kernel, dtype), tf.cast(layer.bias, dtype)
    kernels = tf.split(kernel, widths) if len(parts) > 1 else [kernel]
    return _relu_dense(bias, *kernels, *(tf.cast(part, dtype) for part in parts))


def _has_form(layer: tf_keras.layers.Dense) -> bool:
    is_relu = layer.activation is tf_keras.activations.relu and layer.activity_regularizer is None
    return bool(is_relu and layer.use_bias)


@tf.custom_gradient  # type: ignore[untyped-decorator]
def _relu_dense(bias: tf.Tensor, *factors: tf.Tensor) -> tuple[tf.Tensor, Callable[..., list[tf.Tensor]]]:
    """Takes the kernels and then the parts; returns relu(sum of products + bias), and what gives the gradients."""
    kernels, parts = factors[: len(factors) // 2], factors[len(factors) // 2 :]
    out = _forward(bias, kernels, parts)

    def gradients(upstream: tf.Tensor) -> list[tf.Tensor]:
        reached = tf.raw_ops.ReluGrad(gradients=upstream, features=out)
        part_gradients = [_part_gradient(kernel, reached) for kernel in kernels]
        # What waits for these is the rest of the way back, down to the tables. So they come first, and nothing waits
        # for the others, which fill the cores beside it. Narrow parts may be data, whose gradients nobody needs.
        awaited = [gradient for gradient in part_gradients if gradient.shape[1] >= _WIDE]
        with tf.control_dependencies(awaited):
            kernel_gradients = [_kernel_gradient(part, reached) for part in parts]
            return [_column_sums(reached), *kernel_gradients, *part_gradients]

    return out, gradients


def _forward(bias: tf.Tensor, kernels: Sequence[tf.Tensor], parts: Sequence[tf.Tensor]) -> tf.Tensor:
    num_weights = bias.shape[0] * sum(kernel.shape[0] for kernel in kernels)
    if bias.dtype == tf.bfloat16 or (len(parts) > 1 and num_weights <= _FEW_WEIGHTS):
        return _by_convolution(bias, kernels, parts)
    rows = tf.concat(parts, axis=1) if len(parts) > 1 else parts[0]
    kernel = tf.concat(kernels, axis=0) if len(parts) > 1 else kernels[0]
    return tf.nn.relu(tf.nn.bias_add(tf.matmul(rows, kernel), bias))


def _by_convolution(bias: tf.Tensor, kernels: Sequence[tf.Tensor], parts: Sequence[tf.Tensor]) -> tf.Tensor:
    widest = max(range(len(parts)), key=lambda number: int(parts[number].shape[1]))
    width, num_outputs = kernels[widest].shape

    def convolve() -> tf.Tensor:
        # A picture of width 1 whose pixels are the samples.
        picture = tf.reshape(parts[widest], [1, -1, 1, width])
        found = tf.nn.bias_add(tf.nn.conv2d(picture, kernels[widest][tf.newaxis, tf.newaxis], 1, "VALID"), bias)
        for number, (kernel, part) in enumerate(zip(kernels, parts, strict=True)):
            if number != widest:
                found += tf.reshape(tf.matmul(part, kernel), [1, -1, 1, num_outputs])
        return tf.reshape(tf.nn.relu(found), [-1, num_outputs])

    def nothing() -> tf.Tensor:
        return tf.zeros([0, num_outputs], bias.dtype)

    # oneDNN's convolution gives pictures without pixels the wrong shape.
    return _if_any(parts[widest], convolve, nothing)


def _if_any(rows: tf.Tensor, some: Callable[[], tf.Tensor], none: Callable[[], tf.Tensor]) -> tf.Tensor:
    if rows.shape[0] is not None:
        return some() if rows.shape[0] else none()
    found: Any = tf.cond(tf.shape(rows)[0] > 0, some, none)
    return found


def _column_sums(gradient: tf.Tensor) -> tf.Tensor:
    if gradient.dtype == tf.float32:
        return tf.raw_ops.BiasAddGrad(out_backprop=gradient)
    # A product adds up in float32, and is faster.
    return tf.matmul(tf.ones([1, tf.shape(gradient)[0]], gradient.dtype), gradient)[0]


def _kernel_gradient(part: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """Returns part^T gradient [K, N]: the form that was fastest for the shape."""
    width, num_outputs = part.shape[1], gradient.shape[1]
    if min(width, num_outputs) < _WIDE or num_outputs > 512:
        return tf.matmul(part, gradient, transpose_a=True)
    if width > 2 * num_outputs or (part.dtype == tf.bfloat16 and width % 64):
        return tf.transpose(tf.matmul(gradient, part, transpose_a=True))
    return tf.raw_ops.BatchMatMul(x=part[tf.newaxis], y=gradient[tf.newaxis], adj_x=True)[0]


def _part_gradient(kernel: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """Returns gradient kernel^T [B, K]."""
    if kernel.shape[0] % 16 == 0:
        return tf.matmul(gradient, kernel, transpose_b=True)
    return tf.raw_ops.BatchMatMul(x=gradient[tf.newaxis], y=kernel[tf.newaxis], adj_y=True)[0]
