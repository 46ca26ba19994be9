"""What one rank writes of a checkpoint: its rectangles of the tables and, on rank 0, what all ranks know alike.

All ranks write their parts at the same time. A part is written from the variables themselves, block by block, or from a
copy of them in host memory, so that training can go on meanwhile.
"""

import json
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from rankhouse.embedding_cache.format.files import FileRecord, file_record, write_durably
from rankhouse.embedding_cache.format.tensors import write_tensor_blocks, write_tensors
from rankhouse.training.checkpoint.files import DENSE_FILE, KEY_ARRAYS, ROWS, TOUCHED, VOCABULARIES_FILE, WEIGHTS
from rankhouse.training.checkpoint.learnt_rows import candidates_file, candidates_of, key_arrays
from rankhouse.training.checkpoint.pieces import Piece
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.errors import CheckpointError
from rankhouse.training.optimizers.optimizers import Optimizer
from rankhouse.training.tables.table_shards import TableShard
from rankhouse.training.tables.variable_rows import read_rows

# Rows are copied in blocks of this many bytes, so saving a table from its variable takes no second one in memory.
_BLOCK_BYTES = 64 << 20

# And cut into files of this many, so that a rank which wants some rows need not read and verify a whole table.
_FILE_BYTES = 1 << 30

# Where the ranks of a save in the background leave what they have written; gone when the checkpoint is there.
_RECORDS = "records"


