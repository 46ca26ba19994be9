"""A version with a few rows of its tables, to be opened where the tables lie elsewhere.

What the store's folder does not have is read by ranges and laid into files of the same names and sizes, of which all
else is holes that read as zeros: so whatever opens a version opens an excerpt, and costs what was asked for. Checksums
are of whole files, so what is read is checked for its shape alone.
"""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.delta import found_in, open_deltas
from rankhouse.embedding_cache.format.errors import CorruptFileError
from rankhouse.embedding_cache.format.files import FileRecord
from rankhouse.embedding_cache.format.records import TableRecord
from rankhouse.embedding_cache.format.row_types import row_type_of
from rankhouse.embedding_cache.format.segment import ROWS, open_segment
from rankhouse.embedding_cache.format.shared_files import SEGMENTS, shared_path
from rankhouse.embedding_cache.format.store_layout import VERSIONS, Ranges
from rankhouse.embedding_cache.format.tensors import DATA_ALIGNMENT, LENGTH_BYTES, open_tensors
from rankhouse.embedding_cache.format.version import Version

Ids = npt.NDArray[np.int64]


@contextmanager
def excerpt(version: Version, ids: Mapping[str, Ids]) -> Iterator[Path]:
    """Gives a store's folder in which a version can be opened, unverified, and these rows are those that it has.

    Args:
        version: The version; nothing is copied of one whose files all lie in its store's folder.
        ids: For each table the ids of the rows, int64 [n] in any order; without those that it does not have.

    Raises:
        CorruptFileError: A file of rows is missing or malformed.
        StorageError: The storage cannot be reached or denies it.
    """
    if version.ranges is None:
        yield version.store
        return
    with tempfile.TemporaryDirectory(prefix="rankhouse-excerpt-") as name:
        folder = Path(name)
        for part in (SEGMENTS, VERSIONS):
            (folder / part).mkdir()
        (folder / VERSIONS / version.name).symlink_to(version.path.absolute())
        for file in version.record.shared_files:
            if (path := shared_path(version.store, file.sha256)).exists():
                shared_path(folder, file.sha256).symlink_to(path.absolute())
        for table in version.tables:
            _excerpt_table(folder, table, np.unique(ids.get(table.name, np.empty(0, np.int64))), version.ranges)
        yield folder


def _excerpt_table(folder: Path, table: TableRecord, ids: Ids, ranges: Ranges) -> None:
    missing = {file.sha256: file for file in table.files if not shared_path(folder, file.sha256).exists()}
    for file in missing.values():
        _write_frame(folder, file, ranges)
    for segment in table.segments:
        if segment.sha256 in missing:
            open_segment(folder, table.name, segment, dim=table.dim, row_type=row_type_of(table.dtype))
            first, end = np.searchsorted(ids, (segment.row_begin, segment.row_begin + segment.num_rows))
            _write_rows(folder, missing[segment.sha256], ids[first:end] - segment.row_begin, ranges)
    for record, delta in zip(table.deltas, open_deltas(folder, table), strict=True):
        if record.sha256 in missing:
            _write_rows(folder, missing[record.sha256], found_in(delta.ids, ids)[1], ranges)


def _write_frame(folder: Path, file: FileRecord, ranges: Ranges) -> None:
    """Writes a file with holes for its rows."""
    name = str(shared_path(Path(), file.sha256))
    try:
        (head,) = ranges(name, [(0, min(DATA_ALIGNMENT, file.bytes))])
        begin = LENGTH_BYTES + int.from_bytes(head[:LENGTH_BYTES], "little")
        if len(head) < begin <= file.bytes:
            head += ranges(name, [(len(head), begin)])[0]
        entries: dict[str, Any] = json.loads(head[LENGTH_BYTES:begin])
        others = [entry["data_offsets"] for tensor, entry in entries.items() if tensor not in (ROWS, "__metadata__")]
        places = [(begin + first, begin + end) for first, end in others if first < end <= file.bytes - begin]
    except (KeyError, TypeError, ValueError) as exc:
        raise CorruptFileError(f"{name}: is not a well-formed tensor file ({exc!r}); verify the store") from exc
    with open(folder / name, "wb") as target:
        target.truncate(file.bytes)
        target.write(head)
        _copy(name, places, target, ranges)


def _write_rows(folder: Path, file: FileRecord, rows: npt.NDArray[np.intp], ranges: Ranges) -> None:
    """Fills rows in, by their sorted numbers in the file; neighbours are read together."""
    if not len(rows):
        return
    path = shared_path(folder, file.sha256)
    with open(path, "r+b") as target:
        begin = LENGTH_BYTES + int.from_bytes(target.read(LENGTH_BYTES), "little")  # Rows are a file's first tensor.
        row_bytes = open_tensors(path).tensors[ROWS][0].nbytes
        runs = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
        places = [(begin + int(run[0]) * row_bytes, begin + int(run[-1] + 1) * row_bytes) for run in runs]
        _copy(str(path.relative_to(folder)), places, target, ranges)


def _copy(name: str, places: list[tuple[int, int]], target: BinaryIO, ranges: Ranges) -> None:
    for (begin, _), content in zip(places, ranges(name, places) if places else [], strict=True):
        target.seek(begin)
        target.write(content)
