"""Base segments: immutable files of consecutive embedding rows of one table.

Row i of a file is row `row_begin + i` of the table. FORMAT.md gives the file byte by byte.
"""

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy.typing as npt

from rankhouse.embedding_cache.format.errors import ContentError, CorruptFileError
from rankhouse.embedding_cache.format.files import FORMAT_VERSION
from rankhouse.embedding_cache.format.records import SegmentRecord, TableContent
from rankhouse.embedding_cache.format.row_types import RowType, encoded, row_type_of
from rankhouse.embedding_cache.format.shared_files import adopt, new_path, shared_path
from rankhouse.embedding_cache.format.tensors import DATA_ALIGNMENT, BlockTensor, open_tensors, stream_tensors

ROWS = "rows"


def write_segments(store: Path, table: TableContent, *, segment_bytes: int) -> tuple[SegmentRecord, ...]:
    """Writes all rows of a table into a store, in the memory of one block.

    Args:
        store: The store's folder.
        table: The table.
        segment_bytes: How many bytes of rows go into one file.

    Raises:
        ContentError: The blocks have another dtype or width, their rows do not add up, or the row type cannot hold a
            value.
    """
    row_type = row_type_of(table.dtype)
    rows_per_segment = max(1, segment_bytes // row_type.row_bytes(table.dim))
    stream = _RowStream(table.blocks)
    records = []
    for row_begin in range(0, table.num_rows, rows_per_segment):
        count = min(rows_per_segment, table.num_rows - row_begin)
        records.append(_write(store, table, row_type, stream.take(count), row_begin=row_begin, num_rows=count))
    if surplus := sum(len(block) for block in stream.rest()):
        raise ContentError(
            f"table {table.name!r} has {table.num_rows} rows, its blocks brought {table.num_rows + surplus}"
        )
    return tuple(records)


def _write(
    store: Path,
    table: TableContent,
    row_type: RowType,
    blocks: Iterable[npt.NDArray[Any]],
    *,
    row_begin: int,
    num_rows: int,
) -> SegmentRecord:
    temporary = new_path(store)
    rows = encoded(blocks, row_type, table=table.name, row_of=lambda place: row_begin + place)
    file = stream_tensors(
        temporary,
        [BlockTensor(ROWS, row_type.code, (num_rows, row_type.columns(table.dim)), rows)],
        _metadata(table.name, row_type, row_begin=row_begin),
    )
    adopt(store, temporary, file)
    return SegmentRecord(sha256=file.sha256, bytes=file.bytes, row_begin=row_begin, num_rows=num_rows)


def open_segment(store: Path, table: str, record: SegmentRecord, *, dim: int, row_type: RowType) -> npt.NDArray[Any]:
    """Maps a segment's rows into memory, read-only.

    Args:
        store: The store's folder.
        table: The table that the segment must belong to.
        record: The segment.
        dim: The width that it must have.
        row_type: The row type that it must have.

    Returns:
        [num_rows, columns] of the row type's dtype, loaded from the disk page by page when touched.

    Raises:
        CorruptFileError: The file is missing or malformed, or holds other rows than the record says.
    """
    path = shared_path(store, record.sha256)
    file = open_tensors(path)
    expected = _metadata(table, row_type, row_begin=record.row_begin)
    if file.metadata != expected:
        raise CorruptFileError(f"{path}: expected the segment {expected}, found {file.metadata}")
    found = {name: (code, file.tensors[name].shape) for name, code in file.codes.items()}
    wanted = {ROWS: (row_type.code, (record.num_rows, row_type.columns(dim)))}
    if found != wanted:
        raise CorruptFileError(f"{path}: table {table!r} expected the tensors {wanted}, found {found}")
    rows = file.tensors[ROWS]
    check_alignment(path, rows)
    return rows


def check_alignment(path: Path, rows: npt.NDArray[Any]) -> None:
    """Checks that mapped rows begin on a page.

    Raises:
        CorruptFileError: They do not.
    """
    if rows.size and rows.ctypes.data % DATA_ALIGNMENT:
        raise CorruptFileError(f"{path}: its rows do not begin on a multiple of {DATA_ALIGNMENT} bytes")


def _metadata(table: str, row_type: RowType, *, row_begin: int) -> dict[str, str]:
    metadata = {
        "format": "rankhouse.segment",
        "format_version": str(FORMAT_VERSION),
        "table": table,
        "row_begin": str(row_begin),
    }
    return metadata if row_type.name == "float32" else {**metadata, "row_type": row_type.name}


class _RowStream:
    """Blocks of rows, cut anew where a segment ends."""

    def __init__(self, blocks: Iterable[npt.NDArray[Any]]) -> None:
        self._blocks = iter(blocks)
        self._left: npt.NDArray[Any] | None = None

    def take(self, num_rows: int) -> Iterator[npt.NDArray[Any]]:
        """Yields the next `num_rows` rows, or what there is of them."""
        while num_rows > 0:
            block = next(self._blocks, None) if self._left is None else self._left
            if block is None:
                return
            self._left = block[num_rows:] if len(block) > num_rows else None
            yield block[:num_rows]
            num_rows -= len(block)

    def rest(self) -> Iterator[npt.NDArray[Any]]:
        """Yields what was not taken."""
        return chain([] if self._left is None else [self._left], self._blocks)
