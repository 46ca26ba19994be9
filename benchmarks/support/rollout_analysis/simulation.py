"""One step of a rollout, simulated: requests come, and after each some the candidate is judged."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from benchmarks.support.rollout_analysis.traffic import STABLE, Version, requests, shadow_pairs
from rankhouse.serving.analysis.findings import Arms, outcomes_of
from rankhouse.serving.analysis.judgement import judge, judge_metric
from rankhouse.serving.analysis.spec import AnalysisSpec, MetricSpec
from rankhouse.serving.analysis.summary import Summary

# Of five requests one is the candidate's; of ten of the stable version's one is scored by the candidate as well.
STABLE_FOR_EACH = 4
SHADOW_SHARE = 0.1

# A normal test at 5 %, one-sided, made for one look.
_ONE_LOOK = 1.645


@dataclass(frozen=True)
class Rollout:
    """How a simulated rollout ended.

    Attributes:
        outcome: "pass", "fail", or "running": it was undecided after the last look.
        num_requests: Requests of the candidate until then.
        failed: The metrics that had failed by then.
    """

    outcome: str
    num_requests: int
    failed: tuple[str, ...] = ()


@dataclass
class Alarms:
    """When each test gave a false alarm, in requests of the candidate; what is not here never did.

    Attributes:
        metrics: For each metric, judged alone at alpha.
        analysis: For all metrics together at alpha; None: never.
        naive: For a test of click rates that is made for one look; None: never.
    """

    metrics: dict[str, int] = field(default_factory=dict)
    analysis: int | None = None
    naive: int | None = None


def looks_until(last: int, *, first: int = 250) -> list[int]:
    """After how many requests of the candidate one looks: every `first`, from twenty times that on every 5 % more."""
    looks = [first]
    while looks[-1] < last:
        looks.append(min(last, looks[-1] + max(first, looks[-1] // 20)))
    return looks


def roll_out(spec: AnalysisSpec, version: Version, looks: Sequence[int], seed: int) -> Rollout:
    """Judges a version at each look until there is a verdict."""
    for num_requests, arms in _arms(version, looks, seed):
        verdict = judge(spec, arms.stable, arms.candidate, arms.shadow)
        if verdict.outcome in ("pass", "fail"):
            failed = tuple(metric.name for metric in verdict.metrics if metric.outcome == "fail")
            return Rollout(verdict.outcome, num_requests, failed)
    return Rollout("running", looks[-1])


def false_alarms(metrics: Sequence[MetricSpec], alpha: float, looks: Sequence[int], seed: int) -> Alarms:
    """Looks on at a candidate that is equal to the stable version, and notes whatever fails, to the last look."""
    alarms = Alarms()
    for num_requests, arms in _arms(STABLE, looks, seed):
        for metric in metrics:
            if metric.name not in alarms.metrics and _has_failed(metric, arms, alpha):
                alarms.metrics[metric.name] = num_requests
        if alarms.analysis is None and alarms.metrics:
            level = alpha / len(metrics)
            if any(_has_failed(metric, arms, level) for metric in metrics if metric.name in alarms.metrics):
                alarms.analysis = num_requests
        if alarms.naive is None and _naive_test(arms):
            alarms.naive = num_requests
    return alarms


def share_by(looks: Sequence[int], events: Sequence[int | None]) -> npt.NDArray[np.float64]:
    """The share of simulations in which something had happened by each look."""
    happened = np.array([np.inf if event is None else event for event in events])
    return np.array([(happened <= look).mean() for look in looks])


def _arms(version: Version, looks: Sequence[int], seed: int) -> Iterator[tuple[int, Arms]]:
    rng = np.random.default_rng(seed)
    stable, candidate, shadow = Summary(), Summary(), Summary()
    before = 0
    for look in looks:
        num = look - before
        stable.merge(requests(STABLE, STABLE_FOR_EACH * num, rng))
        candidate.merge(requests(version, num, rng))
        shadow.merge(shadow_pairs(version, round(SHADOW_SHARE * STABLE_FOR_EACH * num), rng))
        before = look
        yield look, Arms(stable, candidate, shadow)


def _has_failed(metric: MetricSpec, arms: Arms, level: float) -> bool:
    return judge_metric(metric, arms, level, level).outcome == "fail"


def _naive_test(arms: Arms) -> bool:
    stable, candidate = (outcomes_of(arm, "click") for arm in (arms.stable, arms.candidate))
    if stable is None or candidate is None or min(stable.num_positives, candidate.num_positives) < 50:
        return False
    difference = stable.rate.value - candidate.rate.value
    return bool(difference > _ONE_LOOK * np.sqrt(stable.rate.variance + candidate.rate.variance))
