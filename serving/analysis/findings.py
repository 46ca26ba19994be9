"""What two arms' summaries say of one metric: its values, and bounds of what its limit is for."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from rankhouse.serving.analysis.distribution_shift import (
    Sample,
    kolmogorov_smirnov,
    ks_interval,
    population_stability_index,
    psi_interval,
)
from rankhouse.serving.analysis.latency_bins import latency_quantile
from rankhouse.serving.analysis.layout import ANSWERED, FAILED, REFUSED
from rankhouse.serving.analysis.outcomes import Estimate, Outcomes
from rankhouse.serving.analysis.sequential_tests import (
    Interval,
    Levels,
    Share,
    compare_quantiles,
    compare_shares,
    difference,
    mean_radius,
    quantile_interval,
    ratio,
)
from rankhouse.serving.analysis.spec import MetricSpec
from rankhouse.serving.analysis.summary import Summary

# Bounds from a normal approximation are not read before there are so many impressions of either label.
MIN_EVENTS = 50
# And bounds of distributions not before so many requests.
MIN_SAMPLES = 100
# The size of a difference that matters, where the limit is 0.
_SCALE_WITHOUT_LIMIT = 0.05


@dataclass(frozen=True)
class Arms:
    """The summaries that are compared.

    Attributes:
        stable: Of the stable version, over the same time as the candidate's.
        candidate: Of the candidate.
        shadow: Of the candidate as a shadow of the stable version, if it was one.
    """

    stable: Summary
    candidate: Summary
    shadow: Summary | None = None

    @property
    def scorer(self) -> Summary:
        """The candidate's summary, or its shadow's as long as it has no requests of its own."""
        return self.candidate if self.candidate.num_requests or self.shadow is None else self.shadow

    @property
    def num_requests(self) -> int:
        """The requests that the candidate has answered, also as a shadow if it is nothing else."""
        return max(self.scorer.num_requests, int(self.scorer.arrays["scored"][0]))


@dataclass(frozen=True)
class Finding:
    """What is known of a metric.

    Attributes:
        stable: The stable version's value; None where there is none.
        candidate: The candidate's.
        compared: What is compared with the limit; None where that cannot be said yet.
        bounds: Bounds of it, for all times.
        n: Observations of the candidate.
        is_exact: Whether the bounds hold from the first observation on, and not for large samples only.
        missing: What it waits for; empty where the bounds may be read.
    """

    stable: float | None
    candidate: float | None
    compared: float | None
    bounds: Interval
    n: int
    is_exact: bool = False
    missing: str = ""


_Find = Callable[[Arms, MetricSpec, Levels], Finding]
_ANYTHING = Interval(-math.inf, math.inf)


def find(arms: Arms, metric: MetricSpec, levels: Levels) -> Finding:
    """Says what is known of a metric.

    Args:
        arms: The summaries.
        metric: The metric and its limit.
        levels: How sure the bounds are to be.
    """
    return _FINDERS[metric.name](arms, metric, levels)


def error_share(summary: Summary) -> Share:
    """The requests that failed, of those that were answered or failed."""
    statuses = summary.arrays["statuses"]
    return Share(float(statuses[FAILED]), int(statuses[ANSWERED] + statuses[FAILED]))


def refusal_share(summary: Summary) -> Share:
    """The requests that were refused, of all whose caller waited."""
    statuses = summary.arrays["statuses"]
    return Share(float(statuses[REFUSED]), int(statuses[ANSWERED] + statuses[REFUSED] + statuses[FAILED]))


def degraded_share(summary: Summary) -> Share:
    """The answers with default rows."""
    return Share(float(summary.arrays["degraded"][0]), int(summary.arrays["statuses"][ANSWERED]))


def missing_share(summary: Summary) -> Share:
    """The values that were missing: the mean over requests of each one's share."""
    total, num = summary.arrays["missing_shares"]
    return Share(float(total), int(num))


def unknown_share(summary: Summary) -> Share:
    """The ids that were unknown, with as many observations as requests: an id's neighbours are of one user."""
    unknown, num_ids = (int(value) for value in summary.arrays["ids"])
    num = min(summary.num_requests, num_ids)
    return Share(unknown / num_ids * num if num_ids else 0.0, num)


