"""Checkpoints on disk: what lies in their folders, read with NumPy alone.

    <run>/checkpoints/step-<8 digits>/
        tables/<table>.<array>.<first row>-<end row>.safetensors   one tensor `rows`, [rows, dim] or [rows]
        dense.safetensors                                          `<array>/<variable>`
        manifest.json                                              written last; without it the checkpoint does not
        exist

An array is `weights`, one of the optimizer's slots, such as `accumulator` (all float32), or `touched`: int32 [rows],
the optimizer's iteration that last wrote each row. Tables are cut into row ranges that have nothing to do with the
ranks that wrote them, so that any number of ranks reads any of them. Nothing here needs TensorFlow.

A checkpoint knows its lineage: the checkpoints through which the training that it holds has passed, as (id, iterations)
each, itself last. Iterations never restart, also when a new run goes on from a checkpoint; what was saved later than
the state from which training went on is no part of the lineage. So if a checkpoint is in the lineage of another, the
rows in which they differ are among `touched_since` the first one's iterations.

Checkpoints of releases that did not note all this have an id and a lineage of their own alone. Where training goes on
from one, all its rows count as written by the iteration that it has.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.errors import CorruptFileError, FormatError
from rankhouse.embedding_cache.format.files import MANIFEST_NAME, FileRecord, check_content, read_manifest
from rankhouse.embedding_cache.format.tensors import read_tensors
from rankhouse.embedding_cache.format.version_record import EVENT_TIME
from rankhouse.training.data.fit import Fit
from rankhouse.training.errors import CheckpointError

KIND = "checkpoint"
WEIGHTS = "weights"
TOUCHED = "touched"
DENSE_FILE = "dense.safetensors"
ROWS = "rows"

_STEP_FOLDER = re.compile(r"step-\d{8}")


@dataclass(frozen=True)
class RowRange:
    """Rows [start, stop) of one array of one table, and the file that holds them."""

    table: str
    array: str
    start: int
    stop: int
    file: str


@dataclass(frozen=True)
class CheckpointTable:
    """A table as a checkpoint holds it.

    Attributes:
        num_rows: Rows.
        dim: Width of a row.
        arrays: "weights", the optimizer's slots, and "touched".
        initial_rows: How many it had when its first run began; its rows' initial values depend on that.
    """

    num_rows: int
    dim: int
    arrays: tuple[str, ...]
    initial_rows: int


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
        row_ranges: The pieces of all tables.
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
    row_ranges: tuple[RowRange, ...]
    document: Mapping[str, Any]
    manifest: Mapping[str, Any]
    files: Mapping[str, FileRecord]

    @classmethod
    def open(cls, path: Path | str) -> "Checkpoint":
        """Opens a checkpoint's folder.

        Raises:
            CheckpointError: It is not a checkpoint, or a file is missing or truncated.
        """
        path = Path(path)
        try:
            manifest = read_manifest(path, kind=KIND, verify=False)
            document = manifest.document
            tables = {name: _table_of(info) for name, info in document["tables"].items()}
            ranges = tuple(RowRange(**item) for item in document["row_ranges"])
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
        return cls(path, step, identifier, lineage, fit, tables, ranges, training, document, manifest.files)

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
        self, table: str, array: str = WEIGHTS, *, start: int = 0, stop: int | None = None
    ) -> Iterator["RowBlock"]:
        """Yields rows [start, stop) of a table in order, mapped from the files, each verified before it is used.

        Raises:
            CheckpointError: Table or array is unknown, rows are missing, or a file was altered.
        """
        info = self._table(table, array)
        at, end = start, info.num_rows if stop is None else stop
        for item in self._ranges(table, array):
            if item.start <= at < min(item.stop, end):
                until = min(item.stop, end)
                rows = self._read(item.file)[ROWS]
                yield RowBlock(at, rows[at - item.start : until - item.start])
                at = until
        if at < end:
            raise CheckpointError(
                f"{self.path}: rows {at} to {end} of table {table!r} ({array}) are in none of its files"
            )

    def stream(self, table: str, *, num_rows: int) -> Iterator["RowBlock"]:
        """Yields a table's weights in order, `num_rows` at a time, and verifies each file by the same read.

        So an altered file is known when its last row is out: what was made of the rows counts when the stream has
        ended.

        Raises:
            CheckpointError: The table is unknown, rows are missing, or a file was altered.
        """
        at, end = 0, self._table(table, WEIGHTS).num_rows
        for item in self._ranges(table, WEIGHTS):
            if item.start == at:
                for rows in self._verified_blocks(item.file, num_rows):
                    yield RowBlock(at, rows)
                    at += len(rows)
        if at < end:
            raise CheckpointError(
                f"{self.path}: rows {at} to {end} of table {table!r} (weights) are in none of its files"
            )

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
        rows, found = np.empty((len(ids), info.dim), np.float32), 0
        for item in self._ranges(table, WEIGHTS):
            inside = np.flatnonzero((ids >= item.start) & (ids < item.stop))
            if len(inside):
                rows[inside] = self._map(item.file)[ROWS][ids[inside] - item.start]
                found += len(inside)
        if found < len(ids):
            raise CheckpointError(
                f"{self.path}: {len(ids) - found} of the ids asked for are no rows of table {table!r}, which has "
                f"{info.num_rows}; ids begin at 0"
            )
        return rows

    def dense(self, array: str = WEIGHTS) -> dict[str, npt.NDArray[Any]]:
        """Returns the dense variables by name, or one of their optimizer slots.

        Raises:
            CheckpointError: The file was altered.
        """
        prefix = f"{array}/"
        tensors = self._read(DENSE_FILE)
        return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}

    @property
    def num_bytes(self) -> int:
        """Bytes of all its files."""
        return sum(record.bytes for record in self.files.values())

    def verify(self) -> None:
        """Reads everything and compares it with the manifest.

        Raises:
            CheckpointError: A file was altered, or rows are missing; the message names the file.
        """
        for name in self.files:
            self._check(name)

    def _table(self, table: str, array: str) -> CheckpointTable:
        info = self.tables.get(table)
        if info is None or array not in info.arrays:
            raise CheckpointError(f"{self.path}: holds no {array!r} of a table {table!r}; it has {self._contents()}")
        return info

    def _ranges(self, table: str, array: str) -> list[RowRange]:
        ranges = [item for item in self.row_ranges if (item.table, item.array) == (table, array)]
        return sorted(ranges, key=lambda item: item.start)

    def _read(self, file: str) -> dict[str, npt.NDArray[Any]]:
        self._check(file)
        return self._map(file)

    def _verified_blocks(self, file: str, num_rows: int) -> Iterator[npt.NDArray[Any]]:
        path, record, rows = self.path / file, self.files[file], self._map(file)[ROWS]
        try:
            with open(path, "rb") as reader:
                digest = hashlib.sha256(reader.read(max(record.bytes - rows.nbytes, 0)))
        except OSError as exc:
            raise CheckpointError(
                f"{path}: cannot be read ({exc.strerror}); restore the file from another copy, or export an older "
                "checkpoint"
            ) from exc
        with ThreadPoolExecutor(1) as hasher:
            for begin in range(0, len(rows), num_rows):
                block = rows[begin : begin + num_rows]
                hashed = hasher.submit(digest.update, block.reshape(-1).view(np.uint8).data)
                yield block
                hashed.result()
        if digest.hexdigest() != record.sha256:
            raise CheckpointError(
                f"{path}: its content was altered: expected SHA-256 {record.sha256}, found {digest.hexdigest()}; "
                "restore the file from another copy, or export an older checkpoint"
            )

    def _map(self, file: str) -> dict[str, npt.NDArray[Any]]:
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


@dataclass(frozen=True)
class RowBlock:
    """Consecutive rows of a table: the number of the first, and [n, dim] or [n] in the array's type, read-only."""

    start: int
    rows: npt.NDArray[Any]


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
