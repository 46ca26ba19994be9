"""DLRM's dot interaction."""

import tensorflow as tf

from rankhouse.kernels.errors import ArgumentError
from rankhouse.kernels.tf_ops.native import check_not_compiled, ops


def dot_interaction(
    bottom: tf.Tensor | None, embeddings: tf.Tensor, *, dim: int, self_interaction: bool = False
) -> tf.Tensor:
    """Takes the dot products of all pairs of a sample's vectors (Naumov et al. 2019, https://arxiv.org/abs/1906.00091).

    The vectors of a sample are that of `bottom`, where it is given, and then the F embeddings: V in all. Differentiable
    once. Sums have one order, whatever the threads; instruction sets agree to rounding.

    Args:
        bottom: float32 [B, D], the vector of the dense features, or None.
        embeddings: float32 [B, F * D]. B and F may be 0.
        dim: D.
        self_interaction: Whether a vector's product with itself counts.

    Returns:
        float32 [B, W]: bottom (where it is given), then the products of the pairs (1,0), (2,0), (2,1), (3,0), ...: the
        lower triangle by rows, with its diagonal where self_interaction is set.

    Raises:
        ArgumentError: dim is below 1.
        UnsupportedError: XLA was to compile it.
        tf.errors.InvalidArgumentError: The shapes do not fit dim or each other (ValueError in a tf.function).
    """
    check_not_compiled("dot_interaction")
    if dim < 1:
        raise ArgumentError(f"dim is {dim}: expected at least 1")
    return ops().rankhouse_dot_interaction(
        bottom=[] if bottom is None else [bottom], embeddings=embeddings, dim=dim, self_interaction=self_interaction
    )


@tf.RegisterGradient("RankhouseDotInteraction")  # type: ignore[untyped-decorator]
def _dot_interaction_gradient(op: tf.Operation, grad: tf.Tensor) -> list[tf.Tensor]:
    check_not_compiled("the gradient of dot_interaction")
    *bottom, embeddings = op.inputs
    bottom_grad, embeddings_grad = ops().rankhouse_dot_interaction_gradient(
        grad=grad,
        bottom=bottom,
        embeddings=embeddings,
        dim=op.get_attr("dim"),
        self_interaction=op.get_attr("self_interaction"),
    )
    return [*bottom_grad, embeddings_grad]
