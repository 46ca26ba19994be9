"""The bins into which scores are counted, in training and in serving alike.

Scores are probabilities, and of a click mostly small ones: between 0.1 % and 10 % lies all that matters, in a tenth of
[0, 1]. So the bins are of equal width in log-odds, log(s / (1 - s)): from -14 (a score of 8e-7) to 14, each 1/16 wide,
which is about 6 % of a small score; the first and the last take what lies beyond. A distribution is then a few hundred
counts that add up over processes and time.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

FIRST_LOG_ODDS = -14.0
BINS_PER_UNIT = 16
NUM_SCORE_BINS = 2 + 28 * BINS_PER_UNIT


def score_bins(scores: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """The bin of each score.

    Args:
        scores: [n], finite; what is outside [0, 1] counts as 0 or 1.

    Returns:
        int64 [n], from 0 to NUM_SCORE_BINS - 1.
    """
    exact = np.clip(scores.astype(np.float64), 0.0, 1.0)
    with np.errstate(divide="ignore"):
        log_odds = np.log(exact) - np.log1p(-exact)
    # Clipped before it is rounded: the log-odds of 0 and 1 are infinite.
    places: npt.NDArray[Any] = np.clip((log_odds - FIRST_LOG_ODDS) * BINS_PER_UNIT + 1, 0, NUM_SCORE_BINS - 1)
    return places.astype(np.int64)


def bin_edges() -> npt.NDArray[np.float64]:
    """The scores between the bins: float64 [NUM_SCORE_BINS - 1], rising; a score at an edge is in the bin above."""
    return _score_at(np.arange(NUM_SCORE_BINS - 1))


def bin_scores() -> npt.NDArray[np.float64]:
    """A score for each bin, its middle in log-odds: float64 [NUM_SCORE_BINS]."""
    return _score_at(np.arange(NUM_SCORE_BINS) - 0.5)


def _score_at(places: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    scores: npt.NDArray[np.float64] = 1 / (1 + np.exp(-FIRST_LOG_ODDS - places / BINS_PER_UNIT))
    return scores
