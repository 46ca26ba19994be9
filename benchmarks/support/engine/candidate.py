"""One way to look rows up, whatever keeps them."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from benchmarks.support.engine.timed_calls import TimedCalls


class Candidate(Protocol):
    """What a process times. Letters in shapes: K batches, F features, B candidates, D width.

    Attributes:
        name: Its name in the tables.
        num_deltas: Of the version whose rows it gives.
        in_files: Whether it reads files when it looks up, so that a cold page cache means something.
    """

    name: str
    num_deltas: int
    in_files: bool

    def open(self) -> None:
        """Opens what keeps the rows."""

    def close(self) -> None:
        """Closes it, so that its files can leave the page cache."""

    def files(self) -> Sequence[Path]:
        """Returns the files that it reads."""

    def use(self, ids: np.ndarray) -> None:
        """Makes ready for batches of ids, int64 [K, F, B]."""

    def run(self, batch: int) -> None:
        """Looks one batch up."""

    def timed(self) -> "TimedCalls | None":
        """Returns the calls that `run` makes, for what is timed through C; None where it is timed through Python."""

    def result(self) -> np.ndarray:
        """Returns what the last run gave, float32 [B, F * D]."""


def row_numbers(ids: np.ndarray, rows_of_table: int) -> np.ndarray:
    """Returns the numbers of rows in all tables together as results have them: int64 [K, B, F]."""
    begins = np.arange(ids.shape[1])[:, None] * rows_of_table
    return np.ascontiguousarray((ids + begins).transpose(0, 2, 1))


def files_below(*folders: Path) -> Iterator[Path]:
    """Yields the files in folders, and files as they are."""
    for folder in folders:
        yield from (path for path in ([folder] if folder.is_file() else folder.rglob("*")) if path.is_file())
