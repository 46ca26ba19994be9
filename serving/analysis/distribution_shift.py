"""How far two distributions of scores are apart: PSI and the Kolmogorov-Smirnov distance, with bounds for all times."""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rankhouse.serving.analysis.sequential_tests import Interval, Levels, distribution_radius, vector_radius

Counts = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

NUM_GROUPS = 10


class Sample(NamedTuple):
    """A histogram of scores.

    Attributes:
        counts: [NUM_SCORE_BINS].
        num_independent: How many of the scores are independent of each other: the requests, as candidates of one
            request share its user; all of them where that is not so.
    """

    counts: Counts
    num_independent: float


def population_stability_index(one: Counts, other: Counts) -> float:
    """The PSI of two samples: the sum over ten groups of scores, equally large in the first, of (p - q) log(p / q).

    Below 0.1 counts as no shift, above 0.25 as a large one. A sample of nothing but noise has a PSI of about
    9 (1 / n + 1 / m) for n and m scores.
    """
    p, q = _shares(one, other)
    return float(np.dot(p - q, np.log(p / q)))


def psi_interval(one: Sample, other: Sample, levels: Levels, *, scale: float) -> Interval:
    """Bounds the PSI of what two samples are drawn from.

    After the square root, shares have all the same variance, 1 / (4 n), so the distance of 2 sqrt(p) and 2 sqrt(q) is
    a Euclidean one with normal errors. PSI is never less than its square, and equal to it for small shifts; the upper
    bound is stretched by as much as the estimate is more.

    Args:
        one: A sample.
        other: The other.
        levels: How sure the bounds are to be; they are so with large samples.
        scale: The PSI that matters.
    """
    p, q = _shares(one.counts, other.counts)
    distance = 2 * math.sqrt(float(((np.sqrt(p) - np.sqrt(q)) ** 2).sum()))
    index = float(np.dot(p - q, np.log(p / q)))
    information = 1 / (1 / one.num_independent + 1 / other.num_independent)
    low, high = (vector_radius(information, max(len(p) - 1, 1), level, scale=math.sqrt(scale)) for level in levels)
    stretch = index / distance**2 if distance > 0 else 1.0
    return Interval(max(0.0, distance - low) ** 2, max(1.0, stretch) * (distance + high) ** 2)


def kolmogorov_smirnov(one: Counts, other: Counts) -> float:
    """The largest distance of the two distribution functions, at the edges of the bins."""
    return float(np.abs(np.cumsum(one) / one.sum() - np.cumsum(other) / other.sum()).max())


def ks_interval(one: Sample, other: Sample, levels: Levels) -> Interval:
    """Bounds the Kolmogorov-Smirnov distance of what two samples are drawn from.

    Args:
        one: A sample.
        other: The other.
        levels: How sure the bounds are to be.
    """
    distance = kolmogorov_smirnov(one.counts, other.counts)
    low, high = (
        sum(distribution_radius(int(sample.num_independent), level / 2) for sample in (one, other)) for level in levels
    )
    return Interval(max(0.0, distance - low), min(1.0, distance + high))


def _shares(one: Counts, other: Counts) -> tuple[Floats, Floats]:
    """The shares of two histograms in groups that are equally large in the first, if its bins allow; none is 0."""
    before = np.cumsum(one) - one
    group = np.minimum(before * NUM_GROUPS // max(int(one.sum()), 1), NUM_GROUPS - 1).astype(np.int64)
    _, group = np.unique(group, return_inverse=True)
    grouped = [np.bincount(group, weights=counts) + 0.5 for counts in (one, other)]
    p, q = (counts / counts.sum() for counts in grouped)
    return p, q
