"""The embedding operations on NumPy arrays, over the compiled library.

Letters in shapes: B samples, F features, T tables, N ids in all, R a table's rows, D its width, E the sum of the widths
of all features, U unique ids. Every function may be called from any thread, and works on threads of its own while it
runs (`num_threads` at most; None: as many as there are processors). Results do not depend on their number.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankhouse.kernels import library
from rankhouse.kernels.arguments import check_array, executor_of
from rankhouse.kernels.bags import FixedHotness, SparseGradient
from rankhouse.kernels.errors import ArgumentError


def pooled_lookup(
    tables: Sequence[NDArray[np.float32]],
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64] | FixedHotness,
    *,
    feature_tables: Sequence[int],
    combiners: Sequence[str],
    out: NDArray[np.float32] | None = None,
    num_threads: int | None = None,
) -> NDArray[np.float32]:
    """Adds up or averages the rows of each bag.

    Args:
        tables: One float32 [R, D] for each table.
        ids: int64 [N], feature-major: all ids of feature 0, sample by sample, then of feature 1, ...
        offsets: int64 [F * B + 1]: bag (f, b) holds ids[offsets[f * B + b] : offsets[f * B + b + 1]].
        feature_tables: The table of each feature; features may share one.
        combiners: "sum" or "mean" for each feature.
        out: float32 [B, E] to write into.
        num_threads: Most threads to use.

    Returns:
        float32 [B, E]: features side by side; an empty bag gives zeros. It is `out` where that is given.

    Raises:
        IdOutOfRangeError: An id is not a row of its table.
        ArgumentError: An array has another dtype, shape or layout than said here, or the offsets do not fit the ids.
    """
    for t, table in enumerate(tables):
        check_array(table, f"table {t}", np.float32, 2)
    shapes = [_Shape(table.shape[0], table.shape[1], table.ctypes.data) for table in tables]
    request = _Request(shapes, ids, offsets, feature_tables, combiners)
    shape = (request.batch_size, request.width)
    if out is None:
        out = np.empty(shape, np.float32)
    else:
        check_array(out, "out", np.float32, 2)
        if out.shape != shape or not out.flags.writeable:
            raise ArgumentError(f"out has shape {out.shape}: expected a writeable array of shape {shape}")
    rows = request.feature_rows(out)
    library.check(library.load().rh_pooled_lookup(request.lookup, rows, None, executor_of(num_threads)))
    return out


def pooled_lookup_gradient(
    grad: NDArray[np.float32],
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64] | FixedHotness,
    *,
    tables_shape: Sequence[tuple[int, int]],
    feature_tables: Sequence[int],
    combiners: Sequence[str],
    num_threads: int | None = None,
) -> list[SparseGradient]:
    """Gives the gradient of each table, with duplicate ids combined in a fixed order: the backward of `pooled_lookup`.

    Args:
        grad: float32 [B, E], the gradient of what `pooled_lookup` returned.
        ids: As in `pooled_lookup`.
        offsets: As in `pooled_lookup`.
        tables_shape: (R, D) of each table.
        feature_tables: As in `pooled_lookup`.
        combiners: As in `pooled_lookup`.
        num_threads: Most threads to use.

    Raises:
        IdOutOfRangeError: An id is not a row of its table.
        ArgumentError: An array has another dtype, shape or layout than said here, or the offsets do not fit the ids.
    """
    request = _Request([_Shape(*shape) for shape in tables_shape], ids, offsets, feature_tables, combiners)
    check_array(grad, "grad", np.float32, 2)
    if grad.shape != (request.batch_size, request.width):
        raise ArgumentError(f"grad has shape {grad.shape}: expected {(request.batch_size, request.width)}")
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


@dataclass(frozen=True)
class _Shape:
    num_rows: int
    dim: int
    data: int | None = None


class _Request:
    """An rh_lookup, and the arrays that it points to."""

    def __init__(
        self,
        tables: Sequence[_Shape],
        ids: NDArray[np.int64],
        offsets: NDArray[np.int64] | FixedHotness,
        feature_tables: Sequence[int],
        combiners: Sequence[str],
    ) -> None:
        num_features = len(feature_tables)
        _check_features(len(tables), feature_tables, combiners)
        check_array(ids, "ids", np.int64, 1)
        int32s = ctypes.c_int32 * num_features
        self._keep_alive = (ids, offsets)
        self._dims = [tables[t].dim for t in feature_tables]
        self.width = sum(self._dims)
        self.lookup = library.Lookup(
            tables=(library.Table * len(tables))(*(library.Table(t.data, t.num_rows, t.dim) for t in tables)),
            num_tables=len(tables),
            feature_tables=int32s(*feature_tables),
            combiners=int32s(*(library.COMBINERS[combiner] for combiner in combiners)),
            num_features=num_features,
            ids=ids.ctypes.data,
            num_ids=len(ids),
        )
        if isinstance(offsets, FixedHotness):
            self.batch_size = _batch_size_of_hotness(offsets, len(ids), num_features)
            self.lookup.hotness = int32s(*offsets.per_feature)
        else:
            self.batch_size = _batch_size_of_offsets(offsets, num_features)
            self.lookup.offsets = offsets.ctypes.data
        self.lookup.batch_size = self.batch_size

    def feature_rows(self, matrix: NDArray[np.float32]) -> Any:
        """Gives the features' columns of a matrix [B, E]."""
        rows = (library.FeatureRows * len(self._dims))()
        address = matrix.ctypes.data
        for feature, dim in zip(rows, self._dims, strict=True):
            feature.data, feature.stride = address, self.width
            address += dim * matrix.itemsize
        return rows


def _check_features(num_tables: int, feature_tables: Sequence[int], combiners: Sequence[str]) -> None:
    if len(combiners) != len(feature_tables):
        raise ArgumentError(f"{len(combiners)} combiners for {len(feature_tables)} features: expected one each")
    for f, (table, combiner) in enumerate(zip(feature_tables, combiners, strict=True)):
        if not 0 <= table < num_tables:
            raise ArgumentError(f"feature {f} names table {table}, but there are {num_tables} tables")
        if combiner not in library.COMBINERS:
            raise ArgumentError(f"feature {f} has combiner {combiner!r}: expected one of {sorted(library.COMBINERS)}")


def _batch_size_of_offsets(offsets: NDArray[np.int64], num_features: int) -> int:
    check_array(offsets, "offsets", np.int64, 1)
    num_bags = len(offsets) - 1
    if num_bags < 0 or (num_bags % num_features if num_features else num_bags):
        raise ArgumentError(
            f"offsets have {len(offsets)} elements: expected F * B + 1 with F = {num_features} features"
        )
    return num_bags // num_features if num_features else 0


def _batch_size_of_hotness(hotness: FixedHotness, num_ids: int, num_features: int) -> int:
    per_sample = sum(hotness.per_feature)
    if len(hotness.per_feature) != num_features or per_sample < 1 or num_ids % per_sample:
        raise ArgumentError(
            f"hotness {hotness.per_feature} for {num_features} features and {num_ids} ids: expected one number for "
            "each feature, with a sum above 0 that divides the number of ids"
        )
    return num_ids // per_sample
