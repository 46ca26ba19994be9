"""The effective rows of a table: its base, with its deltas laid over it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.delta import found_in, open_deltas
from rankhouse.embedding_cache.format.errors import ContentError
from rankhouse.embedding_cache.format.records import TableRecord
from rankhouse.embedding_cache.format.row_types import row_type_of
from rankhouse.embedding_cache.format.segment import open_segment

_BLOCK_BYTES = 16 << 20


class TableRows:
    """A table's files, mapped into memory. Immutable; any thread may read it.

    Attributes:
        table: The table.
        segments: Its base: [n, columns] each, of the row type's dtype.
        deltas: What lies over it, oldest first.
    """

    def __init__(self, store: Path, table: TableRecord) -> None:
        """Maps a table's files.

        Raises:
            CorruptFileError: A file is missing or not what the manifest says.
        """
        self.table = table
        self._row_type = row_type_of(table.dtype)
        self._columns = self._row_type.columns(table.dim)
        self.segments = [
            open_segment(store, table.name, segment, dim=table.dim, row_type=self._row_type)
            for segment in table.segments
        ]
        self.deltas = open_deltas(store, table)

    def gather(self, ids_N: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Copies rows.

        Args:
            ids_N: int64 [N], in any order; each must be a row of the table.

        Returns:
            [N, columns] of the row type's dtype.

        Raises:
            ContentError: An id is outside the table.
        """
        if len(ids_N) and not 0 <= ids_N.min() <= ids_N.max() < self.table.num_rows:
            wrong = ids_N.min() if ids_N.min() < 0 else ids_N.max()
            raise ContentError(f"table {self.table.name!r} has {self.table.num_rows} rows; there is no row {wrong}")
        rows_N = np.zeros((len(ids_N), self._columns), self._row_type.dtype)
        for segment, rows in zip(self.table.segments, self.segments, strict=True):
            end = segment.row_begin + segment.num_rows
            places = np.flatnonzero((ids_N >= segment.row_begin) & (ids_N < end))
            rows_N[places] = rows[ids_N[places] - segment.row_begin]
        for delta in self.deltas:
            places, sources = found_in(delta.ids, ids_N)
            rows_N[places] = delta.rows[sources]
            rows_N[found_in(delta.removed, ids_N)[0]] = 0
        return rows_N

    def blocks(self) -> Iterator[npt.NDArray[Any]]:
        """Yields all rows in order, as `gather` gives them, some MiB at a time; some are read-only."""
        step = max(1, _BLOCK_BYTES // self._row_type.row_bytes(self.table.dim))
        for begin in range(0, self.table.num_rows, step):
            yield self._block(begin, min(begin + step, self.table.num_rows))

    def _block(self, begin: int, end: int) -> npt.NDArray[Any]:
        """The rows [begin, end)."""
        parts = [
            rows[max(begin - segment.row_begin, 0) : max(end - segment.row_begin, 0)]
            for segment, rows in zip(self.table.segments, self.segments, strict=True)
        ]
        num_held = sum(map(len, parts))
        parts.append(np.zeros((end - begin - num_held, self._columns), self._row_type.dtype))
        parts = [part for part in parts if len(part)]
        block = parts[0] if len(parts) == 1 else np.concatenate(parts)
        for delta in self.deltas:
            first, last = np.searchsorted(delta.ids, (begin, end))
            first_removed, last_removed = np.searchsorted(delta.removed, (begin, end))
            if first < last or first_removed < last_removed:
                block = block if block.flags.writeable else block.copy()
                block[delta.ids[first:last] - begin] = delta.rows[first:last]
                block[delta.removed[first_removed:last_removed] - begin] = 0
        return block
