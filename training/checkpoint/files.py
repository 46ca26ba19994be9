"""Checkpoints on disk: what lies in their folders, read with NumPy alone.

    <run>/checkpoints/step-<8 digits>/
        tables/<table>.<array>.<first row>-<end row>.safetensors   one tensor `rows`, [rows, dim] or [rows]
        tables/<...>.columns-<first>-<end>.safetensors             likewise, of some of the columns
        dense.safetensors                                          `<array>/<variable>`
        vocabularies.safetensors                                   `<array>/<vocabulary>`, where there are any
        manifest.json                                              written last; without it the checkpoint does not
        exist

An array is `weights`, in the dtype that the table's rows are held in (float32, bfloat16 or float16), one of the
optimizer's slots, such as `accumulator` (float32), or `touched`: int32 [rows], the optimizer's iteration that last
wrote each row. Tables that learn their keys have some more (`learnt_rows.py`). All are cut into rectangles
(`pieces.py`), which the manifest lists under `row_ranges`; any number of ranks reads any of them under any plan, into
tables of any dtype: what is read here is float32, exactly, and what holds fewer bits takes the nearest. Checkpoints of
older releases have pieces of all columns only. Nothing here needs TensorFlow.

A checkpoint knows its lineage: the checkpoints through which the training that it holds has passed, as (id, iterations)
each, itself last. Iterations never restart, also when a new run goes on from a checkpoint; what was saved later than
the state from which training went on is no part of the lineage. So if a checkpoint is in the lineage of another, the
rows in which they differ are among `touched_since` the first one's iterations.

Checkpoints of releases that did not note all this have an id and a lineage of their own alone. Where training goes on
from one, all its rows count as written by the iteration that it has.
"""

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.errors import CorruptFileError, FormatError
from rankhouse.embedding_cache.format.files import (
    MANIFEST_NAME,
    FileRecord,
    Manifest,
    check_content,
    check_files,
    load_manifest,
)
from rankhouse.embedding_cache.format.tensors import open_tensors, read_tensors
from rankhouse.embedding_cache.format.version_record import EVENT_TIME
from rankhouse.training.checkpoint.pieces import Band, Piece, RowBlock, Rows, VerifiedRows, bands, join, widened
from rankhouse.training.data.fit import Fit
from rankhouse.training.errors import CheckpointError

KIND = "checkpoint"
WEIGHTS = "weights"
TOUCHED = "touched"
KEY_ARRAYS = ("keys", "key_counts", "key_steps")
DENSE_FILE = "dense.safetensors"
VOCABULARIES_FILE = "vocabularies.safetensors"
ROWS = "rows"

_STEP_FOLDER = re.compile(r"step-\d{8}")

# Rows that are put together from several files are so many bytes at a time.
_BLOCK_BYTES = 64 << 20


@dataclass(frozen=True)
class CheckpointTable:
    """A table as a checkpoint holds it.

    Attributes:
        num_rows: Rows.
        dim: Width of a row.
        arrays: "weights", the optimizer's slots, and "touched"; of a table that learns its keys `KEY_ARRAYS`, too.
        initial_rows: How many it had when its first run began; its rows' initial values depend on that.
    """

    num_rows: int
    dim: int
    arrays: tuple[str, ...]
    initial_rows: int

    @property
    def is_by_key(self) -> bool:
        """Whether it learns its keys."""
        return KEY_ARRAYS[0] in self.arrays


