"""Delta segments: the rows of one table that changed since the parent version, and the ids of those that went.

A delta applies to one state of its table, and says to which: its `chain` is a hash over all files before it. So a delta
in the wrong place, twice, or after a missing one is refused. FORMAT.md gives the file byte by byte.
"""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.errors import ContentError, CorruptFileError
from rankhouse.embedding_cache.format.files import FORMAT_VERSION
from rankhouse.embedding_cache.format.records import DeltaRecord, TableDelta, TableRecord
from rankhouse.embedding_cache.format.row_types import encoded, row_type_of
from rankhouse.embedding_cache.format.segment import ROWS, check_alignment
from rankhouse.embedding_cache.format.shared_files import adopt, new_path, shared_path
from rankhouse.embedding_cache.format.tensors import BlockTensor, TensorFile, open_tensors, stream_tensors

Ids = npt.NDArray[np.int64]

_IDS, _REMOVED = "ids", "removed"


@dataclass(frozen=True)
class DeltaRows:
    """A delta, mapped into memory, read-only.

    Attributes:
        ids: int64 [n], sorted, each once.
        rows: [n, columns] of the table's row type, in the order of `ids`.
        removed: int64 [m], sorted, each once, none of them in `ids`.
    """

    ids: Ids
    rows: npt.NDArray[Any]
    removed: Ids


def write_delta(store: Path, parent: TableRecord, delta: TableDelta) -> TableRecord:
    """Writes what changed in a table into a store, in the memory of one block.

    Args:
        store: The store's folder.
        parent: The table as it was.
        delta: What changed. If that is nothing, nothing is written.

    Returns:
        The table as it is now.

    Raises:
        ContentError: The delta contradicts itself or the parent, leaves new rows out, or the row type cannot hold a
            value.
    """
    _check_content(parent, delta)
    if not len(delta.ids) and not len(delta.removed):
        return parent
    row_type = row_type_of(parent.dtype)
    temporary = new_path(store)
    rows = encoded(delta.blocks, row_type, table=parent.name, row_of=lambda place: int(delta.ids[place]))
    file = stream_tensors(
        temporary,
        [
            BlockTensor(ROWS, row_type.code, (len(delta.ids), row_type.columns(parent.dim)), rows),
            BlockTensor(_IDS, "I64", delta.ids.shape, [delta.ids]),
            BlockTensor(_REMOVED, "I64", delta.removed.shape, [delta.removed]),
        ],
        _metadata(parent),
    )
    adopt(store, temporary, file)
    record = DeltaRecord(file.sha256, file.bytes, num_rows=len(delta.ids), num_removed=len(delta.removed))
    return replace(parent, num_rows=delta.num_rows, deltas=(*parent.deltas, record))


def open_deltas(store: Path, table: TableRecord) -> list[DeltaRows]:
    """Maps a table's deltas, oldest first.

    Raises:
        CorruptFileError: One is missing or malformed, belongs to another state of the table, or holds other rows than
            its record says.
    """
    return [_open(store, table, number) for number in range(len(table.deltas))]


def check_deltas(store: Path, table: TableRecord) -> None:
    """Checks that each of a table's deltas applies to what is before it, by their headers alone.

    Raises:
        CorruptFileError: One does not, or holds other rows than its record says.
    """
    for number in range(len(table.deltas)):
        _open_file(store, table, number)


def _open(store: Path, table: TableRecord, number: int) -> DeltaRows:
    path, file = _open_file(store, table, number)
    rows = file.tensors[ROWS]
    check_alignment(path, rows)
    # Where they do not lie on a multiple of 8, each search would copy them.
    ids, removed = (np.require(file.tensors[name], requirements="A") for name in (_IDS, _REMOVED))
    if fault := _fault(ids, removed, num_rows=table.num_rows):
        raise CorruptFileError(f"{path}: is no delta of table {table.name!r}: {fault}; export the version again")
    return DeltaRows(ids, rows, removed)


