"""Is a candidate as good as the stable version? From summaries to a verdict.

Each metric has a limit, and bounds of the quantity that the limit is for, which hold at all times together
(sequential_tests.py). The metric fails when the bounds lie beyond the limit wholly, and passes when they lie within it
wholly; before, it needs more observations. So a verdict says on which side of its limit the truth is.

- A candidate fails when one metric does. Each has its share of alpha, so the chance that a candidate fails that is
  within all limits is at most alpha, over all metrics and looks (Bonferroni).
- A candidate passes when all metrics do. One that is beyond some limit must pass there by mistake, of which the chance
  is at most alpha without any sharing (intersection-union test: Berger 1982).
"""

import math

from rankhouse.serving.analysis.findings import Arms, Finding, find
from rankhouse.serving.analysis.sequential_tests import Levels
from rankhouse.serving.analysis.spec import AnalysisSpec, MetricSpec, MetricVerdict, Outcome, Verdict
from rankhouse.serving.analysis.summary import Summary


def judge(
    spec: AnalysisSpec,
    stable: Summary,
    candidate: Summary,
    shadow: Summary | None = None,
    *,
    elapsed_seconds: float = 0.0,
    num_analyses: int = 1,
) -> Verdict:
    """Judges a candidate by what was observed in one step of a rollout, at any time and as often as one likes.

    Within a step the shares of traffic are constant, so both arms see the same hours; over several steps the time of
    day would be taken for the candidate's merit.

    Args:
        spec: What is asked.
        stable: What the stable version did in the step.
        candidate: What the candidate did in the same time.
        shadow: What the candidate did as a shadow in the same time; None: it was none.
        elapsed_seconds: How long the step has gone on.
        num_analyses: How many steps of the rollout are judged; they share alpha.
    """
    arms = Arms(stable, candidate, shadow)
    pass_level = spec.alpha / num_analyses
    num_deciding = sum(not metric.dry_run for metric in spec.metrics)
    fail_level = pass_level / max(num_deciding, 1)
    num_requests = arms.num_requests
    is_early = num_requests < spec.min_requests
    is_over = elapsed_seconds >= spec.max_seconds
    metrics = tuple(
        judge_metric(metric, arms, fail_level, pass_level, is_early=is_early, is_over=is_over)
        for metric in spec.metrics
    )
    outcomes = [metric.outcome for metric in metrics if not metric.dry_run]
    if "fail" in outcomes:
        failed = [metric for metric in metrics if metric.outcome == "fail" and not metric.dry_run]
        return Verdict("fail", metrics, "; ".join(metric.reason for metric in failed))
    if is_early:
        reason = f"the candidate has answered {num_requests} of {spec.min_requests} requests"
        return Verdict("inconclusive" if is_over else "running", metrics, reason)
    if all(outcome == "pass" for outcome in outcomes):
        return Verdict("pass", metrics)
    undecided = ", ".join(
        metric.name for metric in metrics if metric.outcome not in ("pass", "fail") and not metric.dry_run
    )
    reason = f"no decision after {elapsed_seconds:.0f} s on {undecided}" if is_over else f"undecided: {undecided}"
    return Verdict("inconclusive" if is_over else "running", metrics, reason)


def judge_metric(
    metric: MetricSpec,
    arms: Arms,
    fail_level: float,
    pass_level: float,
    *,
    is_early: bool = False,
    is_over: bool = False,
) -> MetricVerdict:
    """Judges one metric.

    Args:
        metric: The metric and its limit.
        arms: What is compared.
        fail_level: The chance that it ever fails though it is within the limit.
        pass_level: The chance that it ever passes though it is beyond the limit.
        is_early: Whether there are too few requests for it to pass, or to fail by bounds for large samples.
        is_over: Whether it is inconclusive if it cannot be told.
    """
    is_floor = metric.limit_kind == "min_value"
    levels = Levels(pass_level, fail_level) if is_floor else Levels(fail_level, pass_level)
    finding = find(arms, metric, levels)
    low, high = finding.bounds
    is_within, is_beyond = (
        (low >= metric.limit, high < metric.limit)
        if is_floor
        else (
            high <= metric.limit,
            low > metric.limit,
        )
    )
    outcome: Outcome = "inconclusive" if is_over else "running"
    if finding.missing:
        reason = f"{metric.name} waits for {finding.missing}"
    elif is_beyond and (finding.is_exact or not is_early):
        outcome, reason = "fail", _sentence(metric, finding, "is beyond")
    elif is_within and not is_early:
        outcome, reason = "pass", _sentence(metric, finding, "is within")
    else:
        reason = _sentence(metric, finding, "cannot be told from")
    return MetricVerdict(
        name=metric.name,
        stable=_finite(finding.stable),
        candidate=_finite(finding.candidate),
        difference=_finite(finding.compared),
        low=_finite(low),
        high=_finite(high),
        limit=metric.limit,
        outcome=outcome,
        n=finding.n,
        reason=reason,
        limit_kind=metric.limit_kind,
        dry_run=metric.dry_run,
    )


_WORDS = {
    "max_increase": "the candidate's {name} minus the stable version's",
    "max_ratio": "the candidate's {name} over the stable version's",
    "max_loss": "the share of the stable version's {name} that the candidate loses",
    "max_value": "the candidate's {name}",
    "min_value": "the candidate's {name}",
}


def _sentence(metric: MetricSpec, finding: Finding, verb: str) -> str:
    what = _WORDS[metric.limit_kind].format(name=metric.name)
    low, high = finding.bounds
    return f"{what} {verb} {metric.limit:g}: between {low:.4g} and {high:.4g} after {finding.n:,} observations"


def _finite(value: float | None) -> float | None:
    """None where JSON has no number."""
    return float(value) if value is not None and math.isfinite(value) else None
