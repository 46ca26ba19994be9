"""The embedding operations in plain NumPy: what the compiled ones must equal. Slow and obvious; for tests.

The signatures are those of `rankhouse.kernels.arrays`; sums are made in float64 and rounded once.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from rankhouse.kernels.bags import FixedHotness, SparseGradient
from rankhouse.kernels.errors import IdOutOfRangeError


def pooled_lookup(
    tables: Sequence[NDArray[np.float32]],
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64] | FixedHotness,
    *,
    feature_tables: Sequence[int],
    combiners: Sequence[str],
) -> NDArray[np.float32]:
    """Adds up or averages the rows of each bag; see `rankhouse.kernels.arrays.pooled_lookup`."""
    columns = _columns([tables[t].shape[1] for t in feature_tables])
    offsets = _as_offsets(ids, offsets, len(feature_tables))
    out = np.zeros((_batch_size(offsets, len(feature_tables)), columns[-1]))
    for f, b, bag in _bags(ids, offsets, len(feature_tables)):
        table = tables[feature_tables[f]]
        _check_ids(bag, f, b, feature_tables[f], table.shape[0])
        if len(bag):
            rows = table[bag].astype(np.float64)
            out[b, columns[f] : columns[f + 1]] = rows.sum(0) if combiners[f] == "sum" else rows.mean(0)
    return out.astype(np.float32)


def pooled_lookup_gradient(
    grad: NDArray[np.float32],
    ids: NDArray[np.int64],
    offsets: NDArray[np.int64] | FixedHotness,
    *,
    tables_shape: Sequence[tuple[int, int]],
    feature_tables: Sequence[int],
    combiners: Sequence[str],
) -> list[SparseGradient]:
    """Gives the gradient of each table; see `rankhouse.kernels.arrays.pooled_lookup_gradient`."""
    columns = _columns([tables_shape[t][1] for t in feature_tables])
    offsets = _as_offsets(ids, offsets, len(feature_tables))
    sums: list[dict[int, NDArray[np.float64]]] = [{} for _ in tables_shape]
    for f, b, bag in _bags(ids, offsets, len(feature_tables)):
        table = feature_tables[f]
        _check_ids(bag, f, b, table, tables_shape[table][0])
        share = grad[b, columns[f] : columns[f + 1]].astype(np.float64)
        if combiners[f] == "mean":
            share = share / max(1, len(bag))
        for row in bag.tolist():
            sums[table][row] = sums[table].get(row, 0.0) + share
    return [
        SparseGradient(
            ids=np.array(sorted(rows), np.int64),
            rows=np.array([rows[row] for row in sorted(rows)], np.float32).reshape(-1, dim),
        )
        for rows, (_, dim) in zip(sums, tables_shape, strict=True)
    ]


def _columns(dims: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(dims, dtype=np.int64).tolist()]


def _as_offsets(
    ids: NDArray[np.int64], offsets: NDArray[np.int64] | FixedHotness, num_features: int
) -> NDArray[np.int64]:
    if not isinstance(offsets, FixedHotness):
        return offsets
    batch_size = len(ids) // sum(offsets.per_feature)
    lengths = np.repeat(np.array(offsets.per_feature, np.int64), batch_size)
    assert len(lengths) == num_features * batch_size
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _batch_size(offsets: NDArray[np.int64], num_features: int) -> int:
    return (len(offsets) - 1) // num_features if num_features else 0


def _bags(
    ids: NDArray[np.int64], offsets: NDArray[np.int64], num_features: int
) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
    batch_size = _batch_size(offsets, num_features)
    for bag in range(num_features * batch_size):
        yield bag // batch_size, bag % batch_size, ids[offsets[bag] : offsets[bag + 1]]


def _check_ids(bag: NDArray[np.int64], feature: int, sample: int, table: int, num_rows: int) -> None:
    for position, row in enumerate(bag.tolist()):
        if not 0 <= row < num_rows:
            raise IdOutOfRangeError(
                f"id {row} of feature {feature} (sample {sample}, position {position} in its bag) is out of range: "
                f"table {table} has {num_rows} rows"
            )
