"""The rows of a version: a checkpoint's, checked, in the version's row type, with zeros where an id has no value."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.progress import ByteProgress
from rankhouse.embedding_cache.format.records import TableContent, TableDelta
from rankhouse.embedding_cache.format.row_types import decode, encoded, row_type_of
from rankhouse.training.checkpoint.files import Checkpoint
from rankhouse.training.checkpoint.learnt_keys import LearntKeys
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.errors import ExportError

Ids = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]

# float32 bytes. Each block is read, hashed, checked and written while it is in the processor's cache.
_BLOCK_BYTES = 4 << 20


class ServedRows:
    """Turns a checkpoint's rows into those of a version. Any thread may use it."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        dataset: PreparedDataset,
        row_types: Mapping[str, str],
        *,
        metrics: dict[str, Any],
        on_bytes: Callable[[int, int], None],
        learnt: Mapping[str, LearntKeys] | None = None,
    ) -> None:
        """Names what to read; no row is read yet.

        Args:
            checkpoint: The checkpoint.
            dataset: The dataset that it was trained on.
            row_types: The row type of each table.
            metrics: Where to note the error that the row types cost, of all rows consumed so far: `row_error_max` and
                `row_error_mean`, absolute; nothing where all tables are float32.
            on_bytes: Called while rows are consumed, with the bytes so far and in all.
            learnt: The keys of the tables that learn theirs, by name.

        Raises:
            ContentError: There is no such row type.
            FormatError: The compiled transform is damaged.
        """
        self._checkpoint, self._dataset = checkpoint, dataset
        self._vocabularies = dataset.transform().vocabularies
        self._learnt = learnt or {}
        self._row_types = {table: row_type_of(name) for table, name in row_types.items()}
        self._progress = ByteProgress(on_bytes)
        self._errors = _RowErrors(metrics)

    @property
    def row_types(self) -> tuple[str, ...]:
        """The names of the row types, each once."""
        return tuple(sorted({row_type.name for row_type in self._row_types.values()}))

    def as_served(self, table: str, ids: Ids, rows: Rows) -> Rows:
        """Gives rows float32 [n, D] the values with which serving will read them, as rows `ids` of a table.

        Raises:
            ContentError: The row type cannot hold a value.
        """
        return decode(self._encode(table, ids, rows))

    def whole(self, table: str) -> TableContent:
        """All rows of a table, read and verified by one pass over the checkpoint's files.

        Raises:
            CheckpointError, ContentError, ExportError: While the blocks are consumed: a file was altered; the row type
                cannot hold a value; a row is not finite.
        """
        info, row_type = self._dataset.tables[table], self._row_types[table]
        num_rows = self._learnt[table].num_rows if table in self._learnt else info.num_rows
        self._progress.expect(num_rows * row_type.row_bytes(info.dim))
        blocks = self._consumed(table, self._streamed(table))
        return TableContent(table, num_rows, info.dim, blocks, dtype=row_type.name)

    def delta(self, table: str, *, since: int, num_known: int, num_layers: int) -> TableDelta:
        """The rows of a table that changed, and those whose id got or lost its value; not of one that learns its keys.

        The files that hold the rows are not verified: that would read all of them.

        Args:
            table: The table.
            since: The iteration up to which changes are known.
            num_known: The number of rows that the table had then.
            num_layers: The number of layers that the vocabularies had then.

        Raises:
            CheckpointError: What the checkpoint notes of the rows is damaged.
            ContentError, ExportError: As in `whole`.
        """
        info, row_type = self._dataset.tables[table], self._row_types[table]
        # An id without a value was served as zeros; its row has to come with its new value, also if no step wrote it.
        given = self._vocabularies.given_since(table, num_layers)
        new = np.union1d(given, np.arange(num_known, info.num_rows))
        changed = np.union1d(self._checkpoint.touched_since(table, since), new)
        is_free = np.isin(changed, self._vocabularies.free_ids(table), assume_unique=True)
        ids = changed[~is_free]
        self._progress.expect(len(ids) * row_type.row_bytes(info.dim))
        blocks = self._consumed(table, self._gathered(table, ids))
        return TableDelta(table, info.num_rows, ids, blocks, removed=changed[is_free])

    def _streamed(self, table: str) -> Iterator[tuple[Ids, Rows]]:
        free, num_rows = self._vocabularies.free_ids(table), self._block_rows(table)
        learnt = self._learnt.get(table)
        stream = self._checkpoint.stream(table, num_rows=num_rows) if not learnt else learnt.stream(num_rows=num_rows)
        for block in stream:
            ids, rows = np.arange(block.start, block.start + len(block.rows)), block.rows
            inside = free[slice(*np.searchsorted(free, (ids[0], ids[-1] + 1)))]
            if len(inside):
                rows = rows.copy()
                rows[inside - block.start] = 0
            yield ids, rows

    def _gathered(self, table: str, ids: Ids) -> Iterator[tuple[Ids, Rows]]:
        step = self._block_rows(table)
        for begin in range(0, len(ids), step):
            part = ids[begin : begin + step]
            yield part, self._checkpoint.gather(table, part)

    def _consumed(self, table: str, blocks: Iterable[tuple[Ids, Rows]]) -> Iterator[npt.NDArray[Any]]:
        for ids, rows in blocks:
            _check_finite(rows, ids, table)
            block = self._encode(table, ids, rows)
            if block is not rows:
                self._errors.add(rows, decode(block))
            yield block
            self._progress.add(block.nbytes)

    def _encode(self, table: str, ids: Ids, rows: Rows) -> npt.NDArray[Any]:
        (block,) = encoded([rows], self._row_types[table], table=table, row_of=lambda place: int(ids[place]))
        return block

    def _block_rows(self, table: str) -> int:
        return max(1, _BLOCK_BYTES // (4 * self._dataset.tables[table].dim))


def _check_finite(rows: Rows, ids: Ids, table: str) -> None:
    """Refuses a row that is not finite, which no golden request might notice.

    Raises:
        ExportError: There is one.
    """
    # What is not finite makes the sum so; finite rows whose sum overflows are looked at more closely, and pass.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(rows.sum()):
            return
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        raise ExportError(
            f"row {ids[np.argmin(finite)]} of table {table!r} holds what is no finite number; export an older "
            "checkpoint, and train with a lower learning rate"
        )


class _RowErrors:
    """Sums up how far rows are from what they were, in several threads."""

    def __init__(self, metrics: dict[str, Any]) -> None:
        self._metrics = metrics
        self._largest, self._sum, self._count = 0.0, 0.0, 0
        self._lock = threading.Lock()

    def add(self, rows: Rows, found: Rows) -> None:
        errors = np.abs(np.subtract(found, rows, out=found), out=found)
        largest, total = float(errors.max(initial=0)), float(errors.sum(dtype=np.float64))
        with self._lock:
            self._largest, self._sum = max(self._largest, largest), self._sum + total
            self._count += errors.size
            self._metrics |= {"row_error_max": self._largest, "row_error_mean": self._sum / self._count}
