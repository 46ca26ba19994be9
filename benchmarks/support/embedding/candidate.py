"""One way to do a cell's work, and the module of a framework that has such ways."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from benchmarks.support.embedding.cells import Cell, TableShape

# The same in all frameworks.
LEARNING_RATE, EPSILON, FIRST_ACCUMULATOR = 0.05, 1e-7, 0.1
NUM_COMPARED = 256


@dataclass(frozen=True)
class Candidate:
    """What a process times.

    `run` works on batch k. What it comes to, `result` gives: of a lookup some rows of its last output [S, F * D], of
    training the rows of the tables by given ids. `reset` puts rows and what their optimizer keeps back to the start.
    """

    name: str
    run: Callable[[int], object]
    result: Callable[[Sequence[np.ndarray]], np.ndarray]
    reset: Callable[[Sequence[np.ndarray]], None]
    note: str = ""


class Candidates(Protocol):
    """The candidates of one process. `set_tables` comes before `make`; both replace what was before."""

    def set_tables(self, tables: TableShape) -> None:
        """Makes the tables, once."""

    def make(self, cell: Cell, ids: np.ndarray, gradient: np.ndarray) -> list[Candidate]:
        """Returns the candidates for a cell: ids [K, F, B, H], gradient [B, F * D]."""


def compared_samples(batch_size: int) -> np.ndarray:
    """Returns which samples of an output are compared."""
    return np.linspace(0, batch_size - 1, min(batch_size, NUM_COMPARED)).astype(np.int64)


def touched_rows(ids: np.ndarray) -> list[np.ndarray]:
    """Returns the unique ids of some batches [K, F, B, H], by table."""
    return [np.unique(ids[:, table]) for table in range(ids.shape[1])]


def compared_rows(touched: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns which of the touched rows are compared after training."""
    return [ids[:: max(1, len(ids) // NUM_COMPARED)] for ids in touched]
