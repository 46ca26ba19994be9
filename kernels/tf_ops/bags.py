"""What a lookup takes, of TensorFlow's own kinds of batches."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from rankhouse.kernels.errors import ArgumentError
from rankhouse.kernels.tf_ops.native import check_not_compiled, ops


class Bags(NamedTuple):
    """The ids of a batch, bag by bag.

    ids: int32 or int64 [N]. offsets: int64 [number of bags + 1]: bag i holds ids[offsets[i] : offsets[i + 1]].
    """

    ids: tf.Tensor
    offsets: tf.Tensor


def from_sparse(ids: tf.SparseTensor) -> Bags:
    """Reads the bags of one feature from a SparseTensor: row b holds the ids of sample b.

    Args:
        ids: int32 or int64 values, dense shape [B, k], indices in row-major order (`tf.sparse.reorder`), in which
            tf.io.parse_example, tf.sparse.from_dense and RaggedTensor.to_sparse leave them. Rows without a value are
            empty bags, wherever they are.

    Raises:
        ArgumentError: It is not a SparseTensor, or not of rank 2.
        UnsupportedError: XLA was to compile it.
        tf.errors.InvalidArgumentError: The indices are not in order, or a row is outside the dense shape.
    """
    if not isinstance(ids, tf.SparseTensor):
        raise ArgumentError(f"ids are a {type(ids).__name__}: expected a tf.SparseTensor")
    if ids.shape.rank not in (None, 2):
        raise ArgumentError(f"ids have shape {ids.shape}: expected the rank 2, [samples, ids of a sample]")
    check_not_compiled("from_sparse")
    offsets = ops().rankhouse_offsets_from_samples(indices=ids.indices, batch_size=ids.dense_shape[0])
    return Bags(ids.values, offsets)


def from_ragged(ids: tf.RaggedTensor) -> Bags:
    """Reads the bags of one feature from a RaggedTensor of ids, [B, None].

    Raises:
        ArgumentError: It is not a RaggedTensor, or has another rank.
    """
    if not isinstance(ids, tf.RaggedTensor):
        raise ArgumentError(f"ids are a {type(ids).__name__}: expected a tf.RaggedTensor")
    if ids.shape.rank != 2:
        raise ArgumentError(f"ids have shape {ids.shape}: expected the rank 2, [samples, ids of a sample]")
    return Bags(ids.values, tf.cast(ids.row_splits, tf.int64))


def offsets_from_lengths(lengths: tf.Tensor) -> tf.Tensor:
    """Returns where bags begin that lie one after the other, and where the last one ends.

    Args:
        lengths: int64 of any shape, how many ids each bag has; M in all.

    Returns:
        int64 [M + 1].

    Raises:
        UnsupportedError: XLA was to compile it.
    """
    check_not_compiled("offsets_from_lengths")
    return ops().rankhouse_offsets_from_lengths(lengths=lengths)


def join(features: Sequence[Bags]) -> Bags:
    """Puts the bags of several features, of one batch size, one after the other: what one lookup takes."""
    if not features:
        return Bags(tf.zeros([0], tf.int64), tf.zeros([1], tf.int64))
    starts = tf.cumsum([tf.size(feature.ids, out_type=tf.int64) for feature in features], exclusive=True)
    offsets = [feature.offsets[1:] + start for feature, start in zip(features, tf.unstack(starts), strict=True)]
    return Bags(tf.concat([feature.ids for feature in features], axis=0), tf.concat([[0], *offsets], axis=0))
