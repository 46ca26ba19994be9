"""Pooled lookup over variables, and its gradients."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework.auto_control_deps_utils import register_read_only_resource_op
from tensorflow.python.ops.resource_variable_ops import variable_accessed

from rankhouse.kernels import library
from rankhouse.kernels.bags import FixedHotness
from rankhouse.kernels.errors import ArgumentError
from rankhouse.kernels.tf_ops.native import TRAINED_TYPES, check_not_compiled, check_placement, ops

# The rh_row_type of what a variable holds, by its dtype.
_ROW_TYPES = {
    tf.float32: library.ROW_TYPES["float32"],
    tf.float16: library.ROW_TYPES["float16"],
    tf.bfloat16: library.ROW_TYPES["bfloat16"],
    tf.uint8: library.ROW_TYPES["int8"],
}

# A row-wise int8 row ends with its scale and offset.
_INT8_EXTRA_BYTES = 8

# In a tf.function lookups of one variable may run side by side, and those whose result nobody needs not at all.
register_read_only_resource_op("RankhousePooledLookup")
register_read_only_resource_op("RankhousePooledLookupWeightGradient")


class PooledRows(NamedTuple):
    """What a lookup gives.

    rows: float32 [B, E], features side by side. num_bad_ids: int64 [T], how many ids were out of range, by table.
    """

    rows: tf.Tensor
    num_bad_ids: tf.Tensor


def pooled_lookup(
    tables: Sequence[tf.Variable],
    ids: tf.Tensor,
    offsets: tf.Tensor | FixedHotness,
    *,
    feature_tables: Sequence[int],
    combiners: Sequence[str],
    weights: tf.Tensor | None = None,
    weighting: str = "tensorflow",
    out_of_range: str | int | Sequence[str | int] = "error",
) -> tf.Tensor:
    """Adds up or averages the rows of each bag; see `pooled_lookup_counted` for the arguments.

    Returns:
        float32 [B, E]: features side by side; an empty bag gives zeros. Its gradient with respect to each variable is a
        tf.IndexedSlices with increasing ids, each once; duplicates are combined in a fixed order. Its values are
        float32, also those of float16 and bfloat16 variables.

    Raises:
        ArgumentError: A variable, a feature, or a policy is not as said there.
        UnsupportedError: XLA was to compile it.
        tf.errors.InvalidArgumentError: An id is not a row of its table, or the offsets do not fit the ids.
    """
    return pooled_lookup_counted(
        tables,
        ids,
        offsets,
        feature_tables=feature_tables,
        combiners=combiners,
        weights=weights,
        weighting=weighting,
        out_of_range=out_of_range,
    ).rows


def pooled_lookup_counted(
    tables: Sequence[tf.Variable],
    ids: tf.Tensor,
    offsets: tf.Tensor | FixedHotness,
    *,
    feature_tables: Sequence[int],
    combiners: Sequence[str],
    weights: tf.Tensor | None = None,
    weighting: str = "tensorflow",
    out_of_range: str | int | Sequence[str | int] = "error",
) -> PooledRows:
    """Adds up or averages the rows of each bag, and counts the ids that are no rows.

    Args:
        tables: One variable for each table: float32, float16 or bfloat16 [R, D]; or, to look up only
            (`trainable=False`), uint8 [R, D + 8] with the rows that `rankhouse.kernels.rows` quantizes to int8.
        ids: int64 or int32 [N], feature-major: all ids of feature 0, sample by sample, then of feature 1, ...
        offsets: int64 [F * B + 1]: bag (f, b) holds ids[offsets[f * B + b] : offsets[f * B + b + 1]]; or FixedHotness.
        feature_tables: The table of each feature; features may share one.
        combiners: For each feature "sum", "mean" or "sqrtn"; or "none", with FixedHotness: the rows of a bag side by
            side, h * D wide. (Ragged ids without pooling are a lookup of all ids with a hotness of 1.)
        weights: float32 [N], a factor for each id; None: all are 1. They have a gradient too, of the rows as they are
            when it is taken: before an update.
        weighting: What "mean" and "sqrtn" divide by where there are weights: "tensorflow": their sum, or the root of
            the sum of their squares; "fbgemm": the number of ids, or its root.
        out_of_range: What an id that is not a row of its table becomes, for all tables or for each: "error": the call
            fails; "zero": a row of zeros without a gradient; "clip": the first row if it is negative, else the last; a
            number: that row.

    Raises:
        ArgumentError: A variable, a feature, or a policy is not as said here.
        UnsupportedError: XLA was to compile it.
        tf.errors.InvalidArgumentError: An id is not a row of its table, or the offsets do not fit the ids.
    """
    check_not_compiled("pooled_lookup")
    batch = batch_arguments(
        tables,
        ids,
        offsets,
        feature_tables=feature_tables,
        combiners=combiners,
        weights=weights,
        weighting=weighting,
        out_of_range=out_of_range,
    )
    for variable in tables:
        # Without this, a tape or tf.function would not learn that an op of ours reads the variable.
        variable_accessed(variable)
    return PooledRows(*ops().rankhouse_pooled_lookup(tables=[variable.handle for variable in tables], **batch))


def batch_arguments(
    tables: Sequence[tf.Variable],
    ids: tf.Tensor,
    offsets: tf.Tensor | FixedHotness,
    *,
    feature_tables: Sequence[int],
    combiners: Sequence[str],
    weights: tf.Tensor | None,
    weighting: str,
    out_of_range: str | int | Sequence[str | int],
) -> dict[str, Any]:
    """Returns what an op over a batch is told of it; the arguments are those of `pooled_lookup_counted`.

    Raises:
        ArgumentError: A variable, a feature, or a policy is not as said there.
    """
    types, dims = _check_tables(tables)
    fixed = isinstance(offsets, FixedHotness)
    policies = _policies(out_of_range, tables)
    if weighting not in library.WEIGHTINGS:
        raise ArgumentError(f"weighting is {weighting!r}: expected one of {sorted(library.WEIGHTINGS)}")
    return {
        "ids": _ids(ids),
        "offsets": [] if fixed else [offsets],
        "weights": [] if weights is None else [weights],
        "table_rows": [variable.shape[0] for variable in tables],
        "table_dims": dims,
        "table_types": types,
        "out_of_range": [policy for policy, _ in policies],
        "oov_rows": [row for _, row in policies],
        "feature_tables": _feature_tables(feature_tables, len(tables)),
        "combiners": _combiners(combiners, len(feature_tables), fixed=fixed),
        "hotness": _hotness(offsets, len(feature_tables)) if isinstance(offsets, FixedHotness) else [],
        "weighting": library.WEIGHTINGS[weighting],
    }


# What the ops over one batch have in common.
_ATTRIBUTES = (
    *("table_rows", "table_dims", "table_types", "out_of_range", "oov_rows"),
    *("feature_tables", "combiners", "hotness", "weighting"),
)


@tf.RegisterGradient("RankhousePooledLookup")  # type: ignore[untyped-decorator]
def _pooled_lookup_gradient(op: tf.Operation, grad: tf.Tensor, _: tf.Tensor) -> list[tf.IndexedSlices | None]:
    check_not_compiled("the gradient of pooled_lookup")
    attributes = {name: op.get_attr(name) for name in _ATTRIBUTES}
    num_tables, num_offsets = op.get_attr("num_tables"), op.get_attr("num_offsets")
    tables, (ids, *rest) = list(op.inputs[:num_tables]), op.inputs[num_tables:]
    batch = {"ids": ids, "offsets": rest[:num_offsets], "weights": rest[num_offsets:], **attributes}
    gradients: list[tf.IndexedSlices | None] = [None] * len(op.inputs)
    unique_ids, rows = ops().rankhouse_pooled_lookup_gradient(grad=grad, num_tables=num_tables, **batch)
    shapes = zip(attributes["table_rows"], attributes["table_dims"], strict=True)
    for t, shape in enumerate(shapes):
        if attributes["table_types"][t] != _ROW_TYPES[tf.uint8]:
            gradients[t] = tf.IndexedSlices(rows[t], unique_ids[t], dense_shape=tf.constant(shape, tf.int64))
    # An op that ran eagerly says what its tape does not need; in a graph nothing runs that is not needed.
    if batch["weights"] and len(op.inputs) - 1 not in (getattr(op, "skip_input_indices", None) or ()):
        gradients[-1] = ops().rankhouse_pooled_lookup_weight_gradient(grad=grad, tables=tables, **batch)
    return gradients


def combine_duplicates(gradient: tf.IndexedSlices, num_rows: int) -> tf.IndexedSlices:
    """Sorts ids and adds up the rows of equal ones, in the order in which they come.

    `apply` needs it for a gradient that is the sum of several lookups of one variable, or that came from other ranks.
    The gradient of one `pooled_lookup` is already so.

    Raises:
        tf.errors.InvalidArgumentError: An id is not in [0, num_rows).
    """
    check_not_compiled("combine_duplicates")
    dim = gradient.values.shape[1]
    unique_ids, rows = ops().rankhouse_pooled_lookup_gradient(
        grad=gradient.values,
        ids=_ids(gradient.indices),
        offsets=[],
        weights=[],
        num_tables=1,
        table_rows=[num_rows],
        table_dims=[dim],
        table_types=[_ROW_TYPES[tf.float32]],
        out_of_range=[library.OUT_OF_RANGE["error"]],
        oov_rows=[0],
        feature_tables=[0],
        combiners=[library.COMBINERS["sum"]],
        hotness=[1],
        weighting=library.WEIGHTINGS["tensorflow"],
    )
    return tf.IndexedSlices(rows[0], unique_ids[0], dense_shape=tf.constant([num_rows, dim], tf.int64))


def _check_tables(tables: Sequence[tf.Variable]) -> tuple[list[int], list[int]]:
    """Returns the row type and the width of each table."""
    types, dims = [], []
    for t, variable in enumerate(tables):
        shape, row_type = variable.shape, _ROW_TYPES.get(variable.dtype)
        extra = _INT8_EXTRA_BYTES if variable.dtype == tf.uint8 else 0
        if row_type is None or shape.rank != 2 or not shape.is_fully_defined() or shape[1] <= extra:
            raise ArgumentError(
                f"table {t} ({variable.name}) is {variable.dtype.name} of shape {shape}: expected float32, "
                "float16 or bfloat16 [rows, width]; or, to look up only, uint8 [rows, width + 8]"
            )
        if variable.trainable and variable.dtype not in TRAINED_TYPES:
            raise ArgumentError(
                f"table {t} ({variable.name}) is {variable.dtype.name} (int8 rows) and trainable, but only float32, "
                "float16 and bfloat16 tables are trained: make it with trainable=False"
            )
        check_placement(variable, f"table {t}")
        types.append(row_type)
        dims.append(shape[1] - extra)
    return types, dims


def _ids(ids: Any) -> tf.Tensor:
    ids = tf.convert_to_tensor(ids)
    if ids.dtype not in (tf.int32, tf.int64):
        raise ArgumentError(f"ids are {ids.dtype.name}: expected int64 or int32")
    return ids


def _policies(out_of_range: str | int | Sequence[str | int], tables: Sequence[tf.Variable]) -> list[tuple[int, int]]:
    """Returns the policy and the out-of-vocabulary row of each table."""
    named = [out_of_range] * len(tables) if isinstance(out_of_range, str | int) else list(out_of_range)
    if len(named) != len(tables):
        raise ArgumentError(f"{len(named)} out_of_range for {len(tables)} tables: expected one for all or one each")
    policies = []
    for t, (policy, variable) in enumerate(zip(named, tables, strict=True)):
        if isinstance(policy, str) and policy in library.OUT_OF_RANGE:
            policies.append((library.OUT_OF_RANGE[policy], 0))
        elif isinstance(policy, int) and 0 <= policy < variable.shape[0]:
            policies.append((library.OOV_ROW, policy))
        else:
            raise ArgumentError(
                f"table {t} has out_of_range {policy!r}: expected one of {sorted(library.OUT_OF_RANGE)} or the "
                f"number of one of its {variable.shape[0]} rows"
            )
    return policies


def _feature_tables(feature_tables: Sequence[int], num_tables: int) -> list[int]:
    for f, table in enumerate(feature_tables):
        if not 0 <= table < num_tables:
            raise ArgumentError(f"feature {f} names table {table}, but there are {num_tables} tables")
    return list(feature_tables)


def _combiners(combiners: Sequence[str], num_features: int, *, fixed: bool) -> list[int]:
    if len(combiners) != num_features:
        raise ArgumentError(f"{len(combiners)} combiners for {num_features} features: expected one each")
    for f, combiner in enumerate(combiners):
        if combiner not in library.COMBINERS:
            raise ArgumentError(f"feature {f} has combiner {combiner!r}: expected one of {sorted(library.COMBINERS)}")
        if combiner == "none" and not fixed:
            raise ArgumentError(
                f"feature {f} has combiner 'none' with offsets, whose bags give rows of different widths: look its ids "
                "up by themselves, with FixedHotness((1,)), and keep the offsets for the result"
            )
    return [library.COMBINERS[combiner] for combiner in combiners]


def _hotness(hotness: FixedHotness, num_features: int) -> list[int]:
    per_feature = list(hotness.per_feature)
    if len(per_feature) != num_features or min(per_feature, default=0) < 0 or sum(per_feature) < 1:
        raise ArgumentError(
            f"hotness {hotness.per_feature} for {num_features} features: expected one >= 0 for each, not all 0"
        )
    return per_feature
