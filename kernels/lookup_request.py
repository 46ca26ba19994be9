"""An rh_lookup made of NumPy arrays: what a batch looks up, checked as far as Python sees it."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankhouse.kernels import library
from rankhouse.kernels.arguments import check_array
from rankhouse.kernels.bags import FixedHotness
from rankhouse.kernels.errors import ArgumentError
from rankhouse.kernels.rows import check_rows, dim_of, row_type_number, row_type_of, stride_of

# What becomes of ids out of range: "error", "zero", "clip", or the out-of-vocabulary row that takes their place.
Policy = str | int


@dataclass(frozen=True)
class TableShape:
    """A table as the library sees it; without data where only its shape matters."""

    num_rows: int
    dim: int
    data: int | None = None
    stride: int = 0
    row_type: int = library.ROW_TYPES["float32"]


def shape_of(table: NDArray[Any], name: str) -> TableShape:
    """Describes rows of any format, which may lie apart.

    Raises:
        ArgumentError: The array is not one of rows.
    """
    if not isinstance(table, np.ndarray):
        raise ArgumentError(f"{name} is a {type(table).__name__}: expected a NumPy array")
    try:
        row_type = row_type_number(row_type_of(table))
    except ArgumentError as exc:
        raise ArgumentError(f"{name} has {exc}") from exc
    check_rows(table, name, table.dtype)
    return TableShape(table.shape[0], dim_of(table), table.ctypes.data, stride_of(table, name), row_type)


class LookupRequest:
    """An rh_lookup, and the arrays that it points to.

    Args:
        tables: The tables, by shape.
        ids: int64 or int32 [N].
        offsets: int64 [F * B + 1], or the hotness of each feature.
        feature_tables: [F] the table of each feature.
        combiners: [F] "sum", "mean", "sqrtn" or "none".
        weights: float32 [N] or None.
        weighting: "tensorflow" or "fbgemm".
        out_of_range: One policy for all tables, or one each.

    Raises:
        ArgumentError: An argument is not as said here, or they do not fit each other.
    """

    def __init__(
        self,
        tables: Sequence[TableShape],
        ids: NDArray[Any],
        offsets: NDArray[np.int64] | FixedHotness,
        *,
        feature_tables: Sequence[int],
        combiners: Sequence[str],
        weights: NDArray[np.float32] | None = None,
        weighting: str = "tensorflow",
        out_of_range: Policy | Sequence[Policy] = "error",
    ) -> None:
        num_features = len(feature_tables)
        _check_features(len(tables), feature_tables, combiners)
        check_array(ids, "ids", np.int32 if getattr(ids, "dtype", None) == np.int32 else np.int64, 1)
        if weights is not None:
            check_array(weights, "weights", np.float32, 1)
            if len(weights) != len(ids):
                raise ArgumentError(f"there are {len(weights)} weights for {len(ids)} ids: expected one each")
        if weighting not in library.WEIGHTINGS:
            raise ArgumentError(f"weighting is {weighting!r}: expected one of {sorted(library.WEIGHTINGS)}")
        int32s = ctypes.c_int32 * num_features
        self._keep_alive = (ids, offsets, weights)
        self.dims = [tables[t].dim for t in feature_tables]
        self.width = sum(self.dims)
        self.lookup = library.Lookup(
            tables=_native_tables(tables, out_of_range),
            num_tables=len(tables),
            feature_tables=int32s(*feature_tables),
            combiners=int32s(*(library.COMBINERS[combiner] for combiner in combiners)),
            num_features=num_features,
            ids=ids.ctypes.data,
            num_ids=len(ids),
            id_type=int(ids.dtype == np.int32),
            weights=None if weights is None else weights.ctypes.data,
            weighting=library.WEIGHTINGS[weighting],
        )
        if isinstance(offsets, FixedHotness):
            self.batch_size = _batch_size_of_hotness(offsets, len(ids), num_features)
            self.lookup.hotness = int32s(*offsets.per_feature)
        else:
            self.batch_size = _batch_size_of_offsets(offsets, num_features)
            self.lookup.offsets = offsets.ctypes.data
        self.lookup.batch_size = self.batch_size

    def check_grad(self, grad: NDArray[np.float32]) -> None:
        """Raises ArgumentError where `grad` is not float32 [B, E]."""
        check_array(grad, "grad", np.float32, 2)
        if grad.shape != (self.batch_size, self.width):
            raise ArgumentError(f"grad has shape {grad.shape}: expected {(self.batch_size, self.width)}")

    def feature_rows(self, matrix: NDArray[np.float32]) -> Any:
        """Gives the features' columns of a matrix [B, E]."""
        rows = (library.FeatureRows * len(self.dims))()
        address = matrix.ctypes.data
        for feature, dim in zip(rows, self.dims, strict=True):
            feature.data, feature.stride = address, self.width
            address += dim * matrix.itemsize
        return rows


def _native_tables(tables: Sequence[TableShape], out_of_range: Policy | Sequence[Policy]) -> Any:
    policies = [out_of_range] * len(tables) if isinstance(out_of_range, str | int) else out_of_range
    if len(policies) != len(tables):
        raise ArgumentError(f"out_of_range has {len(policies)} policies for {len(tables)} tables: expected one each")
    native = (library.Table * len(tables))()
    for t, (table, policy) in enumerate(zip(tables, policies, strict=True)):
        oov_row = 0
        if isinstance(policy, str):
            if policy not in library.OUT_OF_RANGE:
                raise ArgumentError(
                    f"table {t} has the policy {policy!r} for ids out of range: expected one of "
                    f"{sorted(library.OUT_OF_RANGE)}, or the row that takes their place"
                )
            number = library.OUT_OF_RANGE[policy]
        else:
            number, oov_row = library.OOV_ROW, policy
        native[t] = library.Table(
            rows=table.data,
            num_rows=table.num_rows,
            dim=table.dim,
            stride=table.stride,
            oov_row=oov_row,
            type=table.row_type,
            out_of_range=number,
        )
    return native


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
