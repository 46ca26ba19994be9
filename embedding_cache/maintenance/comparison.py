"""What changed between two versions: rows of tables, features, vocabularies, the dense part and metrics.

Where both hold a table as the same base with deltas over it, only the rows of those deltas are read that not both have;
otherwise all rows of both, block by block. Either way gives the same counts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.records import FeatureRecord, TableRecord
from rankhouse.embedding_cache.format.row_types import decode
from rankhouse.embedding_cache.format.statistics import STATISTICS
from rankhouse.embedding_cache.format.table_rows import TableRows
from rankhouse.embedding_cache.format.version import Version
from rankhouse.embedding_cache.format.version_record import DENSE_FILE
from rankhouse.embedding_cache.format.vocabulary import FIRST_KNOWN_ID, Vocabularies

_BLOCK_VALUES = 4 << 20

Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]


@dataclass
class TableDifference:
    """What changed in a table. A row of zeros counts as none, because that is how a row that went reads.

    Attributes:
        name: The table's name.
        rows_before: Its number of rows in the one version; 0 where it has no such table.
        rows_after: Its number of rows in the other.
        num_added: Rows that only the other has.
        num_changed: Rows that both have, of other values.
        num_removed: Rows that only the one has.
        max_change: The largest absolute change of a value in the changed rows.
        mean_change: The mean absolute change of the values in the changed rows.
        rows_read: How many rows of each version were read to know it.
    """

    name: str
    rows_before: int
    rows_after: int
    num_added: int = 0
    num_changed: int = 0
    num_removed: int = 0
    max_change: float = 0.0
    mean_change: float = 0.0
    rows_read: int = 0

    @property
    def is_same(self) -> bool:
        """Whether all rows of both are the same."""
        return self.rows_before == self.rows_after and not self.num_added + self.num_changed + self.num_removed


@dataclass(frozen=True)
class VersionDifference:
    """What changed from one version to another.

    Attributes:
        before: The one version's name.
        after: The other's.
        tables: What changed in each table, in the other's order; those that went stand last.
        known_values: For each table how many values its vocabulary knows, in the one and the other; None where it
            has no such table.
        features_added: Categorical features that only the other has.
        features_removed: Those that only the one has.
        features_changed: Those that both have, with another table, combiner or width.
        dense: "same", "changed", "added" or "removed".
        metrics: The metrics that differ, but for the training statistics, in the one and the other; None where it does
            not have it.
    """

    before: str
    after: str
    tables: tuple[TableDifference, ...]
    known_values: dict[str, tuple[int | None, int | None]]
    features_added: tuple[str, ...]
    features_removed: tuple[str, ...]
    features_changed: tuple[str, ...]
    dense: str
    metrics: dict[str, tuple[Any, Any]] = field(default_factory=dict)


def compare_versions(
    before: Version, after: Version, *, on_rows: Callable[[int, int], None] = lambda done, total: None
) -> VersionDifference:
    """Compares two versions of any store, in the memory of a few blocks.

    Args:
        before: The one version.
        after: The other.
        on_rows: Called with the rows compared so far and in all.

    Raises:
        FormatError: A file of one of them is damaged.
    """
    tables = {table.name: (None, table) for table in after.tables}
    pairs: dict[str, tuple[TableRecord | None, TableRecord | None]] = dict(tables)
    for table in before.tables:
        pairs[table.name] = (table, tables.get(table.name, (None, None))[1])
    comparisons = [_Comparison(_opened(before, one), _opened(after, other)) for one, other in pairs.values()]
    total, done = sum(comparison.num_ids for comparison in comparisons), 0
    for comparison in comparisons:
        for count in comparison.run():
            done += count
            on_rows(done, total)
    features = (
        {feature.name: feature for feature in before.features},
        {feature.name: feature for feature in after.features},
    )
    return VersionDifference(
        before=before.name,
        after=after.name,
        tables=tuple(comparison.difference for comparison in comparisons),
        known_values=_known_values(before, after),
        features_added=tuple(name for name in features[1] if name not in features[0]),
        features_removed=tuple(name for name in features[0] if name not in features[1]),
        features_changed=tuple(name for name in features[0] if _is_another(features[0][name], features[1].get(name))),
        dense=_dense(before, after),
        metrics={
            name: (before.metrics.get(name), after.metrics.get(name))
            for name in {**before.metrics, **after.metrics}
            if before.metrics.get(name) != after.metrics.get(name) and name != STATISTICS
        },
    )


class _Comparison:
    """The comparison of a table in two versions, of which one may not have it."""

    def __init__(self, one: TableRows | None, other: TableRows | None) -> None:
        self._one, self._other = one, other
        rows_before, rows_after = (0 if rows is None else rows.table.num_rows for rows in (one, other))
        self._ids = _changed_ids(one, other)
        self.num_ids = max(rows_before, rows_after) if self._ids is None else len(self._ids)
        present = other if other is not None else one
        assert present is not None
        self.difference = TableDifference(present.table.name, rows_before, rows_after, rows_read=self.num_ids)
        self._sum, self._num_values = 0.0, 0

    def run(self) -> Iterator[int]:
        """Compares block by block; yields the number of rows of each block."""
        dims = [rows.table.dim for rows in (self._one, self._other) if rows is not None]
        step = max(1, _BLOCK_VALUES // max(dims))
        for begin in range(0, self.num_ids, step):
            end = min(begin + step, self.num_ids)
            self._add(np.arange(begin, end) if self._ids is None else self._ids[begin:end])
            yield end - begin
        if self._num_values:
            self.difference.mean_change = self._sum / self._num_values

    def _add(self, ids_N: Ids) -> None:
        before_ND, after_ND = (_gather(rows, ids_N) for rows in (self._one, self._other))
        was_N, is_N = (rows.any(axis=1) for rows in (before_ND, after_ND))
        self.difference.num_added += int((is_N & ~was_N).sum())
        self.difference.num_removed += int((was_N & ~is_N).sum())
        both_N = was_N & is_N
        if before_ND.shape != after_ND.shape:  # Of another width: every row is another one.
            self.difference.num_changed += int(both_N.sum())
            return
        changed_N = both_N & (before_ND != after_ND).any(axis=1)
        change_MD = np.abs(after_ND[changed_N].astype(np.float64) - before_ND[changed_N])
        self.difference.num_changed += len(change_MD)
        self.difference.max_change = max(self.difference.max_change, float(change_MD.max(initial=0.0)))
        self._sum += float(change_MD.sum())
        self._num_values += change_MD.size


def _opened(version: Version, table: TableRecord | None) -> TableRows | None:
    return None if table is None else version.table_rows(table.name)


def _changed_ids(one: TableRows | None, other: TableRows | None) -> Ids | None:
    """The ids of the rows that may differ, sorted; None where those of all rows may."""
    if one is None or other is None:
        return None
    if (one.table.dim, one.table.dtype, one.table.segments) != (
        other.table.dim,
        other.table.dtype,
        other.table.segments,
    ):
        return None
    records = one.table.deltas, other.table.deltas
    num_shared = 0
    while num_shared < min(map(len, records)) and records[0][num_shared] == records[1][num_shared]:
        num_shared += 1
    deltas = (*one.deltas[num_shared:], *other.deltas[num_shared:])
    parts = [ids for delta in deltas for ids in (delta.ids, delta.removed)]
    return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)


def _gather(rows: TableRows | None, ids_N: Ids) -> Rows:
    """Reads rows, float32 [N, D]; those that the table does not have are zeros."""
    if rows is None:
        return np.zeros((len(ids_N), 1), np.float32)
    gathered_ND = np.zeros((len(ids_N), rows.table.dim), np.float32)
    there_N = ids_N < rows.table.num_rows
    gathered_ND[there_N] = decode(rows.gather(ids_N[there_N]))
    return gathered_ND


def _known_values(before: Version, after: Version) -> dict[str, tuple[int | None, int | None]]:
    one, other = (_num_known(version.transform().vocabularies) for version in (before, after))
    return {table: (one.get(table), other.get(table)) for table in {**other, **one}}


def _num_known(vocabularies: Vocabularies) -> dict[str, int]:
    return {
        table: num_rows - FIRST_KNOWN_ID - len(vocabularies.free_ids(table))
        for table, num_rows in vocabularies.num_rows.items()
    }


def _is_another(one: FeatureRecord, other: FeatureRecord | None) -> bool:
    return other is not None and (one.table, one.combiner, one.dim) != (other.table, other.combiner, other.dim)


def _dense(before: Version, after: Version) -> str:
    one, other = (version.manifest.files.get(DENSE_FILE) for version in (before, after))
    if one == other:
        return "same"
    return "changed" if one and other else "added" if other else "removed"
