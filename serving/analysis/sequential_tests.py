"""Bounds that hold at all times at once, so that one may look at them after every request and stop when one likes.

A fixed-sample interval of 95 % looked at again and again is wrong at some time in far more than 5 % of all cases. What
this module gives are confidence sequences: the chance that a bound is *ever* wrong is at most alpha.

Three constructions, by what is bounded:

- **Shares, exact at any count** (errors, degraded answers; and the mean of anything in [0, 1]). The likelihood ratio
  of a mixture over the true share is a non-negative martingale with mean 1, which exceeds 1 / alpha with a chance of at
  most alpha (Ville 1939; Robbins 1970, "Statistical methods related to the law of the iterated logarithm"). With a beta
  distribution as the mixture it has a closed form (Howard, Ramdas, McAuliffe and Sekhon 2021, "Time-uniform,
  nonparametric, nonasymptotic confidence sequences"). It also bounds means of values in [0, 1] that are not 0 or 1,
  as the ratio is convex in the value. For two arms the product of their martingales is one too, so the pairs of
  shares that it does not refute are a confidence set, and its extremes bound any comparison of the two.
- **Quantiles, exact** (latency). The share of observations below the true quantile is known, so the same martingale
  refutes what cannot be the quantile (Howard and Ramdas 2022, "Sequential estimation of quantiles with applications to
  A/B testing and best-arm identification"). Distribution functions as a whole: their time-uniform form of the
  Dvoretzky-Kiefer-Wolfowitz inequality.
- **Means and what is asymptotically linear** (click rates with clustered impressions, AUC): the normal mixture of
  Robbins (1970), which is the mSPRT of Johari, Koomen, Pekelis and Walsh (2017, "Peeking at A/B tests"), with an
  estimated variance: an asymptotic confidence sequence (Waudby-Smith, Arbour, Sinha, Kennedy and Ramdas 2024,
  "Time-uniform central limit theory and asymptotic confidence sequences", Theorem 2.2 and its one-sided form). Time is
  information, 1 / variance, in which estimates move like a Brownian motion, also the difference of two arms
  (Jennison and Turnbull 1997). It wants some dozens of events before the first look.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rankhouse.serving.analysis.latency_bins import LATENCY_EDGES, NUM_LATENCY_BINS

Floats = npt.NDArray[np.float64]

# Jeffreys' prior: next to no opinion, and fair to shares near 0 and 1.
_PRIOR = (0.5, 0.5)
# Logarithms are taken of these at the ends, so that nothing is infinite; it errs towards wider bounds.
_LEAST_MEAN, _MOST_MEAN = 1e-300, 1 - 2.0**-53
_NUM_BISECTIONS = 34
_NUM_GRID_POINTS = 65


class Levels(NamedTuple):
    """How sure bounds are to be.

    Attributes:
        low: The chance that the lower bound is ever wrong.
        high: The chance that the upper bound is.
    """

    low: float
    high: float


class Interval(NamedTuple):
    """Two bounds.

    Attributes:
        low: The lower one.
        high: The upper one.
    """

    low: float
    high: float


@dataclass(frozen=True)
class Share:
    """A sum of values in [0, 1] over independent observations: of 0 and 1 in the simplest case.

    Attributes:
        total: The sum.
        num: How many observations.
    """

    total: float
    num: int

    @property
    def mean(self) -> float | None:
        """The mean; None without observations."""
        return self.total / self.num if self.num else None

    def evidence_against(self, means: Floats) -> Floats:
        """The logarithm of the martingale of each mean [n] that the observations might have.

        Of the true one it is below log(1 / alpha) at all times, but for a chance of alpha.
        """
        rest = self.num - self.total
        for_ones = self.total * np.log(np.maximum(means, _LEAST_MEAN))
        for_zeros = rest * np.log1p(-np.minimum(means, _MOST_MEAN))
        evidence: Floats = self._mixture - for_ones - for_zeros
        return evidence

    @cached_property
    def _mixture(self) -> float:
        """The logarithm of the mixture's likelihood."""
        a, b = _PRIOR
        own = math.lgamma(self.total + a) + math.lgamma(self.num - self.total + b) - math.lgamma(self.num + a + b)
        return own - math.lgamma(a) - math.lgamma(b) + math.lgamma(a + b)

    def lowest(self, evidence: Floats) -> Floats:
        """The smallest mean against which there is no more than this evidence, for each value [n]."""
        return self._root(evidence, 0.0)

    def highest(self, evidence: Floats) -> Floats:
        """The largest mean against which there is no more than this evidence, for each value [n]."""
        return self._root(evidence, 1.0)

    @property
    def least_evidence(self) -> float:
        """The evidence against the mean that fits best."""
        return float(self.evidence_against(np.array([self._best]))[0])

    def interval(self, levels: Levels) -> Interval:
        """Bounds the mean that the observations have."""
        low, high = (np.array([math.log(1 / level)]) for level in levels)
        return Interval(float(self.lowest(low)[0]), float(self.highest(high)[0]))

    @property
    def _best(self) -> float:
        return self.total / self.num if self.num else 0.5

    def _root(self, evidence: Floats, outer: float) -> Floats:
        """Goes from the mean that fits best towards `outer`, to the last one that is allowed; errs outwards."""
        allowed, refused = np.full_like(evidence, self._best), np.full_like(evidence, outer)
        is_all = self.evidence_against(refused) <= evidence
        for _ in range(_NUM_BISECTIONS):
            middle = (allowed + refused) / 2
            is_allowed = self.evidence_against(middle) <= evidence
            allowed, refused = np.where(is_allowed, middle, allowed), np.where(is_allowed, refused, middle)
        return np.where(is_all, outer, refused)


