"""The lookup and its backward in plain NumPy: what the compiled ones must equal. Slow and obvious; for tests.

The signatures are those of `rankhouse.kernels.arrays`; sums are made in float64 and rounded once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankhouse.kernels.bags import FixedHotness, SparseGradient
from rankhouse.kernels.errors import IdOutOfRangeError
from rankhouse.kernels.lookup_request import Policy
from rankhouse.kernels.reference.rows import dequantize_rows
from rankhouse.kernels.rows import dim_of


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
) -> NDArray[np.float32]:
    """Pools the rows of each bag; see `rankhouse.kernels.arrays.pooled_lookup`."""
    columns = _columns([dim_of(tables[t]) for t in feature_tables])
    values = [dequantize_rows(table).astype(np.float64) for table in tables]
    bags = _Bags([table.shape for table in values], ids, offsets, feature_tables, weights, out_of_range)
    out = np.zeros((bags.batch_size, columns[-1]))
    for bag in bags:
        f = bag.feature
        divisor = _divisor(bag, combiners[f], weighting, has_weights=weights is not None)
        if divisor != 0:
            out[bag.sample, columns[f] : columns[f + 1]] = bag.weights @ _rows(bag, values[feature_tables[f]]) / divisor
    return out.astype(np.float32)


def lookup_rows(
    tables: Sequence[NDArray[Any]],
    ids: NDArray[Any],
    offsets: NDArray[np.int64] | FixedHotness,
    *,
    feature_tables: Sequence[int],
    out_of_range: Policy | Sequence[Policy] = "error",
) -> list[NDArray[np.float32]]:
    """Gives each id's row by itself; see `rankhouse.kernels.arrays.lookup_rows`."""
    values = [dequantize_rows(table) for table in tables]
    bags = _Bags([table.shape for table in values], ids, offsets, feature_tables, None, out_of_range)
    rows: list[list[NDArray[np.float32]]] = [[] for _ in feature_tables]
    for bag in bags:
        rows[bag.feature].extend(_rows(bag, values[feature_tables[bag.feature]]))
    found = [
        np.array(of_feature, np.float32).reshape(-1, values[table].shape[1])
        for of_feature, table in zip(rows, feature_tables, strict=True)
    ]
    if isinstance(offsets, FixedHotness):
        sizes = zip(found, offsets.per_feature, strict=True)
        return [array.reshape(bags.batch_size, hotness, array.shape[1]) for array, hotness in sizes]
    return found


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
) -> list[SparseGradient]:
    """Gives the gradient of each table; see `rankhouse.kernels.arrays.pooled_lookup_gradient`."""
    columns = _columns([tables_shape[t][1] for t in feature_tables])
    sums: list[dict[int, NDArray[np.float64]]] = [{} for _ in tables_shape]
    for bag in _Bags(tables_shape, ids, offsets, feature_tables, weights, out_of_range):
        f, table = bag.feature, feature_tables[bag.feature]
        divisor = _divisor(bag, combiners[f], weighting, has_weights=weights is not None)
        share = grad[bag.sample, columns[f] : columns[f + 1]].astype(np.float64) / (divisor or np.inf)
        for row, weight in zip(bag.rows, bag.weights, strict=True):
            if row is not None:
                sums[table][row] = sums[table].get(row, 0.0) + weight * share
    return [
        SparseGradient(
            ids=np.array(sorted(rows), np.int64),
            rows=np.array([rows[row] for row in sorted(rows)], np.float32).reshape(-1, dim),
        )
        for rows, (_, dim) in zip(sums, tables_shape, strict=True)
    ]


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
) -> NDArray[np.float32]:
    """Gives the gradient of the weights; see `rankhouse.kernels.arrays.pooled_lookup_weight_gradient`."""
    columns = _columns([tables[t].shape[1] for t in feature_tables])
    gradient: list[NDArray[np.float64]] = [np.zeros(0)]
    values = [dequantize_rows(table) for table in tables]
    for bag in _Bags([table.shape for table in tables], ids, offsets, feature_tables, weights, out_of_range):
        f = bag.feature
        rows = _rows(bag, values[feature_tables[f]]).astype(np.float64)
        products = rows @ grad[bag.sample, columns[f] : columns[f + 1]].astype(np.float64)
        divisor = _divisor(bag, combiners[f], weighting, has_weights=True)
        if divisor == 0:
            gradient.append(np.zeros(len(products)))
        elif combiners[f] == "sum" or weighting == "fbgemm":
            gradient.append(products / divisor)
        else:
            pooled = bag.weights @ products / divisor
            inner = 1.0 if combiners[f] == "mean" else bag.weights / divisor
            gradient.append((products - inner * pooled) / divisor)
    return np.concatenate(gradient).astype(np.float32)


