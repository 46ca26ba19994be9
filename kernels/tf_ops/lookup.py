"""Pooled lookup over variables, and its gradient."""

from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import variable_accessed

from rankhouse.kernels import library
from rankhouse.kernels.errors import ArgumentError
from rankhouse.kernels.tf_ops.native import check_variable, ops


def pooled_lookup(
    tables: Sequence[tf.Variable],
    ids: tf.Tensor,
    offsets: tf.Tensor,
    *,
    feature_tables: Sequence[int],
    combiners: Sequence[str],
) -> tf.Tensor:
    """Adds up or averages the rows of each bag.

    Args:
        tables: One float32 variable [R, D] for each table.
        ids: int64 [N], feature-major: all ids of feature 0, sample by sample, then of feature 1, ...
        offsets: int64 [F * B + 1]: bag (f, b) holds ids[offsets[f * B + b] : offsets[f * B + b + 1]].
        feature_tables: The table of each feature; features may share one.
        combiners: "sum" or "mean" for each feature.

    Returns:
        float32 [B, E]: features side by side; an empty bag gives zeros. Its gradient with respect to each variable is a
        tf.IndexedSlices with increasing ids, each once; duplicates are combined in a fixed order.

    Raises:
        ArgumentError: A variable is not float32 [R, D] of a known shape on the CPU, or a combiner or table is unknown.
        tf.errors.InvalidArgumentError: An id is not a row of its table, or the offsets do not fit the ids.
    """
    for t, variable in enumerate(tables):
        check_variable(variable, f"table {t}")
        # Without this, a tape or tf.function would not learn that an op of ours reads the variable.
        variable_accessed(variable)
    return ops().rankhouse_pooled_lookup(
        tables=[variable.handle for variable in tables],
        ids=ids,
        offsets=offsets,
        table_rows=[variable.shape[0] for variable in tables],
        table_dims=[variable.shape[1] for variable in tables],
        feature_tables=_feature_tables(feature_tables, len(tables)),
        combiners=_combiners(combiners, len(feature_tables)),
    )


@tf.RegisterGradient("RankhousePooledLookup")  # type: ignore[untyped-decorator]
def _pooled_lookup_gradient(op: tf.Operation, grad: tf.Tensor) -> list[tf.IndexedSlices | None]:
    table_rows, table_dims = op.get_attr("table_rows"), op.get_attr("table_dims")
    unique_ids, rows = ops().rankhouse_pooled_lookup_gradient(
        grad=grad,
        ids=op.inputs[-2],
        offsets=op.inputs[-1],
        num_tables=len(table_rows),
        table_rows=table_rows,
        table_dims=table_dims,
        feature_tables=op.get_attr("feature_tables"),
        combiners=op.get_attr("combiners"),
    )
    slices = [
        tf.IndexedSlices(values, indices, dense_shape=tf.constant(shape, tf.int64))
        for values, indices, shape in zip(rows, unique_ids, zip(table_rows, table_dims, strict=True), strict=True)
    ]
    return [*slices, None, None]


def combine_duplicates(gradient: tf.IndexedSlices, num_rows: int) -> tf.IndexedSlices:
    """Sorts ids and adds up the rows of equal ones, in the order in which they come.

    `apply_sgd` and `apply_adagrad` need it for a gradient that is the sum of several lookups of one variable, or that
    came from other ranks. The gradient of one `pooled_lookup` is already so.

    Raises:
        tf.errors.InvalidArgumentError: An id is not in [0, num_rows).
    """
    indices = tf.cast(gradient.indices, tf.int64)
    num_ids = tf.size(indices, out_type=tf.int64)
    dim = gradient.values.shape[1]
    unique_ids, rows = ops().rankhouse_pooled_lookup_gradient(
        grad=gradient.values,
        ids=indices,
        offsets=tf.range(num_ids + 1, dtype=tf.int64),
        num_tables=1,
        table_rows=[num_rows],
        table_dims=[dim],
        feature_tables=[0],
        combiners=[library.COMBINERS["sum"]],
    )
    return tf.IndexedSlices(rows[0], unique_ids[0], dense_shape=tf.constant([num_rows, dim], tf.int64))


def _feature_tables(feature_tables: Sequence[int], num_tables: int) -> list[int]:
    for f, table in enumerate(feature_tables):
        if not 0 <= table < num_tables:
            raise ArgumentError(f"feature {f} names table {table}, but there are {num_tables} tables")
    return list(feature_tables)


def _combiners(combiners: Sequence[str], num_features: int) -> list[int]:
    if len(combiners) != num_features:
        raise ArgumentError(f"{len(combiners)} combiners for {num_features} features: expected one each")
    for f, combiner in enumerate(combiners):
        if combiner not in library.COMBINERS:
            raise ArgumentError(f"feature {f} has combiner {combiner!r}: expected one of {sorted(library.COMBINERS)}")
    return [library.COMBINERS[combiner] for combiner in combiners]
