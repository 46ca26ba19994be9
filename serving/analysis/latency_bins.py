"""The bins into which latencies are counted, and what a histogram of them says.

The bins grow by 2 % from 10 microseconds to 100 seconds, so a quantile read from them is within 1 % of the sample's own
(Masson, Rim and Lee 2019, DDSketch, section 2), and histograms of any processes and times add up.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

FIRST_SECONDS = 1e-5
GROWTH = 1.02
NUM_LATENCY_BINS = 2 + math.ceil(math.log(100 / FIRST_SECONDS) / math.log(GROWTH))

# Between the bins: float64 [NUM_LATENCY_BINS - 1]; a latency at an edge is in the bin above.
LATENCY_EDGES = FIRST_SECONDS * GROWTH ** np.arange(NUM_LATENCY_BINS - 1)


def latency_bins(seconds: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The bin of each latency: int64 [n], of finite seconds [n]."""
    return np.searchsorted(LATENCY_EDGES, seconds, side="right")


def latency_quantile(counts: npt.NDArray[np.int64], share: float) -> float | None:
    """The latency that this share of a histogram's observations does not exceed, in seconds.

    Args:
        counts: int64 [NUM_LATENCY_BINS].
        share: Of (0, 1), as 0.99.

    Returns:
        The geometric middle of the bin in which it lies; None where nothing was counted.
    """
    totals = np.cumsum(counts)
    if not totals[-1]:
        return None
    place = int(np.searchsorted(totals, math.ceil(share * int(totals[-1]))))
    low, high = max(place - 1, 0), min(place, NUM_LATENCY_BINS - 2)
    return math.sqrt(LATENCY_EDGES[low] * LATENCY_EDGES[high])