class ArrayType(NamedTuple):
    """What an array of a table is of: a dtype, such as "bfloat16", and whether it has rows or one number for each."""

    dtype: str
    has_columns: bool


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint. Opening reads the manifest; contents are read, and verified, when asked for.

    Attributes:
        path: Its folder.
        step: The number of training steps that its run has done.
        id: 32 random hexadecimal digits.
        lineage: (id, iterations) of the checkpoints that led to it, oldest first, and of itself.
        fit: What inputs stood for when it was trained; None in checkpoints of older releases.
        tables: The tables by name.
        pieces: Those of all tables.
        document: What the trainer kept beside the weights.
        manifest: The whole manifest's document.
        files: The records of all files.
    """

    path: Path
    step: int
    id: str
    lineage: tuple[tuple[str, int], ...]
    fit: Fit | None
    tables: Mapping[str, CheckpointTable]
    pieces: tuple[Piece, ...]
    document: Mapping[str, Any]
    manifest: Mapping[str, Any]
    files: Mapping[str, FileRecord]
    _verified: set[str] = field(default_factory=set, repr=False, compare=False)

    @classmethod
    def open(cls, path: Path | str) -> "Checkpoint":
        """Opens a checkpoint's folder.

        Raises:
            CheckpointError: It is not a checkpoint, or a file is missing or truncated.
        """
        path = Path(path)
        try:
            manifest = load_manifest(path, kind=KIND)
            check_files(path, manifest, verify=False)
        except FormatError as exc:
            raise CheckpointError(str(exc)) from exc
        return cls._of(path, manifest)

    @classmethod
    def _of(cls, path: Path, manifest: Manifest) -> "Checkpoint":
        try:
            document = manifest.document
            tables = {name: _table_of(info) for name, info in document["tables"].items()}
            dims = {name: info.dim for name, info in tables.items()}
            pieces = tuple(Piece.parse(item, dims) for item in document["row_ranges"])
            if lost := {piece.file for piece in pieces} - manifest.files.keys():
                raise KeyError(min(lost))
            step, training = document["step"], document["training"]
            iterations = document["optimizer"]["iterations"]
            # Where none was noted, the manifest's own checksum is as good.
            lineage = document.get("lineage", [[manifest.sha256[:32], iterations]])
            lineage = tuple((name, int(iteration)) for name, iteration in lineage)
            identifier = lineage[-1][0]
            fit = Fit.parse(document) if "features" in document else None
        except FormatError as exc:
            raise CheckpointError(str(exc)) from exc
        except (KeyError, IndexError, TypeError, ValueError) as exc:
            raise CheckpointError(
                f"{path / MANIFEST_NAME}: lacks or mangles {exc}; it is not a checkpoint of ours"
            ) from exc
        return cls(path, step, identifier, lineage, fit, tables, pieces, training, document, manifest.files)

    @property
    def iterations(self) -> int:
        """The number of optimizer steps done, over all runs that led here."""
        return self.lineage[-1][1]

    @property
    def event_time(self) -> float | None:
        """When the newest event that was learnt from happened, in unix seconds; None if the newest data did not say."""
        time: float | None = self.document.get(EVENT_TIME)
        return time

    def rows(
        self,
        table: str,
        array: str = WEIGHTS,
        *,
        start: int = 0,
        stop: int | None = None,
        column_start: int = 0,
        column_stop: int | None = None,
    ) -> Iterator[RowBlock]:
        """Yields rows [start, stop) of a table in order, mapped from the files, each verified before it is used.

        Rows of 16-bit floats are copied into float32.

        Args:
            table: The table.
            array: Which of its arrays.
            start: First row.
            stop: One behind the last row; None is all.
            column_start: First column; of arrays with one number for a row, of the slices whose numbers count.
            column_stop: One behind the last column; None is all.

        Raises:
            CheckpointError: Table or array is unknown, rows are missing, or a file was altered.
        """
        info = self._table(table, array)
        columns = {"column_start": column_start, "column_stop": info.dim if column_stop is None else column_stop}
        for band in self._bands(table, array, start, info.num_rows if stop is None else stop, **columns):
            parts = [self._read(piece.file)[ROWS][band.start - piece.start :] for piece in band.pieces]
            if parts[0].ndim == 1 and len(parts) > 1 and array not in (TOUCHED, *KEY_ARRAYS):
                raise CheckpointError(
                    f"{self.path}: {array!r} of table {table!r} is one number for each row of {len(parts)} slices of "
                    "its columns, which cannot be put together; load it with the table sliced in the same way"
                )
            num_rows = band.stop - band.start
            row_bytes = sum(widened(part[:1]).nbytes for part in parts)
            is_mapped = len(parts) == 1 and parts[0].dtype.itemsize > 2
            step = num_rows if is_mapped else max(1, _BLOCK_BYTES // row_bytes)
            for at in range(0, num_rows, step):
                part = slice(at, min(at + step, num_rows))
                yield RowBlock(band.start + at, join(band, [widened(rows[part]) for rows in parts], **columns))

    def stream(self, table: str, *, num_rows: int) -> Iterator[RowBlock]:
        """Yields a table's weights in order, `num_rows` at a time, and verifies each file by the same read.

        They are float32, as those of `rows`.

        So an altered file is known when its last row is out: what was made of the rows counts when the stream has
        ended.

        Raises:
            CheckpointError: The table is unknown, rows are missing, or a file was altered.
        """
        info = self._table(table, WEIGHTS)
        columns = {"column_start": 0, "column_stop": info.dim}
        readers: dict[Piece, VerifiedRows] = {}
        with ThreadPoolExecutor(1) as hasher:
            for band in self._bands(table, WEIGHTS, 0, info.num_rows, **columns):
                for piece in band.pieces:
                    if piece not in readers:
                        path, record = self.path / piece.file, self.files[piece.file]
                        readers[piece] = VerifiedRows(path, record, self._map(piece.file)[ROWS], hasher)
                for at in range(band.start, band.stop, num_rows):
                    count = min(num_rows, band.stop - at)
                    parts = [widened(readers[piece].read(count)) for piece in band.pieces]
                    yield RowBlock(at, join(band, parts, **columns))
                for piece in band.pieces:
                    readers[piece].settle()

    def array_type(self, table: str, array: str) -> ArrayType:
        """Returns what an array of a table is of.

        Raises:
            CheckpointError: Table or array is unknown, no file has any of it, or one is damaged.
        """
        self._table(table, array)
        pieces = self._pieces(table, array)
        if not pieces:
            raise CheckpointError(f"{self.path}: no file has any of table {table!r} ({array})")
        try:
            opened = open_tensors(self.path / pieces[0].file)
        except CorruptFileError as exc:
            raise CheckpointError(str(exc)) from exc
        rows, is_bfloat16 = opened.tensors[ROWS], opened.codes[ROWS] == "BF16"
        return ArrayType("bfloat16" if is_bfloat16 else str(rows.dtype), rows.ndim > 1)

    def touched_since(self, table: str, step: int) -> npt.NDArray[np.int64]:
        """Returns the sorted ids of the rows that were written by an iteration after `step`.

        They are those that may differ from what they were in the checkpoint of the lineage that has these iterations.

        Raises:
            CheckpointError: The table is unknown, a file was altered, or the checkpoint is of an older release, which
                did not note it.
        """
        if TOUCHED not in self._table(table, WEIGHTS).arrays:
            if self.iterations <= step:
                return np.empty(0, np.int64)
            raise CheckpointError(
                f"{self.path} was saved by an older release, which did not note when a row was last written; export "
                "it in full, without --delta"
            )
        touched = [block.start + np.flatnonzero(block.rows > step) for block in self.rows(table, TOUCHED)]
        return np.concatenate([np.empty(0, np.int64), *touched])

    def gather(self, table: str, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Copies rows of a table, without verifying the files that hold them.

        Args:
            table: The table.
            ids: int64 [n], in any order, each in [0, num_rows).

        Returns:
            float32 [n, dim].

        Raises:
            CheckpointError: The table or an id is unknown, or a row is in none of the files.
        """
        info = self._table(table, WEIGHTS)
        rows, num_missing = np.empty((len(ids), info.dim), np.float32), len(ids) * info.dim
        for piece in self._pieces(table, WEIGHTS):
            inside = np.flatnonzero((ids >= piece.start) & (ids < piece.stop))
            if len(inside):
                part = widened(self._map(piece.file)[ROWS][ids[inside] - piece.start])
                rows[inside, piece.column_start : piece.column_stop] = part
                num_missing -= part.size
        if num_missing:
            raise CheckpointError(
                f"{self.path}: {-(-num_missing // info.dim)} of the ids asked for are no rows of table {table!r}, "
                f"which has {info.num_rows}; ids begin at 0"
            )
        return rows

    def dense(self, array: str = WEIGHTS) -> dict[str, npt.NDArray[Any]]:
        """Returns the dense variables by name, or one of their optimizer slots.

        Raises:
            CheckpointError: The file was altered.
        """
        prefix = f"{array}/"
        # A model of tables alone has no such file.
        tensors = self._read(DENSE_FILE) if DENSE_FILE in self.files else {}
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    def vocabularies(self) -> dict[str, dict[str, npt.NDArray[Any]]]:
        """Returns what the vocabularies that were learnt in training know, by name: their arrays.

        Raises:
            CheckpointError: The file was altered.
        """
        found: dict[str, dict[str, npt.NDArray[Any]]] = {}
        for key, values in (self._read(VOCABULARIES_FILE) if VOCABULARIES_FILE in self.files else {}).items():
            array, name = key.split("/", 1)
            found.setdefault(name, {})[array] = values
        return found

    def tensors(self, file: str) -> dict[str, npt.NDArray[Any]]:
        """Returns what one of its files holds, by name.

        Raises:
            CheckpointError: The file was altered.
        """
        return self._read(file)

    @property
    def num_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(record.bytes for record in self.files.values())

    def verify(self) -> None:
        """Reads everything and compares it with the manifest.

        Raises:
            CheckpointError: Files were altered, or rows are missing; the message names all of them.
        """
        if damages := self._damages():
            raise CheckpointError("\n".join(damages))

    def _damages(self) -> list[str]:
        damages = []
        for name in self.files:
            try:
                self._check(name)
            except CheckpointError as exc:
                damages.append(str(exc))
        for table, info in self.tables.items():
            for array in info.arrays:
                try:
                    list(self._bands(table, array, 0, info.num_rows, column_start=0, column_stop=info.dim))
                except CheckpointError as exc:
                    damages.append(str(exc))
        return damages

    def _table(self, table: str, array: str) -> CheckpointTable:
        info = self.tables.get(table)
        if info is None or array not in info.arrays:
            raise CheckpointError(f"{self.path}: holds no {array!r} of a table {table!r}; it has {self._contents()}")
        return info

    def _pieces(self, table: str, array: str) -> list[Piece]:
        return [piece for piece in self.pieces if (piece.table, piece.array) == (table, array)]

    def _bands(
        self, table: str, array: str, start: int, stop: int, *, column_start: int, column_stop: int
    ) -> Iterator[Band]:
        """Yields the bands of some rows.

        Raises:
            CheckpointError: Some rows or columns are in none of the files.
        """
        pieces, columns = self._pieces(table, array), {"column_start": column_start, "column_stop": column_stop}
        for band in bands(pieces, start=start, stop=stop, **columns):
            rows = f"{self.path}: rows {band.start} to {band.stop} of table {table!r} ({array})"
            if band.lacks(column_start, column_stop):
                which = f", columns {column_start} to {column_stop}," if band.pieces else ""
                raise CheckpointError(f"{rows}{which} are in none of its files")
            yield band

    def _read(self, file: str) -> dict[str, Rows]:
        # Shards of one table may share a file: it is verified once.
        if file not in self._verified:
            self._check(file)
            self._verified.add(file)
        return self._map(file)

    def _map(self, file: str) -> dict[str, Rows]:
        try:
            return read_tensors(self.path / file)
        except CorruptFileError as exc:
            raise CheckpointError(str(exc)) from exc

    def _check(self, file: str) -> None:
        try:
            check_content(self.path / file, self.files[file])
        except CorruptFileError as exc:
            raise CheckpointError(str(exc)) from exc

    def _contents(self) -> str:
        return ", ".join(f"{name} ({', '.join(info.arrays)})" for name, info in self.tables.items())


