"""The parts of a new version: its tables, its vocabularies, and the files that belong to it alone."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TypeVar

from rankhouse.embedding_cache.format.delta import write_delta
from rankhouse.embedding_cache.format.files import FileRecord, copy_file, file_record
from rankhouse.embedding_cache.format.golden import GOLDEN_FILE, GoldenRequest, write_golden
from rankhouse.embedding_cache.format.records import TableContent, TableDelta, TableRecord
from rankhouse.embedding_cache.format.segment import write_segments
from rankhouse.embedding_cache.format.shared_files import take_in
from rankhouse.embedding_cache.format.transform import JSON_NAME, layer_files
from rankhouse.embedding_cache.format.version_record import DENSE_FILE

_Item = TypeVar("_Item")


def write_tables(store: Path, tables: Sequence[TableContent], *, segment_bytes: int) -> tuple[TableRecord, ...]:
    """Writes tables whole, several at a time.

    Raises:
        ContentError: A table's blocks do not add up, or its row type cannot hold a value.
    """

    def write(table: TableContent) -> TableRecord:
        segments = write_segments(store, table, segment_bytes=segment_bytes)
        return TableRecord(table.name, table.num_rows, table.dim, table.dtype, segments)

    return _in_threads(write, tables)


def write_deltas(
    store: Path, parents: Sequence[TableRecord], deltas: Mapping[str, TableDelta]
) -> tuple[TableRecord, ...]:
    """Writes what changed in tables, several at a time; a table without a delta did not change.

    Raises:
        ContentError: A delta contradicts itself or its table, or the row type cannot hold a value.
    """
    written = iter(
        _in_threads(
            lambda parent: write_delta(store, parent, deltas[parent.name]),
            [parent for parent in parents if parent.name in deltas],
        )
    )
    return tuple(next(written) if parent.name in deltas else parent for parent in parents)


def write_vocabularies(store: Path, transform: Path, *, known: Sequence[FileRecord] = ()) -> tuple[FileRecord, ...]:
    """Takes in the layers of a compiled transform's vocabularies.

    Args:
        store: The store's folder.
        transform: The transform's folder.
        known: Layers that the store holds already.

    Raises:
        CorruptFileError: A layer is missing.
        FormatError: The transform is malformed.
    """
    return tuple(take_in(store, layer, known=known) for layer in layer_files(transform))


def put_files(
    folder: Path, *, dense: Path | None, transform: Path, golden: Sequence[GoldenRequest]
) -> dict[str, FileRecord]:
    """Puts the files that belong to a version alone into its folder.

    Raises:
        ContentError: A golden request is not plain JSON.
        CorruptFileError: A file is missing.
    """
    files = {JSON_NAME: copy_file(transform / JSON_NAME, folder / JSON_NAME)}
    if dense is not None:
        files[DENSE_FILE] = copy_file(dense, folder / DENSE_FILE)
    write_golden(folder, golden)
    return {**files, GOLDEN_FILE: file_record(folder / GOLDEN_FILE)}


def _in_threads(write: Callable[[_Item], TableRecord], items: Sequence[_Item]) -> tuple[TableRecord, ...]:
    """Files are written and hashed without Python's lock."""
    with ThreadPoolExecutor(max(1, min(len(items), os.cpu_count() or 1))) as pool:
        futures = [pool.submit(write, item) for item in items]
        done, going_on = wait(futures, return_when=FIRST_EXCEPTION)
        for future in going_on:  # One has failed.
            future.cancel()
        for future in done:
            future.result()
        return tuple(future.result() for future in futures)