def score_sample(summary: Summary) -> Sample:
    """The scores that were answered."""
    return Sample(summary.arrays["scores"], float(summary.arrays["scored"][0]))


def outcomes_of(summary: Summary, event: str) -> Outcomes | None:
    """The outcomes of an event; None where there are none yet."""
    arrays = summary.events.get(event)
    return None if arrays is None else Outcomes(arrays)


def has_enough(outcomes: Outcomes | None) -> bool:
    """Whether the normal approximation may be used."""
    return outcomes is not None and min(outcomes.num_positives, outcomes.num_negatives) >= MIN_EVENTS


def around(estimate: Estimate, levels: Levels, *, scale: float) -> Interval:
    """Bounds of what an estimate estimates."""
    low, high = (mean_radius(max(estimate.variance, 1e-300), level, scale=scale) for level in levels)
    return Interval(estimate.value - low, estimate.value + high)


def calibration_errors(log_ratios: Interval) -> Interval:
    """Bounds of |predicted / observed - 1|, from those of its logarithm."""
    low, high = (math.expm1(min(bound, 500.0)) for bound in log_ratios)
    return Interval(0.0 if low <= 0 <= high else min(abs(low), abs(high)), max(abs(low), abs(high)))


def scale_of(metric: MetricSpec) -> float:
    """The size of a difference that matters."""
    return metric.limit or _SCALE_WITHOUT_LIMIT


def _share_finder(share_of: Callable[[Summary], Share], *, from_shadow: bool = False) -> _Find:
    def found(arms: Arms, metric: MetricSpec, levels: Levels) -> Finding:
        candidate = share_of(arms.scorer if from_shadow else arms.candidate)
        stable = share_of(arms.stable)
        c, s = candidate.mean, stable.mean
        missing = "" if candidate.num else "observations of the candidate"
        if metric.limit_kind == "max_value":
            return Finding(s, c, c, candidate.interval(levels), candidate.num, True, missing)
        if not stable.num:
            missing = "observations of the stable version"
        comparison = difference if metric.limit_kind == "max_increase" else ratio
        bounds = compare_shares(candidate, stable, levels, comparison)
        compared = None if c is None or s is None else float(comparison(np.array(c), np.array(s)))
        return Finding(s, c, compared, bounds, candidate.num, True, missing)

    return found


def _latency_finder(share: float) -> _Find:
    def found(arms: Arms, metric: MetricSpec, levels: Levels) -> Finding:
        candidate, stable = arms.candidate.arrays["latencies"], arms.stable.arrays["latencies"]
        c, s, n = latency_quantile(candidate, share), latency_quantile(stable, share), int(candidate.sum())
        missing = "" if n else "answers of the candidate"
        if metric.limit_kind == "max_value":
            return Finding(s, c, c, quantile_interval(candidate, share, levels), n, True, missing)
        if s is None:
            missing = "answers of the stable version"
        compared = None if c is None or s is None else c / s
        return Finding(s, c, compared, compare_quantiles(candidate, stable, share, levels), n, True, missing)

    return found


def _shift_finder(name: str) -> _Find:
    def found(arms: Arms, metric: MetricSpec, levels: Levels) -> Finding:
        stable, candidate = score_sample(arms.stable), score_sample(arms.scorer)
        n = int(candidate.num_independent)
        if min(n, stable.num_independent) < MIN_SAMPLES:
            return Finding(None, None, None, _ANYTHING, n, missing=f"{MIN_SAMPLES} requests with scores in both arms")
        if name == "score_ks":
            value = kolmogorov_smirnov(stable.counts, candidate.counts)
            return Finding(None, value, value, ks_interval(stable, candidate, levels), n)
        value = population_stability_index(stable.counts, candidate.counts)
        return Finding(None, value, value, psi_interval(stable, candidate, levels, scale=scale_of(metric)), n)

    return found


def _pair_finder(array: str, *, lowest: float) -> _Find:
    """Finds the mean of what shadow pairs have of [lowest, 1]; moved to [0, 1], a share bounds it exactly."""

    def found(arms: Arms, metric: MetricSpec, levels: Levels) -> Finding:
        num, total = (0.0, 0.0) if arms.shadow is None else arms.shadow.arrays[array][:2]
        width = 1 - lowest
        share = Share(min(max((float(total) - lowest * num) / width, 0.0), float(num)), int(num))
        low, high = share.interval(levels)
        mean = None if share.mean is None else lowest + width * share.mean
        missing = "" if num else "shadow pairs: has the rollout a shadow?"
        return Finding(None, mean, mean, Interval(lowest + width * low, lowest + width * high), int(num), True, missing)

    return found


