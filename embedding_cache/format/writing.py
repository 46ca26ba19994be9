"""The parts of a new version: its tables, its vocabularies, and the files that belong to it alone."""

import itertools
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from rankhouse.embedding_cache.format.delta import write_delta
from rankhouse.embedding_cache.format.files import FileRecord, copy_file, file_record
from rankhouse.embedding_cache.format.golden import GOLDEN_FILE, GoldenRequest, write_golden
from rankhouse.embedding_cache.format.records import TableContent, TableDelta, TableRecord
from rankhouse.embedding_cache.format.segment import write_segments
from rankhouse.embedding_cache.format.shared_files import take_in
from rankhouse.embedding_cache.format.transform import JSON_NAME, layer_files
from rankhouse.embedding_cache.format.version_record import DENSE_FILE


def write_whole(
    store: Path, tables: Sequence[TableContent], layers: Sequence[Path], *, segment_bytes: int
) -> tuple[tuple[TableRecord, ...], tuple[FileRecord, ...]]:
    """Writes tables whole and takes in the layers of vocabularies, several files at a time.

    Args:
        store: The store's folder.
        tables: The tables.
        layers: Files of vocabularies.
        segment_bytes: How many bytes of rows a segment may hold.

    Returns:
        The tables, and the layers of vocabularies.

    Raises:
        ContentError: A table's blocks do not add up, or its row type cannot hold a value.
        CorruptFileError: A layer is missing.
    """

    def write(table: TableContent) -> TableRecord:
        segments = write_segments(store, table, segment_bytes=segment_bytes)
        return TableRecord(table.name, table.num_rows, table.dim, table.dtype, segments)

    with _threads(len(tables) + len(layers)) as pool:
        table_writes = [pool.submit(write, table) for table in tables]
        layer_writes = [pool.submit(take_in, store, layer) for layer in layers]
        _wait_for([*table_writes, *layer_writes])
        return tuple(done.result() for done in table_writes), tuple(done.result() for done in layer_writes)


def write_deltas(
    store: Path, parents: Sequence[TableRecord], deltas: Mapping[str, TableDelta]
) -> tuple[TableRecord, ...]:
    """Writes what changed in tables, several at a time; a table without a delta did not change.

    Raises:
        ContentError: A delta contradicts itself or its table, or the row type cannot hold a value.
    """
    with _threads(len(deltas)) as pool:
        writes = {
            parent.name: pool.submit(write_delta, store, parent, deltas[parent.name])
            for parent in parents
            if parent.name in deltas
        }
        _wait_for(list(writes.values()))
        return tuple(writes[parent.name].result() if parent.name in writes else parent for parent in parents)


def write_vocabularies(
    store: Path, transform: Path, *, known: Sequence[FileRecord], noted: Sequence[FileRecord] = ()
) -> tuple[FileRecord, ...]:
    """Takes in the layers of a compiled transform's vocabularies.

    Args:
        store: The store's folder.
        transform: The transform's folder.
        known: Layers that the store holds already.
        noted: What is known of the first layers of the transform; those that the store holds are not read.

    Raises:
        CorruptFileError: A layer is missing.
        FormatError: The transform is malformed.
    """
    shared = tuple(itertools.takewhile(lambda record: record in known, noted))
    return shared + tuple(take_in(store, layer, known=known) for layer in layer_files(transform)[len(shared) :])


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


def _threads(num_files: int) -> ThreadPoolExecutor:
    """Threads for files, which are written and hashed without Python's lock."""
    return ThreadPoolExecutor(max(1, min(num_files, os.cpu_count() or 1)))


def _wait_for(futures: Sequence[Future[Any]]) -> None:
    """Waits for all; when one fails, those that have not begun do not begin, and its error is raised."""
    done, going_on = wait(futures, return_when=FIRST_EXCEPTION)
    for future in going_on:  # One has failed.
        future.cancel()
    for future in done:
        future.result()