def find_damage(path: Path | str) -> list[str]:
    """Reads every file of a checkpoint and says what is wrong with it.

    Returns:
        A message for each file that is missing, truncated or altered, and for rows that no file has.
    """
    path = Path(path)
    try:
        return Checkpoint._of(path, load_manifest(path, kind=KIND))._damages()
    except (FormatError, CheckpointError) as exc:
        return [str(exc)]


def _table_of(info: Mapping[str, Any]) -> CheckpointTable:
    num_rows = info["num_rows"]
    return CheckpointTable(num_rows, info["dim"], tuple(info["arrays"]), info.get("initial_rows", num_rows))


def step_folder(root: Path, step: int) -> Path:
    """Returns the folder of a step's checkpoint."""
    return root / f"step-{step:08d}"


def complete_checkpoints(root: Path | str) -> list[Path]:
    """Returns the folders of all complete checkpoints, oldest first."""
    return [path for path in _step_folders(Path(root)) if (path / MANIFEST_NAME).is_file()]


def incomplete_checkpoints(root: Path | str) -> list[Path]:
    """Returns the folders that a save left without a manifest."""
    return [path for path in _step_folders(Path(root)) if not (path / MANIFEST_NAME).is_file()]


def latest_checkpoint(root: Path | str) -> Path | None:
    """Returns the folder of the latest complete checkpoint, or None where there is none."""
    found = complete_checkpoints(root)
    return found[-1] if found else None


def find_checkpoints(path: Path | str) -> list[Path]:
    """Returns the complete checkpoints of a run, of its `checkpoints` folder, or the one that `path` is; oldest first.

    Raises:
        CheckpointError: There is none.
    """
    path = Path(path)
    if (path / MANIFEST_NAME).is_file():
        return [path]
    found = complete_checkpoints(path / "checkpoints") or complete_checkpoints(path)
    if not found:
        raise CheckpointError(
            f"{path}: holds no complete checkpoint; give a run, its checkpoints folder, or a checkpoint"
        )
    return found


def _step_folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if _STEP_FOLDER.fullmatch(path.name) and path.is_dir())
