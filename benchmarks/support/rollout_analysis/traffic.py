"""Traffic of a ranking service, simulated: users who click more or less, and versions whose faults are known.

Log-odds of a click are those of the user plus those of the candidate, and part of what a user does no model knows: so
the impressions of one request are dependent, as they are in truth.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.score_bins import NUM_SCORE_BINS, score_bins
from rankhouse.serving.analysis.latency_bins import NUM_LATENCY_BINS, latency_bins
from rankhouse.serving.analysis.layout import ANSWERED, FAILED, Arrays, event_arrays, request_arrays
from rankhouse.serving.analysis.outcomes import count_outcomes
from rankhouse.serving.analysis.summary import Summary

Floats = npt.NDArray[np.float64]

NUM_SHOWN = 8
TOP_K = 3
_MEAN, _USER, _HIDDEN, _CANDIDATE = -3.3, 0.6, 0.4, 0.8  # of log-odds
_NUM_VALUES = 39 * NUM_SHOWN


@dataclass(frozen=True)
class Version:
    """What a version does.

    Attributes:
        error_rate: The share of requests that fail.
        slowness: All latencies are so many times as long.
        slow_share: The share of requests that take ten times as long as others.
        clicks: A click is so many times as likely.
        odds: The odds of scores are so many times the true ones.
        noise: The standard deviation of what is added to the log-odds of scores, candidate by candidate.
        missing_rate: The share of feature values that are missing.
    """

    error_rate: float = 0.001
    slowness: float = 1.0
    slow_share: float = 0.005
    clicks: float = 1.0
    odds: float = 1.0
    noise: float = 0.0
    missing_rate: float = 0.03


STABLE = Version()


def requests(version: Version, num_requests: int, rng: np.random.Generator) -> Summary:
    """The summary of some requests and of what came of them."""
    arrays = request_arrays(0)
    num_failed = rng.binomial(num_requests, version.error_rate)
    num = num_requests - num_failed
    arrays["statuses"][[ANSWERED, FAILED]] = num, num_failed
    seconds = 0.004 * version.slowness * np.exp(0.4 * rng.standard_normal(num))
    seconds[rng.random(num) < version.slow_share] *= 10
    arrays["latencies"] += np.bincount(latency_bins(seconds), minlength=NUM_LATENCY_BINS)
    missing = rng.binomial(_NUM_VALUES, rng.beta(3, 3 / version.missing_rate - 3, num))
    arrays["missing"] += (missing.sum(), num * _NUM_VALUES)
    arrays["missing_shares"] += (missing.sum() / _NUM_VALUES, num)
    arrays["ids"] += (rng.binomial(num * 26 * NUM_SHOWN, 0.01), num * 26 * NUM_SHOWN)
    known, scores = _scores(version, num, rng)
    hidden = _HIDDEN * rng.standard_normal((num, 1))
    labels = rng.random(known.shape) < version.clicks * _probabilities(known + hidden)
    arrays["scores"] += np.bincount(score_bins(scores.ravel()), minlength=NUM_SCORE_BINS)
    arrays["scored"][0] = num
    outcomes = event_arrays()
    count_outcomes(outcomes, scores.ravel(), labels.ravel(), [NUM_SHOWN] * num)
    return Summary.of((), arrays, {"click": outcomes})


def shadow_pairs(version: Version, num_requests: int, rng: np.random.Generator) -> Summary:
    """The summary of requests of the stable version that a candidate scored as well."""
    arrays = request_arrays(0)
    known, candidate = _scores(version, num_requests, rng)
    stable = _probabilities(known)
    arrays["scores"] += np.bincount(score_bins(candidate.ravel()), minlength=NUM_SCORE_BINS)
    arrays["scored"][0] = num_requests
    orders = [np.argsort(-scores, axis=1) for scores in (stable, candidate)]
    ranks = [np.argsort(order, axis=1) for order in orders]
    squares = ((ranks[0] - ranks[1]) ** 2).sum(axis=1)
    _add(arrays, "rank_correlations", 1 - 6 * squares / (NUM_SHOWN * (NUM_SHOWN**2 - 1)))
    both = (ranks[0] < TOP_K) & (ranks[1] < TOP_K)
    _add(arrays, "top_k_overlaps", both.sum(axis=1) / TOP_K)
    _add(arrays, "score_differences", np.abs(stable - candidate).mean(axis=1))
    return Summary.of((), arrays, {})


def _scores(version: Version, num: int, rng: np.random.Generator) -> tuple[Floats, Floats]:
    """What is known of the candidates of requests, as log-odds, and their scores, both [num, NUM_SHOWN]."""
    user = _MEAN + _USER * rng.standard_normal((num, 1))
    known = user + _CANDIDATE * rng.standard_normal((num, NUM_SHOWN))
    # Retrained on the same days a version scores a little otherwise, also if it is as good.
    noise = np.hypot(version.noise, 0.03) * rng.standard_normal(known.shape)
    return known, _probabilities(known + noise + np.log(version.odds))


def _probabilities(log_odds: Floats) -> Floats:
    probabilities: Floats = 1 / (1 + np.exp(-log_odds))
    return probabilities


def _add(arrays: Arrays, name: str, values: Floats) -> None:
    arrays[name] += (len(values), values.sum(), (values**2).sum())
