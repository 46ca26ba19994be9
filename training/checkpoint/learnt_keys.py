"""The keys that a table has learnt, as a checkpoint holds them, by the ids that a version gives them.

Of the rows that hold a key the first gets the first id of a known value, and so on in the order of rows; so a version
has no row without a key, and its reserved rows, those of missing and unknown keys among them, are zeros, as training
has them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.vocabulary import FIRST_KNOWN_ID, UNKNOWN_ID, IntIndex, TableChange
from rankhouse.training.checkpoint.files import KEY_ARRAYS, Checkpoint
from rankhouse.training.checkpoint.pieces import RowBlock

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LearntKeys:
    """The keys of one table.

    Attributes:
        checkpoint: Where they lie.
        table: The table.
        keys: int64 [n], in the order of their ids.
        rows: int64 [n], the row of the checkpoint that each has, rising.
    """

    checkpoint: Checkpoint
    table: str
    keys: Ids
    rows: Ids

    @classmethod
    def of(cls, checkpoint: Checkpoint, table: str) -> "LearntKeys":
        """Reads the keys of a table.

        Raises:
            CheckpointError: The checkpoint has no such table, or a file was altered.
        """
        keys, counts = (
            np.concatenate([block.rows for block in checkpoint.rows(table, array)]) for array in KEY_ARRAYS[:2]
        )
        rows = np.flatnonzero(counts)
        return cls(checkpoint, table, keys[rows], rows)

    @property
    def num_rows(self) -> int:
        """How many rows a version has for them, the reserved ones included."""
        return FIRST_KNOWN_ID + len(self.keys)

    @property
    def change(self) -> TableChange:
        """What a layer of vocabularies says of them, over one that knows none."""
        return TableChange(self.keys, self._ids, freed=np.empty(0, np.int64))

    def find(self, keys: Ids) -> Ids:
        """Returns the ids of keys [n]; that of an unknown value where one has no row."""
        found = self._index.find(keys)
        return np.where(found < 0, UNKNOWN_ID, found)

    def gather(self, ids: Ids) -> npt.NDArray[np.float32]:
        """Copies the rows float32 [n, dim] of ids [n], as `Checkpoint.gather` does.

        Raises:
            CheckpointError: A row is in none of the files.
        """
        rows = np.zeros((len(ids), self._dim), np.float32)
        known = ids >= FIRST_KNOWN_ID
        rows[known] = self.checkpoint.gather(self.table, self.rows[ids[known] - FIRST_KNOWN_ID])
        return rows

    def stream(self, *, num_rows: int) -> Iterator[RowBlock]:
        """Yields all rows in the order of their ids, and verifies the files, as `Checkpoint.stream` does.

        Raises:
            CheckpointError: Rows are missing, or a file was altered.
        """
        yield RowBlock(0, np.zeros((FIRST_KNOWN_ID, self._dim), np.float32))
        for block in self.checkpoint.stream(self.table, num_rows=num_rows):
            begin, end = np.searchsorted(self.rows, [block.start, block.start + len(block.rows)])
            if begin < end:
                yield RowBlock(FIRST_KNOWN_ID + int(begin), block.rows[self.rows[begin:end] - block.start])

    @property
    def _dim(self) -> int:
        return self.checkpoint.tables[self.table].dim

    @property
    def _ids(self) -> Ids:
        return np.arange(len(self.keys), dtype=np.int64) + FIRST_KNOWN_ID

    @cached_property
    def _index(self) -> IntIndex:
        return IntIndex.build(self.table, self.keys, self._ids)
