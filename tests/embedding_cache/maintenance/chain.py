"""A store with a chain: a whole version and deltas over it, of every row type."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rankhouse.embedding_cache.format.content import DeltaContent
from rankhouse.embedding_cache.format.records import TableDelta
from rankhouse.embedding_cache.format.row_types import ROW_TYPES
from rankhouse.embedding_cache.format.transform import CompiledTransform
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.format.vocabulary import Vocabularies
from tests.embedding_cache.format.small_store import blocks_of, rows_of, small_content

Changes = Mapping[str, tuple[list[int], list[int]]]


def write_whole(
    store: VersionStore, folder: Path, *, first: float = 1.0, num_values: int = 8, **changes: Any
) -> Version:
    """Writes a version whose two tables, C1 [11, 3] and C2 [5, 2], count from `first` on."""
    content = small_content(folder, first=first, **changes)
    vocabularies = {"C1": np.arange(num_values), "C2": np.arange(2)}
    CompiledTransform([], Vocabularies.build(vocabularies)).save(folder)
    tables = content.tables
    if "tables" not in changes:
        tables = [replace(content.tables[0], blocks=blocks_of(rows_of(11, 3, first))), content.tables[1]]
        tables[1] = replace(tables[1], blocks=blocks_of(rows_of(5, 2, 1)))
    return store.write(replace(content, tables=tables))


def write_over(
    store: VersionStore, folder: Path, parent: Version, changes: Changes, *, first: float = 100.0, **others: Any
) -> Version:
    """Writes a delta: for each table the ids of rows that change or are new, and of those that go."""
    content = small_content(folder, first=others.pop("dense", 0.0))
    CompiledTransform([], Vocabularies.build({"C1": np.arange(8), "C2": np.arange(2)})).save(folder)
    known = {table.name: table for table in parent.tables}
    deltas = []
    for name, (ids, removed) in changes.items():
        num_rows = max([known[name].num_rows, *(1 + id_ for id_ in (*ids, *removed))])
        rows = rows_of(len(ids), known[name].dim, first)
        deltas.append(TableDelta(name, num_rows, np.array(ids, np.int64), blocks_of(rows), np.array(removed, np.int64)))
    delta = DeltaContent(
        dense=content.dense,
        transform=folder,
        num_dense=content.num_dense,
        tables=deltas,
        golden=content.golden,
        metrics=others.pop("metrics", {}),
        **others,
    )
    return store.write_delta(delta, parent)


def write_chain(store: VersionStore, folder: Path, *, dtype: str = "float32") -> list[Version]:
    """A whole version and two deltas: rows change, go, come back and are new."""
    tables = [replace(table, dtype=dtype) for table in small_content(folder, first=1).tables]
    tables = [replace(table, blocks=blocks_of(rows_of(table.num_rows, table.dim, 1))) for table in tables]
    whole = write_whole(store, folder, tables=tables)
    one = write_over(store, folder, whole, {"C1": ([1, 4, 12], [2, 11]), "C2": ([3], [])})
    return [whole, one, write_over(store, folder, one, {"C1": ([2, 13], [4])}, first=200, dense=5.0)]


def effective(version: Version) -> dict[str, bytes]:
    """All rows of each table as they lie."""
    return {table.name: b"".join(block.tobytes() for block in version.blocks(table.name)) for table in version.tables}


ALL_ROW_TYPES = list(ROW_TYPES)
