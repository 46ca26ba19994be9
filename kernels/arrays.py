"""The lookup and its backward on NumPy arrays, over the compiled library.

Letters in shapes: B samples, F features, T tables, N ids in all, R a table's rows, D its width, E the sum of the widths
of all features, U unique ids. Every function may be called from any thread, and works on threads of its own while it
runs: `num_threads` at most, or those of the `Executor` given there (None: as many as there are processors). Results do
not depend on their number.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankhouse.kernels import library
from rankhouse.kernels.arguments import check_array
from rankhouse.kernels.bags import BadIds, FixedHotness, SparseGradient
from rankhouse.kernels.errors import ArgumentError
from rankhouse.kernels.executor import Threads, executor_of
from rankhouse.kernels.lookup_request import LookupRequest, Policy, TableShape, shape_of


def pooled_lookup(
    tables: Sequence[NDArray[Any]],
    ids: NDArray[Any],
    offsets: NDArray[np.int64] | FixedHotness,
    *,
    feature_tables: Sequence[int],
    combiners: Sequence[str],
    weights: NDArray[np.float32] | None = None,
    weighting: str = "tensorflow",
    out_of_range: Policy | Sequence[Policy] = "error",
    out: NDArray[np.float32] | None = None,
    bad_ids: list[BadIds] | None = None,
    num_threads: Threads = None,
) -> NDArray[np.float32]:
    """Pools the rows of each bag.

    Args:
        tables: [R, D] for each table. The dtype says the rows' format, as in `rankhouse.kernels.rows`. Rows may lie
            apart, but each in one piece; those that begin on 64 bytes are fastest.
        ids: int64 or int32 [N], feature-major: all ids of feature 0, sample by sample, then of feature 1, ...
        offsets: int64 [F * B + 1]: bag (f, b) holds ids[offsets[f * B + b] : offsets[f * B + b + 1]].
        feature_tables: The table of each feature; features may share one.
        combiners: "sum", "mean" or "sqrtn" for each feature: the sum of the rows, each times its weight, divided by 1,
            the sum of the weights, or the root of the sum of their squares.
        weights: float32 [N]; None: all are 1.
        weighting: What mean and sqrtn divide by where there are weights: "tensorflow" as above, where a divisor of 0
            gives zeros; "fbgemm" by the number of ids, or its root.
        out_of_range: What becomes of ids that are no rows, for all tables or one each: "error"; "zero", a row of zeros;
            "clip", the nearest row; or a number, the row that takes their place.
        out: float32 [B, E] to write into. A buffer used again spares the system giving new pages.
        bad_ids: A list that is replaced by one BadIds for each table, also where the call raises IdOutOfRangeError.
        num_threads: Most threads to use, or an Executor.

    Returns:
        float32 [B, E]: features side by side; an empty bag gives zeros. It is `out` where that is given.

    Raises:
        IdOutOfRangeError: An id is not a row of its table, and the table's policy is "error".
        ArgumentError: An array has another dtype, shape or layout than said here, or the offsets do not fit the ids.
    """
    if "none" in combiners:
        raise ArgumentError("combiner 'none' does not pool: use lookup_rows")
    request = LookupRequest(
        [shape_of(table, f"table {t}") for t, table in enumerate(tables)],
        ids,
        offsets,
        feature_tables=feature_tables,
        combiners=combiners,
        weights=weights,
        weighting=weighting,
        out_of_range=out_of_range,
    )
    shape = (request.batch_size, request.width)
    if out is None:
        out = np.empty(shape, np.float32)
    else:
        check_array(out, "out", np.float32, 2, shape=shape)
    _look_up(request, request.feature_rows(out), bad_ids, num_threads)
    return out


def lookup_rows(
    tables: Sequence[NDArray[Any]],
    ids: NDArray[Any],
    offsets: NDArray[np.int64] | FixedHotness,
    *,
    feature_tables: Sequence[int],
    out_of_range: Policy | Sequence[Policy] = "error",
    bad_ids: list[BadIds] | None = None,
    num_threads: Threads = None,
) -> list[NDArray[np.float32]]:
    """Gives each id's row by itself, without pooling. The arguments are those of `pooled_lookup`.

    Returns:
        For each feature, float32 [its ids, D] in the order of the ids, or with FixedHotness float32 [B, hotness, D].

    Raises:
        IdOutOfRangeError: An id is not a row of its table, and the table's policy is "error".
        ArgumentError: An array has another dtype, shape or layout than said here, or the offsets do not fit the ids.
    """
    request = LookupRequest(
        [shape_of(table, f"table {t}") for t, table in enumerate(tables)],
        ids,
        offsets,
        feature_tables=feature_tables,
        combiners=["none"] * len(feature_tables),
        out_of_range=out_of_range,
    )
    outs = []
    for f, dim in enumerate(request.dims):
        if isinstance(offsets, FixedHotness):
            outs.append(np.empty((request.batch_size, offsets.per_feature[f], dim), np.float32))
        else:
            first, last = offsets[f * request.batch_size], offsets[(f + 1) * request.batch_size]
            # Offsets that make no sense are refused below, whatever the array.
            outs.append(np.empty((max(0, min(last, len(ids)) - max(first, 0)), dim), np.float32))
    rows = (library.FeatureRows * len(outs))(
        *(
            library.FeatureRows(out.ctypes.data, max(1, out[0].size) if len(out) else dim)
            for out, dim in zip(outs, request.dims, strict=True)
        )
    )
    _look_up(request, rows, bad_ids, num_threads)
    return outs


def pooled_lookup_gradient(
    grad: NDArray[np.float32],
    ids: NDArray[Any],
    offsets: NDArray[np.int64] | FixedHotness,
    *,
    tables_shape: Sequence[tuple[int, int]],
    feature_tables: Sequence[int],
    combiners: Sequence[str],
    weights: NDArray[np.float32] | None = None,
    weighting: str = "tensorflow",
    out_of_range: Policy | Sequence[Policy] = "error",
    num_threads: Threads = None,
) -> list[SparseGradient]:
    """Gives the gradient of each table, with duplicate ids combined in a fixed order: the backward of `pooled_lookup`.

    Args:
        grad: float32 [B, E], the gradient of what `pooled_lookup` returned.
        ids: As in `pooled_lookup`.
        offsets: As in `pooled_lookup`.
        tables_shape: (R, D) of each table.
        feature_tables: As in `pooled_lookup`.
        combiners: As in `pooled_lookup`.
        weights: As in `pooled_lookup`.
        weighting: As in `pooled_lookup`.
        out_of_range: As in `pooled_lookup`; ids that give rows of zeros have no gradient.
        num_threads: Most threads to use, or an Executor.

    Raises:
        IdOutOfRangeError: An id is not a row of its table, and the table's policy is "error".
        ArgumentError: An array has another dtype, shape or layout than said here, or the offsets do not fit the ids.
    """
    request = LookupRequest(
        [TableShape(*shape) for shape in tables_shape],
        ids,
        offsets,
        feature_tables=feature_tables,
        combiners=combiners,
        weights=weights,
        weighting=weighting,
        out_of_range=out_of_range,
    )
    request.check_grad(grad)
    kernels = library.load()
    capacity = (ctypes.c_int64 * len(tables_shape))()
    library.check(kernels.rh_gradient_capacity(request.lookup, capacity))
    gradients = [
        SparseGradient(ids=np.empty(most, np.int64), rows=np.empty((most, dim), np.float32))
        for most, (_, dim) in zip(capacity, tables_shape, strict=True)
    ]
    buffers = (library.SparseGradientBuffer * len(gradients))(
        *(library.SparseGradientBuffer(g.ids.ctypes.data, g.rows.ctypes.data, len(g.ids)) for g in gradients)
    )
    rows = request.feature_rows(grad)
    library.check(kernels.rh_pooled_lookup_gradient(request.lookup, rows, buffers, executor_of(num_threads)))
    return [
        SparseGradient(ids=gradient.ids[: buffer.num_rows], rows=gradient.rows[: buffer.num_rows])
        for gradient, buffer in zip(gradients, buffers, strict=True)
    ]


def combine_duplicates(ids: NDArray[np.int64], rows: NDArray[np.float32], *, num_rows: int) -> SparseGradient:
    """Adds up the rows [N, D] of equal ids [N], in the order in which they come, as the optimizers need it.

    Raises:
        IdOutOfRangeError: An id is not in [0, num_rows).
        ArgumentError: ids and rows do not fit each other.
    """
    check_array(rows, "rows", np.float32, 2)
    (combined,) = pooled_lookup_gradient(
        rows,
        ids,
        FixedHotness((1,)),
        tables_shape=[(num_rows, rows.shape[1])],
        feature_tables=[0],
        combiners=["sum"],
    )
    return combined


def pooled_lookup_weight_gradient(
    grad: NDArray[np.float32],
    tables: Sequence[NDArray[Any]],
    ids: NDArray[Any],
    offsets: NDArray[np.int64] | FixedHotness,
    *,
    weights: NDArray[np.float32],
    feature_tables: Sequence[int],
    combiners: Sequence[str],
    weighting: str = "tensorflow",
    out_of_range: Policy | Sequence[Policy] = "error",
    num_threads: Threads = None,
) -> NDArray[np.float32]:
    """Gives the gradient of the weights of `pooled_lookup`, float32 [N].

    Args:
        grad: float32 [B, E], the gradient of what `pooled_lookup` returned.
        tables: As in `pooled_lookup`, but not of int8.
        ids: As in `pooled_lookup`, and so all others.
        offsets: As in `pooled_lookup`.
        weights: float32 [N].
        feature_tables: As in `pooled_lookup`.
        combiners: As in `pooled_lookup`.
        weighting: As in `pooled_lookup`.
        out_of_range: As in `pooled_lookup`.
        num_threads: Most threads to use, or an Executor.

    Raises:
        IdOutOfRangeError: An id is not a row of its table, and the table's policy is "error".
        ArgumentError: An array has another dtype, shape or layout than said here, or the offsets do not fit the ids.
    """
    request = LookupRequest(
        [shape_of(table, f"table {t}") for t, table in enumerate(tables)],
        ids,
        offsets,
        feature_tables=feature_tables,
        combiners=combiners,
        weights=weights,
        weighting=weighting,
        out_of_range=out_of_range,
    )
    request.check_grad(grad)
    gradient = np.empty(len(ids), np.float32)
    library.check(
        library.load().rh_pooled_lookup_weight_gradient(
            request.lookup, request.feature_rows(grad), gradient.ctypes.data, executor_of(num_threads)
        )
    )
    return gradient


def offsets_from_samples(samples: NDArray[np.int64], *, batch_size: int) -> NDArray[np.int64]:
    """Gives the offsets [B + 1] of one feature whose ids come with their samples, as in a sparse tensor.

    Args:
        samples: int64 [N], the sample of each id, never falling. It may have a stride, as a column of a matrix has.
        batch_size: B; samples without ids are empty bags.

    Raises:
        ArgumentError: A sample is not in [0, B), or is below the one before it.
    """
    if not isinstance(samples, np.ndarray) or samples.dtype != np.int64 or samples.ndim != 1:
        raise ArgumentError(f"samples is {getattr(samples, 'dtype', type(samples))}: expected an array of int64 [N]")
    if batch_size < 0:
        raise ArgumentError(f"batch_size is {batch_size}: expected at least 0")
    if len(samples) > 1 and (samples.strides[0] < samples.itemsize or samples.strides[0] % samples.itemsize):
        samples = np.ascontiguousarray(samples)
    stride = samples.strides[0] // samples.itemsize if len(samples) > 1 else 1
    offsets = np.empty(batch_size + 1, np.int64)
    library.check(
        library.load().rh_offsets_from_samples(
            samples.ctypes.data, stride, len(samples), batch_size, offsets.ctypes.data
        )
    )
    return offsets


def _look_up(request: LookupRequest, rows: Any, bad_ids: list[BadIds] | None, num_threads: Threads) -> None:
    report = None if bad_ids is None else (library.BadIds * request.lookup.num_tables)()
    status = library.load().rh_pooled_lookup(request.lookup, rows, report, executor_of(num_threads))
    if bad_ids is not None and report is not None:
        bad_ids[:] = [BadIds(bad.count, bad.feature, bad.sample, bad.position, bad.id) for bad in report]
    library.check(status)