@dataclass(frozen=True)
class Written:
    """What a rank has written: its pieces as the manifest has them, and the records of its files."""

    pieces: list[dict[str, Any]] = field(default_factory=list)
    files: dict[str, FileRecord] = field(default_factory=dict)

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> "Written":
        """Reads what `document` returned."""
        return cls(document["pieces"], {name: FileRecord(**record) for name, record in document["files"].items()})

    def document(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        return {"pieces": self.pieces, "files": {name: asdict(record) for name, record in self.files.items()}}


class KeptLayer(Protocol):
    """A Keras layer that knows more than variables, or anything else that gives its arrays and takes them back."""

    def save_own_variables(self, store: dict[str, Any]) -> None:
        """Puts its arrays into a dict."""

    def load_own_variables(self, store: Mapping[str, Any]) -> None:
        """Takes them back."""


class Part:
    """One rank's part of a checkpoint. One thread at a time uses it; any may read `num_bytes_written`.

    Attributes:
        num_bytes: Of the rows of tables that are still to be written.
        num_bytes_copied: Of those that lie in memory of their own.
        num_bytes_written: Grows with each block.
    """

    def __init__(
        self,
        embedding: DistributedEmbedding,
        dense: Mapping[str, tf.Variable],
        optimizer: Optimizer,
        *,
        rank: int,
        vocabularies: Mapping[str, "KeptLayer"],
    ) -> None:
        """Finds out what falls to this rank, and copies all but the tables, which are not read yet.

        Args:
            embedding: The tables.
            dense: All other variables by name.
            optimizer: Of both.
            rank: This rank, of those that the embedding's plan is for.
            vocabularies: Layers that learn keys, by name.
        """
        self._contents = _owned_contents(embedding, optimizer, rank)
        # Small files: what all ranks know alike is rank 0's to write.
        self._small = (
            {DENSE_FILE: _dense_tensors(dense, optimizer), VOCABULARIES_FILE: _vocabulary_tensors(vocabularies)}
            if rank == 0
            else {}
        )
        for shard in _written_here(embedding, rank):
            if shard.learnt is not None and shard.column_start == 0:
                self._small[candidates_file(shard.table, shard)] = candidates_of(shard.learnt)
        self._dims = {spec.name: spec.output_dim for spec in embedding.specs}
        self._written = Written()
        self.num_bytes_written = 0

    @property
    def num_bytes(self) -> int:
        return sum(content.num_bytes for content in self._contents)

    @property
    def num_bytes_copied(self) -> int:
        return sum(content.num_bytes for content in self._contents if content.copied is not None)

    def copy(self, limit_bytes: int) -> None:
        """Copies what fits into so many bytes, piece by piece, the first ones first."""
        for content in self._contents:
            if content.num_bytes <= limit_bytes:
                content.copied = list(content.blocks())
                limit_bytes -= content.num_bytes

    def write_uncopied(self, folder: Path) -> None:
        """Writes what was not copied.

        Raises:
            OSError, FormatError: A file cannot be written.
        """
        self._write(folder, [content for content in self._contents if content.copied is None])

    def write(self, folder: Path, cancelled: threading.Event | None = None) -> Written:
        """Writes all that is left, and lets go of copies as soon as they are written.

        Args:
            folder: The checkpoint's folder.
            cancelled: Ends the writing at the next block where it is set.

        Raises:
            OSError, FormatError: A file cannot be written.
            CheckpointError: It was cancelled.
        """
        self._write(folder, list(self._contents), cancelled)
        for file, tensors in self._small.items():
            if tensors:
                write_tensors(folder / file, tensors)
                self._written.files[file] = file_record(folder / file)
        self._small = {}
        return self._written

    def _write(self, folder: Path, contents: Sequence["_Content"], cancelled: threading.Event | None = None) -> None:
        for content in contents:
            piece, blocks = content.piece, self._counted(content, cancelled)
            self._written.files[piece.file] = _write_content(folder / piece.file, content, blocks)
            self._written.pieces.append(piece.document(self._dims[piece.table]))
            self._contents.remove(content)
            content.copied = None

    def _counted(self, content: "_Content", cancelled: threading.Event | None) -> Iterator[npt.NDArray[Any]]:
        for block in content.blocks():
            if cancelled is not None and cancelled.is_set():
                raise CheckpointError("given up before all was written")
            yield block
            self.num_bytes_written += block.nbytes


@dataclass(eq=False)
class _Content:
    """A piece, the variable that has its rows from `first` on, and the copy of them if there is one.

    What is learnt of keys is a copy from the start, of which nothing need be copied again.
    """

    piece: Piece
    variable: tf.Variable
    first: int
    copied: list[npt.NDArray[Any]] | None = None

    @property
    def num_bytes(self) -> int:
        return (self.piece.stop - self.piece.start) * self.row_bytes

    @property
    def row_bytes(self) -> int:
        # The width is empty where a slot has one number for a row.
        return int(self.variable.dtype.size * self.variable.shape[1:].num_elements())

    def blocks(self) -> Iterator[npt.NDArray[Any]]:
        if self.copied is not None:
            yield from self.copied
            return
        end, step = self.first + self.piece.stop - self.piece.start, max(1, _BLOCK_BYTES // self.row_bytes)
        whole = np.asarray(memoryview(self.variable.value())) if self.piece.array in KEY_ARRAYS else None
        for at in range(self.first, end, step):
            rows = slice(at, min(at + step, end))
            block = read_rows(self.variable, rows.start, rows.stop) if whole is None else whole[rows]
            yield block.view(np.uint16) if self.variable.dtype == tf.bfloat16 else block


def arrays(variable: tf.Variable, optimizer: Optimizer) -> dict[str, tf.Variable]:
    """Returns a dense variable's arrays by name: itself and its slots."""
    return {WEIGHTS: variable, **optimizer.slots(variable)}


def table_arrays(table: tf.Variable, optimizer: Optimizer) -> dict[str, tf.Variable]:
    """Returns a table's arrays by name: itself, its slots, and the steps that last wrote its rows."""
    return {**arrays(table, optimizer), TOUCHED: optimizer.touched_steps(table)}


def _saved_arrays(shard: TableShard, optimizer: Optimizer) -> dict[str, tf.Variable]:
    of_keys = {} if shard.learnt is None else key_arrays(shard.learnt)
    return {**table_arrays(shard.variable, optimizer), **of_keys}


def leave_record(folder: Path, rank: int, written: Written) -> None:
    """Leaves what a rank has written in the checkpoint's folder, where rank 0 finds it; it appears whole.

    Raises:
        OSError: It cannot be written.
    """
    path = _record_file(folder, rank)
    path.parent.mkdir(exist_ok=True)
    write_durably(path, json.dumps(written.document()).encode())


def find_record(folder: Path, rank: int) -> Written | None:
    """Returns what a rank has left, or None where it has not written all yet.

    Raises:
        CheckpointError: It cannot be read.
    """
    path = _record_file(folder, rank)
    try:
        return Written.parse(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise CheckpointError(f"{path}: cannot be read ({exc}); is the folder one that all ranks share?") from exc


def remove_records(folder: Path) -> None:
    """Removes what the ranks have left, once it was read: a checkpoint has nothing that its manifest does not name."""
    if (folder / _RECORDS).is_dir():
        shutil.rmtree(folder / _RECORDS)


def _record_file(folder: Path, rank: int) -> Path:
    return folder / _RECORDS / f"rank-{rank}.json"


def _written_here(embedding: DistributedEmbedding, rank: int) -> list[TableShard]:
    # A data-parallel table is the same everywhere; the ranks take turns, so that each writes some.
    turns = {spec.name: number % embedding.plan.num_ranks for number, spec in enumerate(embedding.specs)}
    return [shard for shard in embedding.shards if not shard.replicated or turns[shard.table] == rank]


def _owned_contents(embedding: DistributedEmbedding, optimizer: Optimizer, rank: int) -> list[_Content]:
    dims = {spec.name: spec.output_dim for spec in embedding.specs}
    contents = []
    for shard in _written_here(embedding, rank):
        for array, variable in _saved_arrays(shard, optimizer).items():
            columns: tuple[int, int] | None = (shard.column_start, shard.column_stop)
            if array in optimizer.slot_names and len(variable.shape) == 1:
                # All slices of a row keep the same number: the leftmost one writes it for all.
                columns = (0, dims[shard.table]) if shard.column_start == 0 else None
            pieces = _cut(shard, array, columns, dims[shard.table]) if columns else ()
            contents += [_Content(piece, variable, piece.start - shard.row_start) for piece in pieces]
    return contents


def _cut(shard: TableShard, array: str, columns: tuple[int, int], dim: int) -> Iterator[Piece]:
    # By the whole table's width, so that slices of columns are cut at the same rows, and are read side by side.
    step = max(1, _FILE_BYTES // (4 * dim))
    which = "" if columns == (0, dim) else f".columns-{columns[0]}-{columns[1]}"
    for start in range(shard.row_start, shard.row_stop, step):
        stop = min(start + step, shard.row_stop)
        file = f"tables/{quote(shard.table, safe='')}.{array}.{start}-{stop}{which}.safetensors"
        yield Piece(shard.table, array, start, stop, file, *columns)


def _write_content(path: Path, content: _Content, blocks: Iterator[npt.NDArray[Any]]) -> FileRecord:
    piece = content.piece
    metadata = {"table": piece.table, "array": piece.array}
    for edge in ("start", "stop"):
        metadata |= {f"row_{edge}": str(getattr(piece, edge)), f"column_{edge}": str(getattr(piece, f"column_{edge}"))}
    shape = (piece.stop - piece.start, *content.variable.shape[1:])
    dtype = content.variable.dtype.as_numpy_dtype
    return write_tensor_blocks(path, ROWS, blocks, shape=shape, dtype=dtype, metadata=metadata)


def _dense_tensors(dense: Mapping[str, tf.Variable], optimizer: Optimizer) -> dict[str, npt.NDArray[Any]]:
    return {
        f"{array}/{name}": np.array(variable.numpy())
        for name, owner in dense.items()
        for array, variable in arrays(owner, optimizer).items()
    }


def _vocabulary_tensors(vocabularies: Mapping[str, KeptLayer]) -> dict[str, npt.NDArray[Any]]:
    tensors: dict[str, npt.NDArray[Any]] = {}
    for name, layer in vocabularies.items():
        kept: dict[str, Any] = {}
        layer.save_own_variables(kept)
        tensors |= {f"{array}/{name}": np.asarray(values) for array, values in kept.items()}
    return tensors