# Compares the candidate's value with the stable version's; rising in the first and falling in the second.
Comparison = Callable[[Floats, Floats], Floats]


def difference(candidate: Floats, stable: Floats) -> Floats:
    """How much more the candidate has."""
    return candidate - stable


def ratio(candidate: Floats, stable: Floats) -> Floats:
    """How many times as much the candidate has; infinite where the stable version has none and the candidate some."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((candidate == 0) & (stable == 0), 1.0, candidate / stable)


def compare_shares(candidate: Share, stable: Share, levels: Levels, comparison: Comparison) -> Interval:
    """Bounds a comparison of two arms' means.

    Args:
        candidate: The candidate's observations.
        stable: The stable version's; independent of them, of any number at any time.
        levels: How sure the bounds are to be.
        comparison: `difference` or `ratio`.
    """
    means, left = _means_and_rest(candidate, stable, levels.low)
    low = float(np.min(comparison(candidate.lowest(left), means)))
    means, left = _means_and_rest(candidate, stable, levels.high)
    return Interval(low, float(np.max(comparison(candidate.highest(left), means))))


def _means_and_rest(candidate: Share, stable: Share, level: float) -> tuple[Floats, Floats]:
    """Means that the stable version may have, and the evidence that is left for the candidate with each of them."""
    budget, least = math.log(1 / level), candidate.least_evidence
    for_stable = np.array([budget - least])
    first, last = stable.lowest(for_stable)[0], stable.highest(for_stable)[0]
    means = first + (last - first) * np.linspace(0, 1, _NUM_GRID_POINTS) ** 2
    return means, np.maximum(budget - stable.evidence_against(means), least)


def quantile_interval(counts: npt.NDArray[np.int64], share: float, levels: Levels) -> Interval:
    """Bounds a quantile of latencies, in seconds.

    Args:
        counts: int64 [NUM_LATENCY_BINS], the histogram.
        share: Of (0, 1), as 0.99.
        levels: How sure the bounds are to be.
    """
    evidence = _evidence_against_bins(counts, share)
    lows, highs = (np.flatnonzero(evidence <= math.log(1 / level)) for level in levels)
    return Interval(float(_LOWER_EDGES[lows[0]]), float(_UPPER_EDGES[highs[-1]]))


def compare_quantiles(
    candidate: npt.NDArray[np.int64], stable: npt.NDArray[np.int64], share: float, levels: Levels
) -> Interval:
    """Bounds the ratio of a quantile of the candidate's latencies to the stable version's.

    Args:
        candidate: int64 [NUM_LATENCY_BINS], the candidate's histogram.
        stable: int64 [NUM_LATENCY_BINS], the stable version's.
        share: Of (0, 1), as 0.99.
        levels: How sure the bounds are to be.
    """
    against_candidate = _evidence_against_bins(candidate, share)
    against_stable = _evidence_against_bins(stable, share)

    def allowed(level: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Pairs of bins, as rows [n] of the candidate's and columns [n] of the stable version's."""
        budget = math.log(1 / level)
        rows = np.flatnonzero(against_candidate <= budget - against_stable.min())
        columns = np.flatnonzero(against_stable <= budget - against_candidate.min())
        places = np.nonzero(against_candidate[rows][:, None] + against_stable[columns][None, :] <= budget)
        return rows[places[0]], columns[places[1]]

    with np.errstate(divide="ignore"):
        rows, columns = allowed(levels.low)
        low = (_LOWER_EDGES[rows] / _UPPER_EDGES[columns]).min()
        rows, columns = allowed(levels.high)
        return Interval(float(low), float((_UPPER_EDGES[rows] / _LOWER_EDGES[columns]).max()))


