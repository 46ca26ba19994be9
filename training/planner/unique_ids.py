"""How many different ids are among many: what deduplication leaves, and how many rows an update writes."""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

# Rows are taken together in so many bins, finer at the frequent end; more change the result by less than 1 %.
_NUM_BINS = 512


def expected_unique(num_rows: int, num_ids: float, exponent: float, rows: tuple[int, int]) -> float:
    """Returns how many different ids of a range of rows are expected among ids that follow a power law.

    Args:
        num_rows: Rows of the table, the most frequent first.
        num_ids: Ids that are drawn, of all rows.
        exponent: A row's probability falls as its position to the minus this; 0 is uniform.
        rows: The range [first, last) of rows to count in.
    """
    first, last = rows
    if last <= first or num_ids <= 0:
        return 0.0
    if exponent == 0:
        return (last - first) * -math.expm1(num_ids * math.log1p(-1 / num_rows)) if num_rows > 1 else 1.0
    positions, found = _found_below(num_rows, num_ids, exponent)
    below = np.interp([first + 1, last + 1], positions, found)
    return float(below[1] - below[0])


@lru_cache(maxsize=4096)
def _found_below(num_rows: int, num_ids: float, exponent: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns positions of rows, and how many different ids are expected before each."""
    positions = np.unique(np.geomspace(1, num_rows + 1, _NUM_BINS + 1).round())
    counts = np.diff(positions)
    mass = np.diff(_mass_below(positions, exponent)) / _mass_below(positions[-1:], exponent)
    unique = counts * -np.expm1(num_ids * np.log1p(-np.minimum(mass / counts, 1 - 1e-12)))
    return positions, np.concatenate([[0.0], np.cumsum(unique)])


def _mass_below(positions: NDArray[np.float64], exponent: float) -> NDArray[np.float64]:
    """Returns the integral of x^-exponent from 1 to each position: the density that the synthetic ids have."""
    if abs(exponent - 1) < 1e-9:
        return np.log(positions)
    integral: NDArray[np.float64] = (np.power(positions, 1 - exponent) - 1) / (1 - exponent)
    return integral