def _columns(dims: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(dims, dtype=np.int64).tolist()]


def _as_offsets(ids: NDArray[Any], offsets: NDArray[np.int64] | FixedHotness, num_features: int) -> NDArray[np.int64]:
    if not isinstance(offsets, FixedHotness):
        return offsets
    batch_size = len(ids) // sum(offsets.per_feature)
    lengths = np.repeat(np.array(offsets.per_feature, np.int64), batch_size)
    assert len(lengths) == num_features * batch_size
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


@dataclass(frozen=True)
class _Bag:
    feature: int
    sample: int
    rows: list[int | None]  # None: a row of zeros
    weights: NDArray[np.float64]


class _Bags:
    """The bags of a batch, feature by feature, with ids out of range replaced as the tables' policies say."""

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        ids: NDArray[Any],
        offsets: NDArray[np.int64] | FixedHotness,
        feature_tables: Sequence[int],
        weights: NDArray[np.float32] | None,
        out_of_range: Policy | Sequence[Policy],
    ) -> None:
        self._num_rows = [shape[0] for shape in shapes]
        self._ids = ids
        self._offsets = _as_offsets(ids, offsets, len(feature_tables))
        self._feature_tables = feature_tables
        self._weights = np.ones(len(ids)) if weights is None else weights.astype(np.float64)
        self._policies = [out_of_range] * len(shapes) if isinstance(out_of_range, str | int) else list(out_of_range)
        self.batch_size = (len(self._offsets) - 1) // len(feature_tables) if feature_tables else 0

    def __iter__(self) -> Iterator[_Bag]:
        for index in range(len(self._feature_tables) * self.batch_size):
            feature, sample = divmod(index, self.batch_size)
            place = slice(self._offsets[index], self._offsets[index + 1])
            rows = [self._row(row, feature, sample, n) for n, row in enumerate(self._ids[place].tolist())]
            yield _Bag(feature, sample, rows, self._weights[place])

    def _row(self, row: int, feature: int, sample: int, position: int) -> int | None:
        table = self._feature_tables[feature]
        num_rows, policy = self._num_rows[table], self._policies[table]
        if 0 <= row < num_rows:
            return row
        if policy == "zero":
            return None
        if policy == "error" or num_rows == 0:
            raise IdOutOfRangeError(
                f"id {row} of feature {feature} (sample {sample}, position {position} in its bag) is out of range: "
                f"table {table} has {num_rows} rows"
            )
        if policy == "clip":
            return 0 if row < 0 else num_rows - 1
        return int(policy)


def _rows(bag: _Bag, table: NDArray[Any]) -> NDArray[Any]:
    zeros = np.zeros(table.shape[1], table.dtype)
    return np.array([zeros if row is None else table[row] for row in bag.rows]).reshape(-1, table.shape[1])


def _divisor(bag: _Bag, combiner: str, weighting: str, *, has_weights: bool) -> float:
    """What the sum is divided by; 0 for an empty bag, and where the result is zeros."""
    if not bag.rows or combiner == "sum":
        return float(bool(bag.rows))
    if has_weights and weighting == "tensorflow":
        return float(bag.weights.sum() if combiner == "mean" else np.sqrt((bag.weights**2).sum()))
    return float(len(bag.rows) if combiner == "mean" else np.sqrt(len(bag.rows)))
