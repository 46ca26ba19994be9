"""What a summary counts: the arrays that it consists of, all of which add up.

Because a summary is nothing but sums, those of several processes merge by addition, in any order, and a later one minus
an earlier one of the same process is the summary of the time between.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.score_bins import BINS_PER_UNIT, FIRST_LOG_ODDS, NUM_SCORE_BINS
from rankhouse.serving.analysis.latency_bins import NUM_LATENCY_BINS

Arrays = dict[str, npt.NDArray[Any]]

# What became of a request, the elements of `statuses`: an answer; a refusal, as the caller asked for what cannot be;
# nothing, as the caller went; a failure of ours.
ANSWERED, REFUSED, CANCELLED, FAILED = range(4)

# Where pairs of impressions are counted, scores are cut into 16 cells only, 3/4 wide in log-odds, from -9.5 to 2.5.
NUM_SCORE_CELLS = 16
_CELLS_BEGIN = int((-9.5 - FIRST_LOG_ODDS) * BINS_PER_UNIT) + 1
_BINS_PER_CELL = BINS_PER_UNIT * 3 // 4

# The cell of each bin of scores: int64 [NUM_SCORE_BINS].
SCORE_CELLS = np.clip((np.arange(NUM_SCORE_BINS) - _CELLS_BEGIN) // _BINS_PER_CELL, 0, NUM_SCORE_CELLS - 1)

_Shape = tuple[type, tuple[int, ...]]

_REQUEST_ARRAYS: Mapping[str, _Shape] = {
    "statuses": (np.int64, (4,)),
    "latencies": (np.int64, (NUM_LATENCY_BINS,)),  # of answers, and of requests that ran out of time
    "scores": (np.int64, (NUM_SCORE_BINS,)),
    "scored": (np.int64, (1,)),  # requests with scores
    "degraded": (np.int64, (1,)),  # answers
    "missing": (np.int64, (2,)),  # values that were missing, and all values
    "missing_shares": (np.float64, (2,)),  # the sum over requests of the share that was missing, and those requests
    "ids": (np.int64, (2,)),  # ids that were unknown, and all ids
    # Of shadow pairs: how many, the sum of what was measured, and the sum of its squares.
    "rank_correlations": (np.float64, (3,)),
    "top_k_overlaps": (np.float64, (3,)),
    "score_differences": (np.float64, (3,)),
}

_EVENT_ARRAYS: Mapping[str, _Shape] = {
    "positives": (np.int64, (NUM_SCORE_BINS,)),  # impressions with label 1
    "negatives": (np.int64, (NUM_SCORE_BINS,)),
    "requests": (np.int64, (1,)),
    # Ordered pairs of impressions of one request, by the cells of their scores, those of label 1 after those of label
    # 0; each impression with itself included. So the sum of squares over requests of any sum over impressions follows.
    "pairs": (np.int64, (2 * NUM_SCORE_CELLS, 2 * NUM_SCORE_CELLS)),
    # Sums over requests: of the sum of its scores, of that squared, and of that times its number of positives.
    "score_sums": (np.float64, (3,)),
}


def request_arrays(num_features: int) -> Arrays:
    """Zeros for what is counted of requests, and of rows without a value for each feature."""
    return {
        **{name: np.zeros(shape, dtype) for name, (dtype, shape) in _REQUEST_ARRAYS.items()},
        "rows": np.zeros(1, np.int64),
        "missing_rows": np.zeros(num_features, np.int64),
    }


def event_arrays() -> Arrays:
    """Zeros for what is counted of one event's outcomes."""
    return {name: np.zeros(shape, dtype) for name, (dtype, shape) in _EVENT_ARRAYS.items()}
