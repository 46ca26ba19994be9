"""Checkpoints on disk: what lies in their folders, read with NumPy alone.

    <run>/checkpoints/step-<8 digits>/
        tables/<table>.<array>.<first row>-<end row>.safetensors   one tensor `rows`, float32 [rows, dim]
        dense.safetensors                                          `<array>/<variable>`
        manifest.json                                              written last; without it the checkpoint does not
        exist

An array is `weights` or one of the optimizer's slots, such as `accumulator`. Tables are cut into row ranges that have
nothing to do with the ranks that wrote them, so that any number of ranks reads any of them. Nothing here needs
TensorFlow.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.errors import CorruptFileError, FormatError
from rankhouse.embedding_cache.format.files import MANIFEST_NAME, FileRecord, check_content, read_manifest
from rankhouse.embedding_cache.format.tensors import read_tensors
from rankhouse.training.errors import CheckpointError

KIND = "checkpoint"
WEIGHTS = "weights"
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
        arrays: "weights" and the optimizer's slots.
    """

    num_rows: int
    dim: int
    arrays: tuple[str, ...]


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint. Opening reads the manifest; contents are read, and verified, when asked for.

    Attributes:
        path: Its folder.
        step: The number of training steps done.
        tables: The tables by name.
        row_ranges: The pieces of all tables.
        document: What the trainer kept beside the weights.
        manifest: The whole manifest's document.
        files: The records of all files.
    """

    path: Path
    step: int
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
            tables = {
                name: CheckpointTable(info["num_rows"], info["dim"], tuple(info["arrays"]))
                for name, info in document["tables"].items()
            }
            ranges = tuple(RowRange(**item) for item in document["row_ranges"])
            step, training = document["step"], document["training"]
        except FormatError as exc:
            raise CheckpointError(str(exc)) from exc
        except (KeyError, TypeError) as exc:
            raise CheckpointError(
                f"{path / MANIFEST_NAME}: lacks or mangles {exc}; it is not a checkpoint of ours"
            ) from exc
        return cls(path, step, tables, ranges, training, document, manifest.files)

    def rows(
        self, table: str, array: str = WEIGHTS, *, start: int = 0, stop: int | None = None
    ) -> Iterator["RowBlock"]:
        """Yields rows [start, stop) of a table in order, mapped from the files, each verified before it is used.

        Raises:
            CheckpointError: Table or array is unknown, rows are missing, or a file was altered.
        """
        info = self.tables.get(table)
        if info is None or array not in info.arrays:
            raise CheckpointError(f"{self.path}: holds no {array!r} of a table {table!r}; it has {self._contents()}")
        at, end = start, info.num_rows if stop is None else stop
        ranges = [item for item in self.row_ranges if (item.table, item.array) == (table, array)]
        for item in sorted(ranges, key=lambda item: item.start):
            if item.start <= at < min(item.stop, end):
                until = min(item.stop, end)
                rows = self._read(item.file)[ROWS]
                yield RowBlock(at, rows[at - item.start : until - item.start])
                at = until
        if at < end:
            raise CheckpointError(
                f"{self.path}: rows {at} to {end} of table {table!r} ({array}) are in none of its files"
            )

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

    def _read(self, file: str) -> dict[str, npt.NDArray[Any]]:
        self._check(file)
        return read_tensors(self.path / file)

    def _check(self, file: str) -> None:
        try:
            check_content(self.path / file, self.files[file])
        except CorruptFileError as exc:
            raise CheckpointError(str(exc)) from exc

    def _contents(self) -> str:
        return ", ".join(f"{name} ({', '.join(info.arrays)})" for name, info in self.tables.items())


@dataclass(frozen=True)
class RowBlock:
    """Consecutive rows of a table: the number of the first, and float32 [n, dim], read-only."""

    start: int
    rows: npt.NDArray[np.float32]


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
