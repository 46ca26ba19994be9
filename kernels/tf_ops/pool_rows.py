"""Pooling of rows that are a tensor: what `pooled_lookup` does with those of a variable, with the same bits."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rankhouse.kernels import library
from rankhouse.kernels.tf_ops.native import check_not_compiled, ops


def pool_rows(
    rows: tf.Tensor,
    positions: tf.Tensor,
    offsets: tf.Tensor,
    *,
    max_rows: int,
    combiners: Sequence[str],
    weights: tf.Tensor | None = None,
    all_rows: bool = False,
) -> tf.Tensor:
    """Adds up or averages the rows of each bag.

    Args:
        rows: float32 [U, D], with D known when the graph is built.
        positions: int64 [N], numbers of rows, feature-major: of feature 0, sample by sample, then of feature 1, ...
        offsets: int64 [F * B + 1]: bag (f, b) holds positions[offsets[f * B + b] : offsets[f * B + b + 1]].
        max_rows: U is never above it.
        combiners: For each feature "sum", "mean" or "sqrtn".
        weights: float32 [N], a factor for each position; they have no gradient. None: all are 1.
        all_rows: Says that every row is at some position, which saves a copy of the gradient.

    Returns:
        float32 [B, F * D], features side by side; an empty bag gives zeros. It is differentiable in the rows, whose
        gradients add up in the order of the positions.

    Raises:
        UnsupportedError: XLA was to compile it.
        tf.errors.InvalidArgumentError: A position is not in [0, U), or there are too few or too many.
    """
    check_not_compiled("pool_rows")

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def pool(rows: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            batch = _batch(positions, [offsets], combiners, hotness=[], weights=weights)
            return _rows_gradient(upstream, rows, batch, max_rows, all_rows=all_rows)

        return _pool(rows, positions, offsets, combiners, weights), gradient

    return pool(rows)


def take_rows(rows: tf.Tensor, positions: tf.Tensor, *, max_rows: int, all_rows: bool = False) -> tf.Tensor:
    """Takes rows one by one.

    Args:
        rows: float32 [U, D], with D known when the graph is built.
        positions: int64 [N], numbers of rows.
        max_rows: U is never above it.
        all_rows: As of `pool_rows`.

    Returns:
        float32 [N, D]; differentiable, with sums in the order of the positions.

    Raises:
        UnsupportedError: XLA was to compile it.
        tf.errors.InvalidArgumentError: A position is not in [0, U).
    """
    check_not_compiled("take_rows")

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def take(rows: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            batch = _batch(positions, [], ["sum"], hotness=[1], weights=None)
            return _rows_gradient(upstream, rows, batch, max_rows, all_rows=all_rows)

        return tf.gather(rows, positions), gradient

    return take(rows)


def _pool(
    rows: tf.Tensor, positions: tf.Tensor, offsets: tf.Tensor, combiners: Sequence[str], weights: tf.Tensor | None
) -> tf.Tensor:
    """The steps of the compiled lookup: products are rounded, then added in the order of the positions, then scaled."""
    num_features, dim = len(combiners), rows.shape[1]
    lengths = offsets[1:] - offsets[:-1]
    num_bags = tf.size(lengths, out_type=tf.int64)
    bags = _bags_of(offsets, tf.size(positions))
    each = tf.gather(rows, positions)
    if weights is not None:
        each = weights[:, tf.newaxis] * each
    # Not segment_sum, whose order of sums is another.
    pooled = tf.reshape(tf.math.unsorted_segment_sum(each, bags, num_bags), [num_features, -1, dim])
    if any(combiner != "sum" for combiner in combiners):
        scales = tf.reshape(_scales(lengths, bags, num_bags, combiners, weights), [num_features, -1, 1])
        pooled = tf.math.multiply_no_nan(pooled, scales)
    pooled = pooled[0] if num_features == 1 else tf.transpose(pooled, [1, 0, 2])
    return tf.reshape(pooled, [-1, num_features * dim])


def _bags_of(offsets: tf.Tensor, num_positions: tf.Tensor) -> tf.Tensor:
    """Returns the bag of each position, int64 [N]: how many bags end at it or before."""
    ends = tf.math.unsorted_segment_sum(tf.ones_like(offsets[1:]), offsets[1:], num_positions + 1)
    return tf.cumsum(ends)[:-1]


def _scales(
    lengths: tf.Tensor, bags: tf.Tensor, num_bags: tf.Tensor, combiners: Sequence[str], weights: tf.Tensor | None
) -> tf.Tensor:
    """Returns what the sum of each bag is multiplied with, [F, B]."""
    totals = squares = tf.cast(lengths, tf.float32)
    if weights is not None:
        totals = tf.math.unsorted_segment_sum(weights, bags, num_bags)
        squares = tf.math.unsorted_segment_sum(weights * weights, bags, num_bags)
    by_feature = {"mean": totals, "sqrtn": tf.sqrt(squares), "sum": tf.ones_like(totals)}
    columns = {name: tf.reshape(values, [len(combiners), -1]) for name, values in by_feature.items()}
    divisors = tf.stack([columns[combiner][f] for f, combiner in enumerate(combiners)])
    # A constant 1 above would have TensorFlow take an approximate reciprocal.
    empty = divisors == 0
    return tf.where(empty, 0.0, 1.0) / tf.where(empty, 1.0, divisors)


def _batch(
    positions: tf.Tensor,
    offsets: Sequence[tf.Tensor],
    combiners: Sequence[str],
    *,
    hotness: Sequence[int],
    weights: tf.Tensor | None,
) -> dict[str, Any]:
    return {
        "ids": positions,
        "offsets": list(offsets),
        "weights": [] if weights is None else [weights],
        "feature_tables": [0] * len(combiners),
        "combiners": [library.COMBINERS[combiner] for combiner in combiners],
        "hotness": list(hotness),
        "weighting": library.WEIGHTINGS["tensorflow"],
    }


def _rows_gradient(
    upstream: tf.Tensor, rows: tf.Tensor, batch: dict[str, Any], max_rows: int, *, all_rows: bool
) -> tf.Tensor:
    """Returns the gradient of all rows [U, D], zeros where no position names one."""
    ids, values = ops().rankhouse_pooled_lookup_gradient(
        grad=upstream,
        num_tables=1,
        # The op was made for variables, whose number of rows never changes; the forward pass has checked the positions.
        table_rows=[max_rows],
        table_dims=[rows.shape[1]],
        table_types=[library.ROW_TYPES["float32"]],
        out_of_range=[library.OUT_OF_RANGE["error"]],
        oov_rows=[0],
        **batch,
    )
    if all_rows:
        return values[0]
    return tf.scatter_nd(ids[0][:, tf.newaxis], values[0], tf.shape(rows, out_type=tf.int64))
