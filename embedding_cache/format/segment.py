"""Segments: immutable files of embedding rows of one table, named by the hash of their content.

Versions share segments, so rows that did not change are stored once. A segment holds a range of rows: row i of the file
is row `row_begin + i` of the table.

FORMAT.md gives the file byte by byte.
"""

import os
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.errors import ContentError, CorruptFileError
from rankhouse.embedding_cache.format.files import FORMAT_VERSION, FileRecord, check_content, flush
from rankhouse.embedding_cache.format.tensors import DATA_ALIGNMENT, read_metadata, read_tensors, write_tensor_blocks

SEGMENTS = "segments"

_TENSOR = "rows"


@dataclass(frozen=True)
class SegmentRecord:
    """What a version's manifest remembers of a segment.

    Attributes:
        sha256: The SHA-256 of the file, which is also its name.
        bytes: The file's size.
        row_begin: The table's row that is the segment's first.
        num_rows: How many rows it holds.
    """

    sha256: str
    bytes: int
    row_begin: int
    num_rows: int

    def path(self, store: Path) -> Path:
        """Where the segment lies in a store."""
        return store / SEGMENTS / f"{self.sha256}.safetensors"


def write_segments(
    store: Path,
    table: str,
    blocks: Iterable[npt.NDArray[np.float32]],
    *,
    num_rows: int,
    dim: int,
    rows_per_segment: int,
) -> tuple[SegmentRecord, ...]:
    """Writes all rows of a table into a store, in the memory of one block.

    Args:
        store: The store's folder.
        table: The table's name.
        blocks: float32 [n, dim] each; together the table's rows in order.
        num_rows: How many rows the table has.
        dim: Its width.
        rows_per_segment: How many rows go into one file.

    Raises:
        ContentError: The blocks have another dtype or width, or their rows do not add up.
    """
    rows = _RowStream(blocks)
    records = []
    for row_begin in range(0, num_rows, rows_per_segment):
        count = min(rows_per_segment, num_rows - row_begin)
        records.append(write_segment(store, table, rows.take(count), row_begin=row_begin, num_rows=count, dim=dim))
    if surplus := sum(len(block) for block in rows.rest()):
        raise ContentError(f"table {table!r} has {num_rows} rows, its blocks brought {num_rows + surplus}")
    return tuple(records)


def write_segment(
    store: Path, table: str, blocks: Iterable[npt.NDArray[np.float32]], *, row_begin: int, num_rows: int, dim: int
) -> SegmentRecord:
    """Writes a range of a table's rows into a store, in the memory of one block.

    Nothing is replaced: where a sound file of the same content exists, it stays.

    Args:
        store: The store's folder.
        table: The table's name.
        blocks: float32 [n, dim] each; together the rows [row_begin, row_begin + num_rows) of the table.
        row_begin: The first row.
        num_rows: The number of rows.
        dim: The table's width.

    Raises:
        ContentError: The blocks have another dtype or width, or their rows do not add up.
    """
    folder = store / SEGMENTS
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".tmp-{uuid.uuid4().hex}"
    file = write_tensor_blocks(
        temporary, _TENSOR, blocks, shape=(num_rows, dim), metadata=_metadata(table, row_begin=row_begin)
    )
    record = SegmentRecord(sha256=file.sha256, bytes=file.bytes, row_begin=row_begin, num_rows=num_rows)
    if _is_sound(record.path(store), file):
        temporary.unlink()
    else:
        os.replace(temporary, record.path(store))
    # Also where the file was there: the writer that put it there may not have come so far yet.
    flush(folder)
    return record


def check_segment(store: Path, record: SegmentRecord, *, verify: bool = True) -> None:
    """Checks that a segment is there in its full size, and by option that its content has the hash of its name.

    Raises:
        CorruptFileError: It is missing, truncated or altered; restoring it from another copy repairs all its versions.
    """
    path = record.path(store)
    if not path.is_file():
        raise CorruptFileError(f"{path}: is missing; restore the segment from another copy of the store")
    size = path.stat().st_size
    if size != record.bytes:
        raise CorruptFileError(
            f"{path}: expected {record.bytes} bytes, found {size}; restore the segment from another copy of the store"
        )
    if verify:
        check_content(path, FileRecord(bytes=record.bytes, sha256=record.sha256))


def open_segment(store: Path, table: str, record: SegmentRecord, *, dim: int) -> npt.NDArray[np.float32]:
    """Maps a segment's rows into memory, read-only.

    Args:
        store: The store's folder.
        table: The table that the segment must belong to.
        record: The segment.
        dim: The width that it must have.

    Returns:
        float32 [num_rows, dim], loaded from the disk page by page when touched.

    Raises:
        CorruptFileError: The file is missing or malformed, or holds other rows than the record says.
    """
    path = record.path(store)
    tensors, metadata = read_tensors(path), read_metadata(path)
    expected = _metadata(table, row_begin=record.row_begin)
    if metadata != expected:
        raise CorruptFileError(f"{path}: expected the segment {expected}, found {metadata}")
    found = {name: (str(tensor.dtype), tensor.shape) for name, tensor in tensors.items()}
    wanted = {_TENSOR: ("float32", (record.num_rows, dim))}
    if found != wanted:
        raise CorruptFileError(f"{path}: table {table!r} expected the tensors {wanted}, found {found}")
    rows: npt.NDArray[np.float32] = tensors[_TENSOR]
    if rows.ctypes.data % DATA_ALIGNMENT:
        raise CorruptFileError(f"{path}: its rows do not begin on a multiple of {DATA_ALIGNMENT} bytes")
    return rows


def _metadata(table: str, *, row_begin: int) -> dict[str, Any]:
    return {
        "format": "rankhouse.segment",
        "format_version": str(FORMAT_VERSION),
        "table": table,
        "row_begin": str(row_begin),
    }


def _is_sound(path: Path, file: FileRecord) -> bool:
    try:
        check_content(path, file)
    except CorruptFileError:
        return False
    return True


class _RowStream:
    """Blocks of rows, cut anew where a segment ends."""

    def __init__(self, blocks: Iterable[npt.NDArray[np.float32]]) -> None:
        self._blocks = iter(blocks)
        self._left: npt.NDArray[np.float32] | None = None

    def take(self, num_rows: int) -> Iterator[npt.NDArray[np.float32]]:
        """Yields the next `num_rows` rows, or what there is of them."""
        while num_rows > 0:
            block = next(self._blocks, None) if self._left is None else self._left
            if block is None:
                return
            self._left = block[num_rows:] if len(block) > num_rows else None
            yield block[:num_rows]
            num_rows -= len(block)

    def rest(self) -> Iterator[npt.NDArray[np.float32]]:
        """Yields what was not taken."""
        return chain([] if self._left is None else [self._left], self._blocks)
