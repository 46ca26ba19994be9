"""Clipping by the global norm, where some gradients lie on one rank only.

The functions of two steps are for the trainer, `clip_by_global_norm` is for optimizers of Keras.

The squared norm has two parts: that of the tables that only this rank holds, which is added up over the ranks, and that
of what every rank holds, which is counted once. The first part is one number, and travels with the gradients.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rankhouse.kernels import tf_ops
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.owned_variables import is_owned


def owned_squared_norm(
    embedding: DistributedEmbedding, gradients: Sequence[Any], variables: Sequence[tf.Variable]
) -> tf.Tensor:
    """Returns this rank's part, float32 []: the squared norm of the gradients of what only this rank holds."""
    owned = _part(embedding, gradients, variables, owned=True)
    return tf.cast(tf_ops.squared_norm(owned), tf.float32)


def clipping_scale(
    embedding: DistributedEmbedding,
    gradients: Sequence[Any],
    variables: Sequence[tf.Variable],
    *,
    owned_squared_norm: tf.Tensor,
    clip_norm: float,
) -> tf.Tensor:
    """Returns what all gradients are to be multiplied with, float32 [], the same on all ranks.

    Args:
        embedding: Says which variables only this rank holds.
        gradients: One for each variable, after `DistributedEmbedding.sum_gradients`.
        variables: All variables.
        owned_squared_norm: What the function of this name returned, added up over the ranks.
        clip_norm: The largest global norm that stays as it is.

    Returns:
        clip_norm / norm where the norm is above clip_norm, else 1. A norm that is not finite clips nothing: the loss is
        not finite then, or will not be after this step, and training ends.
    """
    shared = tf_ops.squared_norm(_part(embedding, gradients, variables, owned=False))
    norm = tf.sqrt(shared + tf.cast(owned_squared_norm, tf.float64))
    scale = clip_norm / tf.maximum(norm, clip_norm)
    return tf.cast(tf.where(tf.math.is_finite(norm), scale, 1.0), tf.float32)


def clip_by_global_norm(
    gradients: Sequence[Any], variables: Sequence[tf.Variable], *, ranks: Ranks, clip_norm: float, name: str
) -> list[Any]:
    """Returns gradients of which all ranks together have a norm of at most `clip_norm`; collective.

    Args:
        gradients: One for each variable, after their sum over the ranks.
        variables: The variables, some of which only this rank holds.
        ranks: Who trains together.
        clip_norm: The largest global norm that stays as it is.
        name: Name of the exchange, of one number.

    Returns:
        The gradients, all scaled alike on all ranks; NaN, as from `tf.clip_by_global_norm`, where the norm is not
        finite.
    """
    owned: list[Any] = []
    shared: list[Any] = []
    for gradient, variable in zip(gradients, variables, strict=True):
        if gradient is not None:
            (owned if is_owned(variable) else shared).append(gradient)
    # What every rank holds is counted by one, so that all have the same bits.
    counted = [*owned, *shared] if ranks.rank == 0 else owned
    own = tf_ops.squared_norm(counted) if counted else _nothing(shared)
    norm = tf.sqrt(ranks.sum_tensors([tf.ensure_shape(own, [])], name=name)[0])
    scale = tf.where(tf.math.is_finite(norm), clip_norm / tf.maximum(norm, clip_norm), float("nan"))
    return [_scaled(gradient, tf.cast(scale, tf.float32)) for gradient in gradients]


def _nothing(shared: Sequence[Any]) -> tf.Tensor:
    """Returns 0, but so that TensorFlow cannot know.

    Of a constant it would make the exchange once, while it optimizes a graph, and the other ranks would wait for this
    one in every step after.
    """
    return tf.minimum(tf_ops.squared_norm(shared[:1]), 0.0) if shared else tf.constant(0.0, tf.float64)


def _scaled(gradient: Any, scale: tf.Tensor) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values * scale, gradient.indices, gradient.dense_shape)
    return None if gradient is None else gradient * scale


def _part(
    embedding: DistributedEmbedding, gradients: Sequence[Any], variables: Sequence[tf.Variable], *, owned: bool
) -> list[Any]:
    refs = {variable.ref() for variable in embedding.owned_variables}
    pairs = zip(gradients, variables, strict=True)
    return [gradient for gradient, variable in pairs if gradient is not None and (variable.ref() in refs) == owned]
