"""Pooling of rows that are a tensor: what `pooled_lookup` does with those of a variable, with the same bits."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.record import should_record_backprop

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
        weights: float32 [N], a factor for each position; None: all are 1.
        all_rows: Says that every row is at some position, which saves a copy of the gradient.

    Returns:
        float32 [B, F * D], features side by side; an empty bag gives zeros. It is differentiable in the rows, whose
        gradients add up in the order of the positions, and in the weights.

    Raises:
        UnsupportedError: XLA was to compile it.
        tf.errors.InvalidArgumentError: A position is not in [0, U), or there are too few or too many.
    """
    check_not_compiled("pool_rows")
    weights = None if weights is None else tf.convert_to_tensor(weights, tf.float32)
    batch = _batch(rows, positions, [offsets], combiners, hotness=[], weights=weights, max_rows=max_rows)
    # A graph leaves out what nobody asks for; eagerly all that a function returns is calculated.
    needed = weights is not None and (not tf.executing_eagerly() or should_record_backprop([weights]))

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def pool(rows: tf.Tensor, *_: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> Any:
            of_rows = _rows_gradient(upstream, rows, batch, all_rows=all_rows)
            if not needed:
                return of_rows
            return of_rows, ops().rankhouse_pool_rows_weight_gradient(grad=upstream, rows=rows, **batch)

        return ops().rankhouse_pool_rows(rows=rows, **batch), gradient

    return pool(rows, weights) if needed else pool(rows)


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
    batch = _batch(rows, positions, [], ["sum"], hotness=[1], weights=None, max_rows=max_rows)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def take(rows: tf.Tensor) -> Any:
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            return _rows_gradient(upstream, rows, batch, all_rows=all_rows)

        return ops().rankhouse_pool_rows(rows=rows, **batch), gradient

    return take(rows)


def _batch(
    rows: tf.Tensor,
    positions: tf.Tensor,
    offsets: Sequence[tf.Tensor],
    combiners: Sequence[str],
    *,
    hotness: Sequence[int],
    weights: tf.Tensor | None,
    max_rows: int,
) -> dict[str, Any]:
    """Returns what the ops of a lookup are told where the rows are its one table."""
    return {
        "num_tables": 1,
        # The gradient was made for variables, whose number of rows never changes; the forward pass checks positions.
        "table_rows": [max_rows],
        "table_dims": [rows.shape[1]],
        "table_types": [library.ROW_TYPES["float32"]],
        "out_of_range": [library.OUT_OF_RANGE["error"]],
        "oov_rows": [0],
        "ids": positions,
        "offsets": list(offsets),
        "weights": [] if weights is None else [weights],
        "feature_tables": [0] * len(combiners),
        "combiners": [library.COMBINERS[combiner] for combiner in combiners],
        "hotness": list(hotness),
        "weighting": library.WEIGHTINGS["tensorflow"],
    }


def _rows_gradient(upstream: tf.Tensor, rows: tf.Tensor, batch: dict[str, Any], *, all_rows: bool) -> tf.Tensor:
    """Returns the gradient of all rows [U, D], zeros where no position names one."""
    ids, values = ops().rankhouse_pooled_lookup_gradient(grad=upstream, **batch)
    if all_rows:
        return values[0]
    return tf.scatter_nd(ids[0][:, tf.newaxis], values[0], tf.shape(rows, out_type=tf.int64))
