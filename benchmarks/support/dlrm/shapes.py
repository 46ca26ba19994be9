"""The DLRMs whose training steps are measured, and their samples: NumPy alone, so that every candidate draws the same.

Shapes: F categorical features, B samples.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# Distinct values of the 26 features of Criteo's Kaggle data, of which no table gets more than 1M rows.
CARDINALITIES = (
    *(1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194),
    *(27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572),
)
TABLE_ROWS = tuple(min(cardinality, 1_000_000) for cardinality in CARDINALITIES)
NUM_DENSE = 13
EXPONENT = 1.05
LEARNING_RATE = 0.03
NUM_BATCHES = 4
WARMUP_STEPS = 2
_LEAST_STEPS, _MOST_STEPS = 4, 30


@dataclass(frozen=True)
class Shape:
    """A DLRM.

    Attributes:
        dim: Width of all tables.
        bottom: Widths of the hidden layers over the continuous features; one of width `dim` follows.
        top: Widths of the hidden layers over the interactions; the logit follows.
        timed_samples: About how many samples a turn times at each batch size.
    """

    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    timed_samples: int

    def num_steps(self, batch_size: int) -> int:
        """Returns the timed steps of a turn."""
        return min(_MOST_STEPS, max(_LEAST_STEPS, self.timed_samples // batch_size))

    def __str__(self) -> str:
        widths = ["-".join(map(str, layers)) for layers in ((*self.bottom, self.dim), (*self.top, 1))]
        return f"dim {self.dim}, bottom {widths[0]}, top {widths[1]}"


SHAPES = {
    "dim16": Shape(16, (512, 256), (512, 256), 131_072),
    "dim128": Shape(128, (512, 256), (1024, 1024, 512, 256), 32_768),
}


@dataclass(frozen=True)
class Samples:
    """One rank's part of a batch: dense float32 [B, 13], ids int64 [F, B], labels float32 [B]."""

    dense: npt.NDArray[np.float32]
    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.float32]


def draw_batches(batch_size: int, *, rank: int, num_ranks: int) -> list[Samples]:
    """Returns a rank's parts of some batches: ids follow a power law, the most frequent first; labels are random."""
    return list(_draw(batch_size, slice(rank, None, num_ranks)))


def _draw(batch_size: int, part: slice) -> Iterator[Samples]:
    draws = np.random.default_rng(batch_size)
    for _ in range(NUM_BATCHES):
        ids = np.stack([_power_law(draws.random(batch_size), num_rows) for num_rows in TABLE_ROWS])
        dense = draws.random((batch_size, NUM_DENSE), np.float32)
        labels = draws.integers(0, 2, batch_size).astype(np.float32)
        yield Samples(*(np.ascontiguousarray(array) for array in (dense[part], ids[:, part], labels[part])))


def _power_law(uniform: npt.NDArray[np.float64], num_rows: int) -> npt.NDArray[np.int64]:
    power = 1 - EXPONENT
    positions: npt.NDArray[np.float64] = (uniform * ((num_rows + 1.0) ** power - 1) + 1) ** (1 / power)
    return np.minimum(positions, num_rows).astype(np.int64) - 1
