"""Rows of a prepared split in memory: from Arrow, reordered, cut and joined into batches."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankhouse.training.data.feature_spec import FeatureSpec


@dataclass(frozen=True)
class Batch:
    """One rank's part of a global batch; it may be empty.

    Symbols: b samples of this rank, F categorical features, N ids in all.

    Attributes:
        dense: float32 [b, num_dense].
        ids: int64 [N], feature-major.
        lengths: int32 [F, b], ids per bag.
        labels: float32 [b].
    """

    dense: npt.NDArray[np.float32]
    ids: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int32]
    labels: npt.NDArray[np.float32]

    @property
    def num_samples(self) -> int:
        """The number of samples, b."""
        return len(self.labels)


@dataclass(frozen=True)
class Bags:
    """One categorical feature of n rows.

    Attributes:
        ids: int64, all ids row by row.
        offsets: int64 [n + 1], where each row's begin; None where each row has exactly one.
    """

    ids: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64] | None

    def reordered(self, order: npt.NDArray[np.int64]) -> "Bags":
        """The rows in another order."""
        if self.offsets is None:
            return Bags(self.ids[order], None)
        lengths = np.diff(self.offsets)[order]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        within = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        return Bags(self.ids[np.repeat(self.offsets[order], lengths) + within], offsets)

    def part(self, begin: int, end: int) -> "Bags":
        """The rows of a range, without copying the ids."""
        if self.offsets is None:
            return Bags(self.ids[begin:end], None)
        # The offsets begin at 0 again, so that a part can be cut once more.
        offsets = self.offsets[begin : end + 1]
        return Bags(self.ids[offsets[0] : offsets[-1]], offsets - offsets[0])

    def lengths(self) -> npt.NDArray[np.int32]:
        """Ids in each row, int32 [n]."""
        if self.offsets is None:
            return np.ones(len(self.ids), dtype=np.int32)
        return np.diff(self.offsets).astype(np.int32)


@dataclass(frozen=True)
class Rows:
    """n rows.

    Attributes:
        dense: float32 [n, num_dense].
        bags: One for each categorical feature.
        labels: float32 [n].
    """

    dense: npt.NDArray[np.float32]
    bags: tuple[Bags, ...]
    labels: npt.NDArray[np.float32]

    @property
    def num_rows(self) -> int:
        """The number of rows, n."""
        return len(self.labels)

    @classmethod
    def from_arrow(cls, spec: FeatureSpec, table: pa.Table) -> "Rows":
        """Takes the columns that the spec names out of an Arrow table; nulls, as keys have them, are empty bags."""
        dense = np.empty((table.num_rows, len(spec.continuous)), dtype=np.float32)
        for index, feature in enumerate(spec.continuous):
            dense[:, index] = table[feature.name].to_numpy()
        bags = tuple(_bags(table[feature.name]) for feature in spec.categorical)
        return cls(dense, bags, table[spec.label].to_numpy().astype(np.float32, copy=False))

    def reordered(self, order: npt.NDArray[np.int64]) -> "Rows":
        """The rows in another order."""
        return Rows(self.dense[order], tuple(bags.reordered(order) for bags in self.bags), self.labels[order])

    def part(self, begin: int, end: int) -> "Rows":
        """The rows of a range, without copying; it may reach beyond the end."""
        end = min(end, self.num_rows)
        bags = tuple(bags.part(begin, end) for bags in self.bags)
        return Rows(self.dense[begin:end], bags, self.labels[begin:end])


def joined(spec: FeatureSpec, parts: Sequence[Rows]) -> Batch:
    """Puts rows of several lanes one after the other into a batch.

    Args:
        spec: The feature spec, which gives the shapes of an empty batch.
        parts: The rows.
    """
    num_samples = sum(part.num_rows for part in parts)
    lengths = np.empty((len(spec.categorical), num_samples), dtype=np.int32)
    ids: list[npt.NDArray[np.int64]] = [np.empty(0, dtype=np.int64)]
    for index in range(len(spec.categorical)):
        begin = 0
        for part in parts:
            bags = part.bags[index]
            end = begin + part.num_rows
            # One id in each bag is by far the commonest, and needs no array of ones.
            lengths[index, begin:end] = 1 if bags.offsets is None else bags.lengths()
            ids.append(bags.ids)
            begin = end
    dense = [part.dense for part in parts] or [np.empty((0, len(spec.continuous)), dtype=np.float32)]
    labels = [part.labels for part in parts] or [np.empty(0, dtype=np.float32)]
    return Batch(np.concatenate(dense), np.concatenate(ids), lengths, np.concatenate(labels))


def _bags(column: pa.ChunkedArray) -> Bags:
    if not (pa.types.is_list(column.type) or pa.types.is_large_list(column.type)):
        if not column.null_count:
            return Bags(column.to_numpy().astype(np.int64, copy=False), None)
        offsets = np.concatenate([[0], np.cumsum(column.is_valid().to_numpy(), dtype=np.int64)])
        return Bags(column.drop_null().to_numpy().astype(np.int64, copy=False), offsets)
    chunk = column.combine_chunks()
    if isinstance(chunk, pa.ChunkedArray):
        chunk = pa.concat_arrays(chunk.chunks) if chunk.num_chunks else pa.array([], column.type)
    # `offsets` of a sliced array point into its parent's values; `flatten` gives only the slice's.
    offsets = chunk.offsets.to_numpy().astype(np.int64)
    return Bags(chunk.flatten().to_numpy().astype(np.int64, copy=False), offsets - offsets[0])
