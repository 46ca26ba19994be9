"""Is live traffic still what the model was trained for? Monitors of a version's answers, with a memory.

A monitor is a metric with a limit, as in an analysis; what the trainer saw of held-out rows takes the place of the
stable version. It begins to fire when the window's bounds lie beyond the limit wholly and stops when they lie within it
wholly: between, where chance alone could move it, it stays as it is. While one fires, an action is due, but not more
often than once in the cool-down: a retraining takes its time.

All of this is pure; who sends the action, to a webhook or to a command, is in `serving/admin`.
"""

from collections.abc import Mapping

import msgspec
import numpy as np

from rankhouse.embedding_cache.format.score_bins import bin_scores
from rankhouse.embedding_cache.format.statistics import TrainingStatistics
from rankhouse.serving.analysis.errors import AnalysisSpecError
from rankhouse.serving.analysis.findings import Arms, score_sample
from rankhouse.serving.analysis.judgement import judge_metric
from rankhouse.serving.analysis.layout import NUM_SCORE_CELLS, SCORE_CELLS, Arrays, event_arrays, request_arrays
from rankhouse.serving.analysis.sequential_tests import Levels, Share, compare_shares, difference
from rankhouse.serving.analysis.spec import METRICS, MetricSpec, MetricVerdict, check_name
from rankhouse.serving.analysis.summary import Summary

# What the training statistics hold; other metrics need a limit of their own, `max_value`.
COMPARED = ("score_psi", "score_ks", "missing_features", "unknown_ids", "ctr", "auc", "calibration")
# And what can be said of one version alone.
WATCHED = tuple(name for name in METRICS if name not in ("rank_correlation", "top_k_overlap"))


class DriftSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is watched, and when something is done about it.

    Attributes:
        monitors: The metrics with their limits; of `missing_features`, each feature by itself is watched as well.
        window_seconds: Over how long a time live traffic is compared.
        min_requests: Fewer requests in the window say nothing.
        alpha: The chance that a window makes a monitor fire that is within its limit, over all monitors.
        cool_down_seconds: The least time from one action to the next.

    Raises:
        AnalysisSpecError: A metric cannot be watched, or a number is out of range.
    """

    monitors: tuple[MetricSpec, ...] = ()
    window_seconds: float = 3600.0
    min_requests: int = 1000
    alpha: float = 0.001
    cool_down_seconds: float = 86_400.0

    def __post_init__(self) -> None:
        for metric in self.monitors:
            check_name(metric.name, WATCHED, what="monitor")
            if metric.name not in COMPARED and metric.limit_kind != "max_value":
                raise AnalysisSpecError(
                    f"the monitor {metric.name} has {metric.limit_kind}, but versions hold no such statistic; give "
                    f"max_value, or watch one of {', '.join(COMPARED)}"
                )
            if [key_of(other) for other in self.monitors].count(key_of(metric)) > 1:
                raise AnalysisSpecError(f"the monitor {metric.name} stands twice; each has one limit")
        if not 0 < self.alpha <= 0.5 or self.min_requests < 1:
            raise AnalysisSpecError(
                f"alpha is {self.alpha:g}, min_requests {self.min_requests}; expected more than 0 and at most 0.5, and "
                "1 or more"
            )
        if not (self.window_seconds > 0 and self.cool_down_seconds >= 0):
            raise AnalysisSpecError(
                f"window_seconds is {self.window_seconds:g}, cool_down_seconds {self.cool_down_seconds:g}; expected "
                "more than 0, and 0 or more"
            )


class DriftState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the monitors remember.

    Attributes:
        version: The version that was watched.
        firing: The monitors that fire, and since when, in unix seconds.
        acted_at: When the last action was due; None: never.
    """

    version: str = ""
    firing: dict[str, float] = {}
    acted_at: float | None = None


class DriftAction(msgspec.Struct, frozen=True):
    """That something is to be done: train again.

    Attributes:
        version: The version whose traffic has drifted.
        at: Unix seconds.
        monitors: What the firing monitors found.
        reason: A sentence.
    """

    version: str
    at: float
    monitors: tuple[MetricVerdict, ...]
    reason: str


class DriftDecision(msgspec.Struct, frozen=True):
    """What came of a look.

    Attributes:
        state: What the monitors remember now.
        readings: What each monitor has found; `fail` is beyond the limit.
        action: What is to be done; None: nothing now.
    """

    state: DriftState
    readings: tuple[MetricVerdict, ...]
    action: DriftAction | None = None


