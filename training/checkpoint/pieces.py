"""The rectangles into which a checkpoint cuts its tables, and how rows are put together from them again.

Each array of a table is cut into pieces: rows [start, stop) and columns [column_start, column_stop), each in a file of
its own. Which rank wrote a piece, and under which plan, is of no matter: a reader asks for any rows and columns, and
gets them from the pieces that have them. A piece's rows lie one behind the other in its file, so some of them are read
alone; some of its columns are taken out of its rows.

An array with one number for a row has pieces too: their columns say of which slices of the table the numbers are. A
slot has the same one for all slices of a row, and is written once.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.files import FileRecord
from rankhouse.embedding_cache.format.row_types import decode
from rankhouse.training.errors import CheckpointError

Rows = npt.NDArray[Any]


@dataclass(frozen=True)
class Piece:
    """Rows [start, stop) and columns [column_start, column_stop) of one array of one table, and their file."""

    table: str
    array: str
    start: int
    stop: int
    file: str
    column_start: int
    column_stop: int

    @classmethod
    def parse(cls, item: Mapping[str, Any], dims: Mapping[str, int]) -> "Piece":
        """Reads a piece as a manifest has it; `dims` are the widths of the tables."""
        return cls(**{"column_start": 0, "column_stop": dims[item["table"]], **item})

    def document(self, dim: int) -> dict[str, Any]:
        """Returns the piece for a manifest, without columns where it has all `dim`: so older releases can read it."""
        document = {"table": self.table, "array": self.array, "start": self.start, "stop": self.stop, "file": self.file}
        if (self.column_start, self.column_stop) != (0, dim):
            document |= {"column_start": self.column_start, "column_stop": self.column_stop}
        return document


@dataclass(frozen=True)
class RowBlock:
    """Consecutive rows of a table: the number of the first, and [n, columns] or [n], read-only.

    They are float32, also those that are held in fewer bits; what there is one integer of for a row is of its type.
    """

    start: int
    rows: Rows


@dataclass(frozen=True)
class Band:
    """Rows [start, stop), which no piece's edge cuts, and the pieces that have them, from left to right."""

    start: int
    stop: int
    pieces: tuple[Piece, ...]

    def lacks(self, column_start: int, column_stop: int) -> bool:
        """Says whether some of these columns are in none of the pieces."""
        at = column_start
        for piece in self.pieces:
            if piece.column_start > at:
                break
            at = max(at, piece.column_stop)
        return at < column_stop


def bands(pieces: Sequence[Piece], *, start: int, stop: int, column_start: int, column_stop: int) -> Iterator[Band]:
    """Cuts rows [start, stop) wherever a piece that has some of the columns begins or ends."""
    there = [piece for piece in pieces if piece.column_start < column_stop and column_start < piece.column_stop]
    there.sort(key=lambda piece: (piece.column_start, piece.column_stop))
    edges = {edge for piece in there for edge in (piece.start, piece.stop) if start < edge < stop}
    for first, last in pairwise(sorted({start, stop} | edges)):
        yield Band(first, last, tuple(piece for piece in there if piece.start <= first and last <= piece.stop))


def join(band: Band, parts: Sequence[Rows], *, column_start: int, column_stop: int) -> Rows:
    """Puts the same rows of the pieces of a band side by side.

    Args:
        band: The band, which has all the columns.
        parts: For each of its pieces [n, its width]; or [n].
        column_start: The first column wanted.
        column_stop: One behind the last.

    Returns:
        [n, column_stop - column_start]; of one piece without a copy. Of arrays [n], which each slice of columns notes
        for itself, the largest number: a row was written when its last slice was.
    """
    if parts[0].ndim == 1:
        return parts[0] if len(parts) == 1 else np.maximum.reduce(parts)
    columns = []
    for piece, rows in zip(band.pieces, parts, strict=True):
        begin, end = max(column_start, piece.column_start), min(column_stop, piece.column_stop)
        columns.append(rows[:, begin - piece.column_start : end - piece.column_start])
    return columns[0] if len(columns) == 1 else np.concatenate(columns, axis=1)


def widened(rows: Rows) -> Rows:
    """Returns rows of 16-bit floats as float32, which is exact; others, and numbers for rows, as they are."""
    return decode(np.ascontiguousarray(rows)) if rows.dtype.itemsize == 2 else rows


class VerifiedRows:
    """Reads a piece's rows from the first to the last, and hashes its file by the same read, in another thread."""

    def __init__(self, path: Path, record: FileRecord, rows: Rows, hasher: ThreadPoolExecutor) -> None:
        """Hashes what stands before the rows.

        Args:
            path: The file.
            record: What it must be.
            rows: Its rows, mapped.
            hasher: Hashes, in the order in which it is asked to.

        Raises:
            CheckpointError: It cannot be read.
        """
        self._path, self._record, self._rows, self._hasher = path, record, rows, hasher
        self._at = 0
        self._hashed: Future[None] | None = None
        try:
            with open(path, "rb") as reader:
                self._digest = hashlib.sha256(reader.read(max(record.bytes - rows.nbytes, 0)))
        except OSError as exc:
            raise CheckpointError(
                f"{path}: cannot be read ({exc.strerror}); restore the file from another copy, or export an older "
                "checkpoint"
            ) from exc

    def read(self, num_rows: int) -> Rows:
        """Returns the next rows, which must be used before the next call."""
        self.settle()
        block = self._rows[self._at : self._at + num_rows]
        self._at += num_rows
        self._hashed = self._hasher.submit(self._digest.update, block.reshape(-1).view(np.uint8).data)
        return block

    def settle(self) -> None:
        """Waits until what was read is hashed.

        Raises:
            CheckpointError: That was the last row, and the file was altered.
        """
        if self._hashed is None:
            return
        self._hashed.result()
        self._hashed = None
        if self._at >= len(self._rows) and self._digest.hexdigest() != self._record.sha256:
            raise CheckpointError(
                f"{self._path}: its content was altered: expected SHA-256 {self._record.sha256}, found "
                f"{self._digest.hexdigest()}; restore the file from another copy, or export an older checkpoint"
            )