def _outcome_finder(estimate_of: Callable[[Outcomes], Estimate]) -> _Find:
    """Finds a number of which more is better: by its logarithm, as what is lost is a share of it."""

    def found(arms: Arms, metric: MetricSpec, levels: Levels) -> Finding:
        candidate, stable = outcomes_of(arms.candidate, metric.event), outcomes_of(arms.stable, metric.event)
        n = 0 if candidate is None else candidate.num_impressions
        is_alone = metric.limit_kind == "min_value"
        if candidate is None or not has_enough(candidate) or not (is_alone or has_enough(stable)):
            return Finding(None, None, None, _ANYTHING, n, missing=_wanted(metric))
        c, s = estimate_of(candidate), estimate_of(stable) if stable is not None and has_enough(stable) else None
        own = _log(c)
        if is_alone or s is None:
            low, high = around(own, levels, scale=_SCALE_WITHOUT_LIMIT)
            bounds = Interval(math.exp(min(low, 500.0)), math.exp(min(high, 500.0)))
            return Finding(None if s is None else s.value, c.value, c.value, bounds, n)
        other = _log(s)
        loss = Estimate(other.value - own.value, own.variance + other.variance)
        low, high = around(loss, levels, scale=scale_of(metric))
        bounds = Interval(-math.expm1(min(-low, 500.0)), -math.expm1(-high))
        return Finding(s.value, c.value, 1 - c.value / s.value, bounds, n)

    return found


def _find_calibration(arms: Arms, metric: MetricSpec, levels: Levels) -> Finding:
    """Finds |predicted / observed - 1|; each bound stands on both sides of both arms, which share its level."""
    candidate, stable = outcomes_of(arms.candidate, metric.event), outcomes_of(arms.stable, metric.event)
    n = 0 if candidate is None else candidate.num_impressions
    is_alone = metric.limit_kind == "max_value"
    if candidate is None or not has_enough(candidate) or not (is_alone or has_enough(stable)):
        return Finding(None, None, None, _ANYTHING, n, missing=_wanted(metric))
    part, scale = 2 if is_alone else 4, scale_of(metric)
    own = candidate.predicted_over_observed
    c = abs(math.expm1(own.value))
    lows, highs = (calibration_errors(around(own, Levels(level / part, level / part), scale=scale)) for level in levels)
    if is_alone or stable is None:
        return Finding(None, c, c, Interval(lows.low, highs.high), n)
    other = stable.predicted_over_observed
    s = abs(math.expm1(other.value))
    stable_lows, stable_highs = (
        calibration_errors(around(other, Levels(level / part, level / part), scale=scale)) for level in levels
    )
    return Finding(s, c, c - s, Interval(lows.low - stable_lows.high, highs.high - stable_highs.low), n)


def _log(estimate: Estimate) -> Estimate:
    value = max(estimate.value, 1e-9)  # An AUC may be 0.
    return Estimate(math.log(value), estimate.variance / value**2)


def _wanted(metric: MetricSpec) -> str:
    return f"feedback: {MIN_EVENTS} impressions with {metric.event!r} and {MIN_EVENTS} without in each arm"


_FINDERS: Mapping[str, _Find] = {
    "error_rate": _share_finder(error_share, from_shadow=True),
    "refusal_rate": _share_finder(refusal_share),
    "degraded": _share_finder(degraded_share),
    "missing_features": _share_finder(missing_share),
    "unknown_ids": _share_finder(unknown_share),
    "latency_p50": _latency_finder(0.5),
    "latency_p99": _latency_finder(0.99),
    "score_psi": _shift_finder("score_psi"),
    "score_ks": _shift_finder("score_ks"),
    "rank_correlation": _pair_finder("rank_correlations", lowest=-1.0),
    "top_k_overlap": _pair_finder("top_k_overlaps", lowest=0.0),
    "ctr": _outcome_finder(lambda outcomes: outcomes.rate),
    "auc": _outcome_finder(lambda outcomes: outcomes.auc),
    "calibration": _find_calibration,
}