def watch(
    spec: DriftSpec,
    state: DriftState,
    baseline: TrainingStatistics | None,
    window: Summary,
    *,
    version: str,
    now: float,
) -> DriftDecision:
    """Looks at a window of live traffic.

    Args:
        spec: What is watched.
        state: What the last look left.
        baseline: What the trainer saw; None: the version has no statistics, and only absolute limits are watched.
        window: What the version answered in the last `window_seconds`.
        version: The version's name; another than before has nothing that fires yet.
        now: Unix seconds.
    """
    firing = dict(state.firing) if state.version == version else {}
    readings = tuple(_reading(metric, spec, baseline, window) for metric in spec.monitors)
    keys = [key_of(metric) for metric in spec.monitors]
    for key, reading in zip(keys, readings, strict=True):
        if reading.outcome == "fail":
            firing.setdefault(key, now)
        elif reading.outcome == "pass":
            firing.pop(key, None)
    firing = {key: since for key, since in firing.items() if key in keys}
    is_due = firing and (state.acted_at is None or now >= state.acted_at + spec.cool_down_seconds)
    if not is_due:
        return DriftDecision(DriftState(version, firing, state.acted_at), readings)
    found = tuple(reading for key, reading in zip(keys, readings, strict=True) if key in firing)
    reason = f"live traffic has drifted from what {version} was trained for: {'; '.join(one.reason for one in found)}"
    return DriftDecision(DriftState(version, firing, now), readings, DriftAction(version, now, found, reason))


def key_of(metric: MetricSpec) -> str:
    """A monitor's name: the metric's, and for another event than clicks the event's."""
    return metric.name if metric.event == "click" else f"{metric.name}/{metric.event}"


def _reading(
    metric: MetricSpec, spec: DriftSpec, baseline: TrainingStatistics | None, window: Summary
) -> MetricVerdict:
    level = spec.alpha / len(spec.monitors)
    is_compared = metric.limit_kind not in ("max_value", "min_value") or metric.name.startswith("score_")
    if baseline is None and is_compared:
        reason = f"{metric.name} waits for a version with training statistics: export one"
        return _unknown(metric, window.num_requests, reason)
    if window.num_requests < spec.min_requests:
        reason = f"{metric.name} waits for {spec.min_requests} requests in the window; it has {window.num_requests}"
        return _unknown(metric, window.num_requests, reason)
    stable = Summary() if baseline is None else _as_summary(baseline, metric.event)
    arms = Arms(stable, window)
    reading = judge_metric(metric, arms, level / 2, level / 2)
    if metric.name == "missing_features" and baseline is not None and reading.outcome != "fail":
        worst = _worst_feature(metric, baseline, window, level / 2)
        return worst or reading
    return reading


def _unknown(metric: MetricSpec, num_requests: int, reason: str) -> MetricVerdict:
    return MetricVerdict(
        name=metric.name,
        stable=None,
        candidate=None,
        difference=None,
        low=None,
        high=None,
        limit=metric.limit,
        outcome="running",
        n=num_requests,
        reason=reason,
        limit_kind=metric.limit_kind,
    )


def _worst_feature(
    metric: MetricSpec, baseline: TrainingStatistics, window: Summary, level: float
) -> MetricVerdict | None:
    """The feature that is missing most, if one is beyond the limit by itself; a request's rows count as one."""
    num_rows = int(window.arrays["rows"][0])
    if not window.features or not num_rows or metric.limit_kind != "max_increase":
        return None
    rates: Mapping[str, float] = dict(
        zip(window.features, (window.arrays["missing_rows"] / num_rows).tolist(), strict=True)
    )
    increases = {name: rate - baseline.missing_rates.get(name, 0.0) for name, rate in rates.items()}
    name = max(increases, key=lambda feature: increases[feature])
    num = int(score_sample(window).num_independent)
    stable = baseline.missing_rates.get(name, 0.0)
    levels = Levels(level / len(window.features), level)
    found = compare_shares(
        Share(rates[name] * num, num), Share(stable * baseline.num_rows, baseline.num_rows), levels, difference
    )
    if found.low <= metric.limit:
        return None
    return MetricVerdict(
        name=metric.name,
        stable=stable,
        candidate=rates[name],
        difference=increases[name],
        low=found.low,
        high=found.high,
        limit=metric.limit,
        outcome="fail",
        n=num,
        reason=f"the feature {name} is missing in {rates[name]:.1%} of rows, in training in {stable:.1%}",
        limit_kind=metric.limit_kind,
    )


def _as_summary(baseline: TrainingStatistics, event: str) -> Summary:
    """The training statistics as a summary: each row a request of its own."""
    num = baseline.num_rows
    arrays = request_arrays(0)
    arrays["statuses"][0] = num
    arrays["scores"] += baseline.positives + baseline.negatives
    arrays["scored"][0] = num
    arrays["missing_shares"] += (baseline.missing_rate * num, num)
    arrays["ids"] += (round(baseline.unknown_rate * num), num)
    return Summary.of((), arrays, {event: _as_outcomes(baseline)})


def _as_outcomes(baseline: TrainingStatistics) -> Arrays:
    outcomes = event_arrays()
    outcomes["positives"] += baseline.positives
    outcomes["negatives"] += baseline.negatives
    outcomes["requests"][0] = baseline.num_rows
    cells = [
        np.bincount(SCORE_CELLS, weights=counts, minlength=NUM_SCORE_CELLS)
        for counts in (baseline.negatives, baseline.positives)
    ]
    outcomes["pairs"] += np.diag(np.concatenate(cells)).astype(np.int64)
    # Squares and products only say how sure the sum is, so the middle of each bin is good enough for them.
    middles, counts = bin_scores(), baseline.positives + baseline.negatives
    squares, products = np.dot(counts, middles**2), np.dot(baseline.positives, middles)
    outcomes["score_sums"] += (baseline.score_sum, squares, products)
    return outcomes
