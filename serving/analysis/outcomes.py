"""What came of the candidates that were shown: click rate, AUC and calibration, with the variances of their estimates.

The impressions of one request are not independent: one user sees them. So all variances are over requests: of an
estimate that is a sum over impressions of some influence, the variance is the sum over requests of the squared sum of
influences (Liang and Zeger 1986). For AUC the influences are those of DeLong, DeLong and Clarke-Pearson (1988), summed
by cluster as in Obuchowski (1997).
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.score_bins import NUM_SCORE_BINS, bin_scores, score_bins
from rankhouse.serving.analysis.layout import NUM_SCORE_CELLS, SCORE_CELLS, Arrays

Floats = npt.NDArray[np.float64]

# A variance over requests may come out below this share of what independent impressions would have; it is chance then.
_LEAST_SHARE_OF_INDEPENDENT = 0.25


class Estimate(NamedTuple):
    """A number read from observations.

    Attributes:
        value: The number.
        variance: The variance of its estimate.
    """

    value: float
    variance: float


class Outcomes:
    """What one event's arrays of a summary say. Immutable.

    Args:
        arrays: The event's arrays (layout.py).
    """

    def __init__(self, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
        self._arrays = arrays
        self.num_requests = int(arrays["requests"][0])
        self.num_positives = int(arrays["positives"].sum())
        self.num_negatives = int(arrays["negatives"].sum())
        self.num_impressions = self.num_positives + self.num_negatives

    @property
    def rate(self) -> Estimate:
        """The share of impressions with label 1: the click rate. Needs one of them."""
        rate = self.num_positives / self.num_impressions
        influences = np.repeat([-rate, 1 - rate], NUM_SCORE_CELLS) / self.num_impressions
        independent = rate * (1 - rate) / self.num_impressions
        return Estimate(rate, self._variance(influences, independent))

    @property
    def auc(self) -> Estimate:
        """The chance that a positive impression has a higher score than a negative one. Needs one of each.

        Scores of one bin count as equal, so it is within half the chance that a pair falls into one bin.
        """
        positives, negatives = self._arrays["positives"], self._arrays["negatives"]
        below = (np.cumsum(negatives) - negatives / 2) / self.num_negatives
        above = 1 - (np.cumsum(positives) - positives / 2) / self.num_positives
        auc = float(np.dot(positives, below)) / self.num_positives
        for_positives = (below - auc) / self.num_positives
        for_negatives = (above - auc) / self.num_negatives
        exact = float(np.dot(positives, for_positives**2) + np.dot(negatives, for_negatives**2))
        influences = np.concatenate([_by_cell(negatives, for_negatives), _by_cell(positives, for_positives)])
        return Estimate(auc, self._variance(influences, exact))

    @property
    def predicted_over_observed(self) -> Estimate:
        """The logarithm of the sum of scores over the number of positives: 0 where scores are calibrated.

        Needs a positive one.
        """
        total, squares, products = (float(value) for value in self._arrays["score_sums"])
        total = max(total, 1e-9)  # Scores may all be 0.
        ones = np.repeat([0.0, 1.0], NUM_SCORE_CELLS)
        positives_squared = float(ones @ self._arrays["pairs"] @ ones)
        num = self.num_positives
        variance = squares / total**2 - 2 * products / (total * num) + positives_squared / num**2
        return Estimate(float(np.log(total / num)), max(variance, _LEAST_SHARE_OF_INDEPENDENT / num))

    def calibration_curve(self, num_points: int = 10) -> list[tuple[float, float, int]]:
        """Mean score, share of positives and impressions of each of some groups of about equal size by score."""
        counts = self._arrays["positives"] + self._arrays["negatives"]
        before = np.cumsum(counts) - counts
        group = np.minimum(before * num_points // max(self.num_impressions, 1), num_points - 1)
        sizes, scores, positives = (
            np.bincount(group, weights=values, minlength=num_points)
            for values in (counts, counts * bin_scores(), self._arrays["positives"])
        )
        return [
            (float(score / size), float(positive / size), int(size))
            for size, score, positive in zip(sizes, scores, positives, strict=True)
            if size
        ]

    def _variance(self, influences: Floats, independent: float) -> float:
        """The variance of a sum over impressions.

        Args:
            influences: float64 [2 * NUM_SCORE_CELLS], the mean influence of an impression by cell, label 0 first.
            independent: The exact sum of squared influences, which is the variance if impressions are independent.
        """
        among = float(influences @ self._between @ influences)
        return max(independent + among, _LEAST_SHARE_OF_INDEPENDENT * independent)

    @cached_property
    def _between(self) -> Floats:
        """Ordered pairs of different impressions of one request, by cell."""
        positives, negatives = (
            np.bincount(SCORE_CELLS, weights=self._arrays[name], minlength=NUM_SCORE_CELLS)
            for name in ("positives", "negatives")
        )
        pairs: Floats = self._arrays["pairs"] - np.diag(np.concatenate([negatives, positives]))
        return pairs


def count_outcomes(
    arrays: Arrays, scores: npt.NDArray[Any], labels: npt.NDArray[np.bool_], sizes: Sequence[int]
) -> None:
    """Adds labelled impressions to an event's arrays.

    Args:
        arrays: The event's arrays (layout.py).
        scores: [n], request by request.
        labels: [n].
        sizes: The number of impressions of each request, n in all.
    """
    scores = scores.astype(np.float64)
    request = np.repeat(np.arange(len(sizes)), sizes)
    bins = score_bins(scores)
    arrays["positives"] += np.bincount(bins[labels], minlength=NUM_SCORE_BINS)
    arrays["negatives"] += np.bincount(bins[~labels], minlength=NUM_SCORE_BINS)
    arrays["requests"][0] += len(sizes)
    num_cells = 2 * NUM_SCORE_CELLS
    cells = SCORE_CELLS[bins] + NUM_SCORE_CELLS * labels
    counts = np.bincount(request * num_cells + cells, minlength=len(sizes) * num_cells)
    by_request = counts.reshape(-1, num_cells).astype(np.float64)
    arrays["pairs"] += (by_request.T @ by_request).astype(np.int64)
    sums = np.bincount(request, weights=scores, minlength=len(sizes))
    positives = by_request[:, NUM_SCORE_CELLS:].sum(axis=1)
    arrays["score_sums"] += (sums.sum(), np.dot(sums, sums), np.dot(sums, positives))


def _by_cell(counts: npt.NDArray[np.int64], influences: Floats) -> Floats:
    """The mean influence of the impressions in each cell; 0 where there are none."""
    sizes = np.bincount(SCORE_CELLS, weights=counts, minlength=NUM_SCORE_CELLS)
    sums = np.bincount(SCORE_CELLS, weights=counts * influences, minlength=NUM_SCORE_CELLS)
    means: Floats = sums / np.maximum(sizes, 1)
    return means
