"""`embedding_lookup`: rows of one table, pooled or not."""

from typing import Any

import tensorflow as tf

from rankhouse.kernels import tf_ops
from rankhouse.kernels.bags import FixedHotness
from rankhouse.kernels.errors import ArgumentError

_COMBINERS = (None, "sum", "mean", "sqrtn")


def embedding_lookup(param: Any, ids: Any, combiner: str | None = None) -> Any:
    """Looks up the rows of ids, and pools those of each sample where there is a combiner.

    Args:
        param: The table, [R, D]. A variable of float32 is read in place; other tensors by TensorFlow's own operations.
        ids: int32 or int64 of rank 2: dense [B, k], RaggedTensor [B, None] or, with a combiner, SparseTensor [B, k].
        combiner: None, "sum", "mean" or "sqrtn".

    Returns:
        [B, D], where a sample without ids has zeros; without a combiner shape(ids) + [D].

    Raises:
        TypeError: `param` is no tensor.
        ArgumentError: The ids' rank or dtype or the combiner is wrong (also a ValueError).
        tf.errors.InvalidArgumentError: An id is not a row.
    """
    if not tf.is_tensor(param):
        raise TypeError(f"param is a {type(param).__name__}: expected a tensor or a variable [rows, width]")
    if ids.shape.rank != 2:
        raise ArgumentError(f"ids have shape {ids.shape}: Only support 2D input, [samples, ids of a sample]")
    if combiner not in _COMBINERS:
        raise ArgumentError(f"combiner is {combiner!r}: expected one of {_COMBINERS}")
    if combiner is None:
        return _rows(param, ids)
    values, offsets = _bags(ids)
    if isinstance(param, tf.Variable):
        return tf_ops.pooled_lookup([param], values, offsets, feature_tables=[0], combiners=[combiner])
    return _pool(tf.gather(param, values), offsets, combiner)


def _rows(param: Any, ids: Any) -> Any:
    if isinstance(ids, tf.SparseTensor):
        raise ArgumentError("ids are a SparseTensor: expected a combiner, as their rows have no place without one")
    if isinstance(ids, tf.RaggedTensor):
        return ids.with_values(_rows(param, ids.values[:, tf.newaxis])[:, 0])
    if not isinstance(param, tf.Variable):
        return tf.gather(param, ids)
    flat, one = tf.reshape(ids, [-1]), FixedHotness((1,))
    rows = tf_ops.pooled_lookup([param], flat, one, feature_tables=[0], combiners=["none"])
    rows = tf.reshape(rows, tf.concat([tf.shape(ids), [param.shape[1]]], axis=0))
    return tf.ensure_shape(rows, ids.shape.concatenate(param.shape[1]))


def _bags(ids: Any) -> tf_ops.Bags:
    if isinstance(ids, tf.RaggedTensor):
        return tf_ops.from_ragged(ids)
    if isinstance(ids, tf.SparseTensor):
        return tf_ops.from_sparse(ids)
    shape = tf.shape(ids, out_type=tf.int64)
    return tf_ops.Bags(tf.reshape(ids, [-1]), tf.range(shape[0] + 1) * shape[1])


def _pool(rows: tf.Tensor, offsets: tf.Tensor, combiner: str) -> tf.Tensor:
    """Pools the rows [N, D] of a tensor that is no variable, which the kernels could read in place."""
    bags = tf.RaggedTensor.from_row_splits(rows, offsets)
    total = tf.reduce_sum(bags, axis=1)
    lengths = tf.cast(bags.row_lengths(), rows.dtype)[:, tf.newaxis]
    divisors = {"sum": tf.ones_like(lengths), "mean": lengths, "sqrtn": tf.sqrt(lengths)}
    return tf.math.divide_no_nan(total, divisors[combiner])
