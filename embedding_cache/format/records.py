"""Tables and features: as given to be written, and as a version's manifest records them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.errors import ContentError
from rankhouse.embedding_cache.format.files import is_sha256
from rankhouse.embedding_cache.format.segment import SegmentRecord

COMBINERS = ("sum", "mean")


@dataclass(frozen=True)
class TableContent:
    """A table to be written.

    Attributes:
        name: Its name.
        num_rows: R, its number of rows.
        dim: D, its width.
        blocks: float32 [n, D] each, all rows in order; consumed once, one block in memory at a time.
    """

    name: str
    num_rows: int
    dim: int
    blocks: Iterable[npt.NDArray[np.float32]]


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
class TableRecord:
    """A table of a version.

    Attributes:
        name: Its name.
        num_rows: R, its number of rows.
        dim: D, its width.
        dtype: The type of its values, "float32".
        segments: Its rows, cut into files; in order and without gaps.
    """

    name: str
    num_rows: int
    dim: int
    dtype: str
    segments: tuple[SegmentRecord, ...]


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


def check_content(tables: Sequence[TableContent], features: Sequence[FeatureContent]) -> None:
    """Checks that tables and features agree with each other.

    Raises:
        ContentError: A name is used twice, a table is unknown, a size is not positive or a combiner is unknown.
    """
    dims = {table.name: table.dim for table in tables}
    if twice := _twice([table.name for table in tables]) or _twice([feature.name for feature in features]):
        raise ContentError(f"the name {twice!r} stands twice; tables and features each need names of their own")
    for table in tables:
        if table.num_rows < 1 or table.dim < 1:
            raise ContentError(
                f"table {table.name!r}: expected one row and one column or more, found [{table.num_rows}, {table.dim}]"
            )
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


def _parse_table(entry: Mapping[str, Any]) -> TableRecord:
    segments = tuple(SegmentRecord(**segment) for segment in entry["segments"])
    table = TableRecord(**{**entry, "segments": segments})
    if table.dtype != "float32":
        raise ValueError(f"table {table.name!r} has dtype {table.dtype!r}; this release reads float32")
    row = 0
    for segment in segments:
        if segment.row_begin != row or segment.num_rows < 1 or not is_sha256(segment.sha256):
            raise ValueError(f"table {table.name!r} expected a segment at row {row}, found {segment}")
        row += segment.num_rows
    sizes = [table.num_rows, table.dim, *(size for s in segments for size in (s.bytes, s.row_begin, s.num_rows))]
    if any(type(size) is not int for size in sizes):
        raise ValueError(f"table {table.name!r} has sizes that are no integers")
    if row != table.num_rows or row < 1 or table.dim < 1:
        raise ValueError(f"table {table.name!r} has {table.num_rows} rows of {table.dim}, its segments {row} rows")
    return table


def _twice(names: Sequence[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)