def _open_file(store: Path, table: TableRecord, number: int) -> tuple[Path, TensorFile]:
    record, row_type = table.deltas[number], row_type_of(table.dtype)
    path = shared_path(store, record.sha256)
    file = open_tensors(path)
    expected = _metadata(replace(table, deltas=table.deltas[:number]))
    if file.metadata != expected:
        raise CorruptFileError(
            f"{path}: delta {number} of table {table.name!r} does not apply to what is before it: expected {expected}, "
            f"found {file.metadata}; a delta is missing, doubled or out of order: export the version again"
        )
    found = {name: (code, file.tensors[name].shape) for name, code in file.codes.items()}
    wanted = {
        ROWS: (row_type.code, (record.num_rows, row_type.columns(table.dim))),
        _IDS: ("I64", (record.num_rows,)),
        _REMOVED: ("I64", (record.num_removed,)),
    }
    if found != wanted:
        raise CorruptFileError(f"{path}: table {table.name!r} expected the tensors {wanted}, found {found}")
    return path, file


def _check_content(parent: TableRecord, delta: TableDelta) -> None:
    name, ids, removed = parent.name, delta.ids, delta.removed
    for what, array in (("ids", ids), ("removed", removed)):
        if array.dtype != np.int64 or array.ndim != 1:
            raise ContentError(
                f"table {name!r}: {what} is {array.dtype} {list(array.shape)}; expected int64 of one dimension"
            )
    if delta.num_rows < parent.num_rows:
        raise ContentError(
            f"table {name!r} had {parent.num_rows} rows, a delta cannot leave {delta.num_rows}; name those that went "
            "in `removed`, or export the version whole"
        )
    if fault := _fault(ids, removed, num_rows=delta.num_rows):
        raise ContentError(f"table {name!r}: the delta contradicts itself: {fault}")
    num_new = sum(len(array) - int(np.searchsorted(array, parent.num_rows)) for array in (ids, removed))
    if num_new != delta.num_rows - parent.num_rows:
        raise ContentError(
            f"table {name!r} grew from {parent.num_rows} to {delta.num_rows} rows, the delta has {num_new} of the new "
            "ones; it must hold or remove each"
        )


def _fault(ids: Ids, removed: Ids, *, num_rows: int) -> str:
    """Says what is wrong with the ids of a delta; empty if nothing."""
    for what, array in ((_IDS, ids), (_REMOVED, removed)):
        if len(array) and (array[0] < 0 or array[-1] >= num_rows):
            return f"{what} has {array[0]} to {array[-1]}, the table has {num_rows} rows"
        falling = np.flatnonzero(array[1:] <= array[:-1])
        if len(falling):
            at = int(falling[0])
            return f"{what} is not sorted, or has a row twice: {array[at]}, {array[at + 1]} at {at}"
    both = removed[found_in(ids, removed)[0]]
    return f"row {both[0]} is both written and removed" if len(both) else ""


def found_in(sorted_ids: Ids, ids: Ids) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Looks ids up in sorted ones: returns the places in `ids` of those that are there, and where they are."""
    places = np.searchsorted(sorted_ids, ids)
    inside = np.flatnonzero(places < len(sorted_ids))
    hits = inside[sorted_ids[places[inside]] == ids[inside]]
    return hits, places[hits]


def _metadata(table: TableRecord) -> dict[str, str]:
    """What a delta that applies to this state of a table says of itself."""
    return {
        "format": "rankhouse.delta",
        "format_version": str(FORMAT_VERSION),
        "table": table.name,
        "row_type": table.dtype,
        "chain": chain_of(table),
    }


def chain_of(table: TableRecord) -> str:
    """Names the state of a table: the SHA-256 over the names of all its files in order, a line each."""
    return hashlib.sha256("".join(f"{file.sha256}\n" for file in table.files).encode()).hexdigest()
