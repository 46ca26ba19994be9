"""What is measured: shapes of tables and batches, their ids, and what tables hold at first.

Every process makes or reads the same from it, whatever framework it runs. Letters in shapes: K batches, F features with
a table each, B samples, H ids in a bag, R rows and D width of a table.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

ZIPF_EXPONENT = 1.05
# A batch is not seen again before this much of the tables has been read, as in training; else caches would answer.
ROTATION_BYTES = 64 << 20
MOST_BATCHES = 256
# Tables repeat this many floats; a prime, so that rows differ.
PATTERN_SIZE = 1_000_003
# Spreads the frequent ids of a Zipf distribution over the table. A prime that divides no power of ten.
SPREAD = 2_654_435_761


@dataclass(frozen=True)
class TableShape:
    """F tables of one shape. Training also needs what optimizers keep."""

    num_tables: int
    rows: int
    dim: int
    training: bool

    @property
    def num_bytes(self) -> int:
        """Of all rows in float32."""
        return self.num_tables * self.rows * self.dim * 4


@dataclass(frozen=True)
class Cell:
    """One measurement: a shape of tables and of batches."""

    tables: TableShape
    batch_size: int
    hotness: int
    distribution: str  # uniform or zipf

    @property
    def label(self) -> str:
        """The words that --filter selects by."""
        tables = self.tables
        return (
            f"{'training' if tables.training else 'forward'} tables={tables.num_tables} rows={tables.rows} "
            f"dim={tables.dim} batch={self.batch_size} hotness={self.hotness} {self.distribution}"
        )

    @property
    def num_batches(self) -> int:
        """K, at least 2."""
        num_bytes = self.tables.num_tables * self.batch_size * self.hotness * self.tables.dim * 4
        return max(2, min(MOST_BATCHES, -(-ROTATION_BYTES // num_bytes)))


def every_cell() -> Iterator[Cell]:
    """Yields the whole matrix, cells of the same tables one after the other.

    26 tables of 10M rows would not fit the machine, nor would their largest batches; and where a peer takes seconds
    for each call in training, hotness 64 is measured at the small batch only.
    """
    for training, dim, rows in product((False, True), (16, 128), (1_000_000, 10_000_000)):
        for batch_size, hotness in product((4096, 65536), (1, 10, 64)):
            if not (training and batch_size * hotness > 1_000_000):
                yield from _both(TableShape(1, rows, dim, training), batch_size, hotness)
    for training, (rows, dim) in product((False, True), ((1_000_000, 16), (200_000, 128))):
        batches = ((4096, 1), (4096, 10), (65536, 1)) if training else ((4096, 1), (4096, 10), (65536, 1), (65536, 10))
        for batch_size, hotness in batches:
            yield from _both(TableShape(26, rows, dim, training), batch_size, hotness)


def quick_cells() -> Iterator[Cell]:
    """Yields what shows each aim once or twice."""
    for training in (False, True):
        narrow, wide = TableShape(1, 1_000_000, 16, training), TableShape(1, 1_000_000, 128, training)
        yield Cell(narrow, 4096, 1, "uniform")
        yield from _both(narrow, 65536, 10)
        yield Cell(wide, 4096, 10, "uniform")
        yield Cell(wide, 65536, 1, "zipf")
        if not training:
            yield Cell(wide, 65536, 10, "zipf")
            yield Cell(TableShape(1, 10_000_000, 16, training), 65536, 64, "uniform")
        yield Cell(TableShape(26, 200_000, 16, training), 4096, 1, "zipf")


def _both(tables: TableShape, batch_size: int, hotness: int) -> Iterator[Cell]:
    for distribution in ("uniform", "zipf"):
        yield Cell(tables, batch_size, hotness, distribution)


def make_ids(cell: Cell, num_batches: int | None = None) -> np.ndarray:
    """Returns the ids of all batches, or of another number of them: int64 [K, F, B, H]."""
    random = np.random.default_rng(2024)
    shape = (num_batches or cell.num_batches, cell.tables.num_tables, cell.batch_size, cell.hotness)
    rows = cell.tables.rows
    if cell.distribution == "uniform":
        return random.integers(0, rows, shape)
    shares = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -ZIPF_EXPONENT)
    ids = np.empty(shape, np.int64)
    for batch in ids:
        batch[:] = np.searchsorted(shares, random.random(shape[1:]) * shares[-1]) * SPREAD % rows
    return ids


def make_gradient(cell: Cell) -> np.ndarray:
    """Returns the gradient of what a lookup gives, float32 [B, F * D]."""
    shape = (cell.batch_size, cell.tables.num_tables * cell.tables.dim)
    return np.random.default_rng(2025).standard_normal(shape, dtype=np.float32)


class Pattern:
    """What tables hold at first: the same floats over and over, table by table and row by row."""

    def __init__(self, tables: TableShape) -> None:
        self._tables = tables
        self._floats = np.random.default_rng(2026).standard_normal(PATTERN_SIZE, dtype=np.float32)

    def fill(self, floats: np.ndarray, table: int, first_row: int = 0) -> None:
        """Fills [N] in place with a table's floats from one row on."""
        phase = (table * self._tables.rows + first_row) * self._tables.dim % PATTERN_SIZE
        turned = np.roll(self._floats, -phase)
        for start in range(0, len(floats), PATTERN_SIZE):
            part = floats[start : start + PATTERN_SIZE]
            part[:] = turned[: len(part)]

    def rows(self, table: int, ids: np.ndarray) -> np.ndarray:
        """Returns rows by their ids, float32 [len(ids), D]."""
        first = (table * self._tables.rows + ids) * self._tables.dim
        return self._floats[(first[:, None] + np.arange(self._tables.dim)) % PATTERN_SIZE]