_LOWER_EDGES = np.concatenate([[0.0], LATENCY_EDGES])
_UPPER_EDGES = np.concatenate([LATENCY_EDGES, [math.inf]])


def _evidence_against_bins(counts: npt.NDArray[np.int64], share: float) -> Floats:
    """The least logarithm of the martingale against a quantile in each bin: float64 [NUM_LATENCY_BINS]."""
    up_to = np.cumsum(counts).astype(np.float64)
    num = up_to[-1]
    # Where in its bin the quantile lies is not known, so the number of observations below it is the one that fits best.
    below = np.clip(num * share, np.concatenate([[0.0], up_to[:-1]]), up_to)
    # A mixture about as wide as the smaller of the two shares, around the true one.
    strength = 1 / min(share, 1 - share)
    prior = np.array(share * strength), np.array((1 - share) * strength)
    mixture = _log_beta(below + prior[0], num - below + prior[1]) - _log_beta(*prior)
    evidence: Floats = mixture - below * math.log(share) - (num - below) * math.log1p(-share)
    assert len(evidence) == NUM_LATENCY_BINS
    return evidence


def mean_radius(variance: float, alpha: float, *, scale: float) -> float:
    """How far an estimate is from what it estimates, at most, on one side.

    Args:
        variance: The estimate's own variance at this time, as estimated.
        alpha: The chance that it is ever farther, on this side.
        scale: The size of a difference that matters: the bound is tightest when it is about that wide.
    """
    information, prior = 1 / variance, 1 / scale**2
    growth = math.sqrt((information + prior) / prior)
    return math.sqrt(2 * (information + prior) * math.log1p(growth / (2 * alpha))) / information


def vector_radius(information: float, num_dims: int, alpha: float, *, scale: float) -> float:
    """How far an estimate of several numbers is from them, at most, as the Euclidean distance.

    Args:
        information: 1 / the variance of each number's estimate, which are independent of each other.
        num_dims: How many numbers.
        alpha: The chance that it is ever farther.
        scale: The distance that matters.
    """
    prior = num_dims / scale**2
    exponent = num_dims * math.log((information + prior) / prior) + 2 * math.log(1 / alpha)
    return math.sqrt((information + prior) * exponent) / information


def distribution_radius(num: int, alpha: float) -> float:
    """How far an empirical distribution function is from the true one, at most, anywhere.

    By Howard and Ramdas 2022, their time-uniform form of the Dvoretzky-Kiefer-Wolfowitz inequality.

    Args:
        num: Independent observations.
        alpha: The chance that it is ever farther.
    """
    if not num:
        return 1.0
    return min(1.0, 0.85 * math.sqrt((math.log(1 + math.log(num)) + 0.8 * math.log(1612 / alpha)) / num))


def _log_beta(a: Floats, b: Floats) -> Floats:
    return _log_gamma(a) + _log_gamma(b) - _log_gamma(a + b)


def _log_gamma(x: Floats) -> Floats:
    """The logarithm of the gamma function of x above 0, to 1e-10: Stirling's series at x + 8, and back."""
    product = np.ones_like(x, dtype=np.float64)
    for step in range(8):
        product = product * (x + step)
    y = x + 8.0
    series = 1 / (12 * y) - 1 / (360 * y**3) + 1 / (1260 * y**5) - 1 / (1680 * y**7)
    shifted: Floats = (y - 0.5) * np.log(y) - y + 0.5 * math.log(2 * math.pi) + series
    back: Floats = np.log(product)
    return shifted - back
