"""Tables and features: as given to be written, and as a version's manifest records them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.errors import ContentError
from rankhouse.embedding_cache.format.files import FileRecord, is_sha256
from rankhouse.embedding_cache.format.row_types import ROW_TYPES, row_type_of

COMBINERS = ("sum", "mean")


@dataclass(frozen=True)
class TableContent:
    """A table to be written whole.

    Attributes:
        name: Its name.
        num_rows: R, its number of rows.
        dim: D, its width.
        blocks: All rows in order, consumed once, one block in memory at a time: float32 [n, D] each, or of the row type
            already. Tables are written by several threads; each table's blocks are consumed by one.
        dtype: The row type to store: "float32", "float16", "bfloat16" or "int8".
    """

    name: str
    num_rows: int
    dim: int
    blocks: Iterable[npt.NDArray[Any]]
    dtype: str = "float32"


@dataclass(frozen=True)
class TableDelta:
    """What changed in a table since the parent version. Every row that the parent does not have must be in it.

    Attributes:
        name: The table's name.
        num_rows: R, its number of rows now; not less than the parent's.
        ids: int64 [n], sorted, each once: the rows that changed or are new.
        blocks: The rows of `ids` in their order, as in `TableContent`.
        removed: int64 [m], sorted, each once, none of them in `ids`: the rows that went, and read as zeros.
    """

    name: str
    num_rows: int
    ids: npt.NDArray[np.int64]
    blocks: Iterable[npt.NDArray[Any]]
    removed: npt.NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True)
class FeatureContent:
    """A categorical feature to be written, in the order of the model's input.

    Attributes:
        name: Its name in raw rows.
        table: The table that its ids point into.
        combiner: How the rows of a bag are pooled: "sum" or "mean".
    """

    name: str
    table: str
    combiner: str


@dataclass(frozen=True)
class SegmentRecord:
    """Consecutive rows of a table, in a file.

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


@dataclass(frozen=True)
class DeltaRecord:
    """Changed rows of a table, in a file.

    Attributes:
        sha256: The SHA-256 of the file, which is also its name.
        bytes: The file's size.
        num_rows: How many rows it holds.
        num_removed: How many rows it removes.
    """

    sha256: str
    bytes: int
    num_rows: int
    num_removed: int


@dataclass(frozen=True)
class TableRecord:
    """A table of a version.

    Attributes:
        name: Its name.
        num_rows: R, its number of rows.
        dim: D, its width.
        dtype: Its row type: "float32", "float16", "bfloat16" or "int8".
        segments: Its base, cut into files; in order and without gaps from row 0 on.
        deltas: What changed since, oldest first. An id's row is that of the newest delta that has it, else the base's;
            a row that was removed, or that nothing holds, is zeros.
    """

    name: str
    num_rows: int
    dim: int
    dtype: str
    segments: tuple[SegmentRecord, ...]
    deltas: tuple[DeltaRecord, ...] = ()

    @property
    def files(self) -> tuple[FileRecord, ...]:
        """Its files, as `shared_files` has them."""
        files: tuple[SegmentRecord | DeltaRecord, ...] = (*self.segments, *self.deltas)
        return tuple(FileRecord(bytes=file.bytes, sha256=file.sha256) for file in files)

    @property
    def num_bytes(self) -> int:
        """The size of its files."""
        return sum(file.bytes for file in self.files)

    def is_beginning_of(self, later: "TableRecord | None") -> bool:
        """Says whether another table is this one with more deltas, or none."""
        return (
            later is not None
            and (self.name, self.dim, self.dtype, self.segments) == (later.name, later.dim, later.dtype, later.segments)
            and self.deltas == later.deltas[: len(self.deltas)]
            and self.num_rows <= later.num_rows
        )


@dataclass(frozen=True)
class FeatureRecord:
    """A categorical feature of a version.

    Attributes:
        name: Its name in raw rows.
        table: The table that its ids point into.
        combiner: How the rows of a bag are pooled: "sum" or "mean".
        dim: The width of the table.
        column_begin: Its first column in `embeddings`.
    """

    name: str
    table: str
    combiner: str
    dim: int
    column_begin: int


def check_tables(tables: Sequence[TableContent], features: Sequence[FeatureContent]) -> None:
    """Checks that tables and features agree with each other.

    Raises:
        ContentError: A name is used twice, a table is unknown, a size is not positive, or a row type or combiner is
            unknown.
    """
    dims = {table.name: table.dim for table in tables}
    if twice := _twice([table.name for table in tables]) or _twice([feature.name for feature in features]):
        raise ContentError(f"the name {twice!r} stands twice; tables and features each need names of their own")
    for table in tables:
        if table.num_rows < 1 or table.dim < 1:
            raise ContentError(
                f"table {table.name!r}: expected one row and one column or more, found [{table.num_rows}, {table.dim}]"
            )
        row_type_of(table.dtype)
    for feature in features:
        if feature.table not in dims:
            raise ContentError(f"feature {feature.name!r} points into table {feature.table!r}; known are {list(dims)}")
        if feature.combiner not in COMBINERS:
            raise ContentError(
                f"feature {feature.name!r} has combiner {feature.combiner!r}; expected one of {COMBINERS}"
            )


def lay_out_features(features: Sequence[FeatureContent], tables: Sequence[TableRecord]) -> tuple[FeatureRecord, ...]:
    """Gives each feature its columns of `embeddings`, side by side in their order."""
    dims = {table.name: table.dim for table in tables}
    records: list[FeatureRecord] = []
    column = 0
    for feature in features:
        dim = dims[feature.table]
        records.append(FeatureRecord(feature.name, feature.table, feature.combiner, dim, column))
        column += dim
    return tuple(records)


def parse_tables(entries: Sequence[Mapping[str, Any]]) -> tuple[TableRecord, ...]:
    """Reads the tables of a manifest.

    Raises:
        KeyError: A field is missing.
        TypeError: An entry has another field or is no object.
        ValueError: A value is impossible, a name stands twice, or a table's segments leave rows out.
    """
    tables = tuple(_parse_table(entry) for entry in entries)
    if twice := _twice([table.name for table in tables]):
        raise ValueError(f"the table {twice!r} stands twice")
    return tables


def parse_features(entries: Sequence[Mapping[str, Any]], tables: Sequence[TableRecord]) -> tuple[FeatureRecord, ...]:
    """Reads the features of a manifest.

    Raises:
        TypeError: An entry has another field, misses one or is no object.
        ValueError: A feature contradicts its table or its place, or a name stands twice.
    """
    records = tuple(FeatureRecord(**entry) for entry in entries)
    if twice := _twice([record.name for record in records]):
        raise ValueError(f"the feature {twice!r} stands twice")
    contents = [FeatureContent(record.name, record.table, record.combiner) for record in records]
    known = {table.name for table in tables}
    for content in contents:
        if content.table not in known or content.combiner not in COMBINERS:
            raise ValueError(f"feature {content.name!r} has table {content.table!r}, combiner {content.combiner!r}")
    if records != lay_out_features(contents, tables):
        raise ValueError("the features' dim and column_begin are not those of their tables, side by side")
    return records


def parse_files(entries: Sequence[Mapping[str, Any]]) -> tuple[FileRecord, ...]:
    """Reads a manifest's list of shared files.

    Raises:
        TypeError: An entry has another field, misses one or is no object.
        ValueError: A value is impossible.
    """
    records = tuple(FileRecord(**entry) for entry in entries)
    for record in records:
        _check_file(record)
    return records


def _parse_table(entry: Mapping[str, Any]) -> TableRecord:
    segments = tuple(SegmentRecord(**segment) for segment in entry["segments"])
    deltas = tuple(DeltaRecord(**delta) for delta in entry.get("deltas", ()))
    table = TableRecord(**{**entry, "segments": segments, "deltas": deltas})
    if table.dtype not in ROW_TYPES:
        raise ValueError(f"table {table.name!r} has dtype {table.dtype!r}; this release reads {', '.join(ROW_TYPES)}")
    row = 0
    for segment in segments:
        _check_file(segment)
        if segment.row_begin != row or _is_no_count(segment.num_rows, least=1):
            raise ValueError(f"table {table.name!r} expected a segment at row {row}, found {segment}")
        row += segment.num_rows
    held = row
    for delta in deltas:
        _check_file(delta)
        if _is_no_count(delta.num_rows) or _is_no_count(delta.num_removed):
            raise ValueError(f"table {table.name!r} has an impossible delta: {delta}")
        held += delta.num_rows + delta.num_removed
    if _is_no_count(table.num_rows, least=1) or _is_no_count(table.dim, least=1):
        raise ValueError(f"table {table.name!r} has an impossible size: [{table.num_rows!r}, {table.dim!r}]")
    if not row <= table.num_rows <= held or row < 1:
        raise ValueError(
            f"table {table.name!r} has {table.num_rows} rows, its segments {row} rows, its deltas {held - row}"
        )
    return table


def _check_file(record: FileRecord | SegmentRecord | DeltaRecord) -> None:
    if not is_sha256(record.sha256) or _is_no_count(record.bytes):
        raise ValueError(f"it names a file of an impossible SHA-256 or size: {record}")


def _is_no_count(value: Any, *, least: int = 0) -> bool:
    return type(value) is not int or value < least


def _twice(names: Sequence[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)
