"""What is asked of a candidate, and what came out, as plain data."""

from typing import Literal, TypeAlias

import msgspec

Outcome: TypeAlias = Literal["pass", "fail", "inconclusive", "running"]

# How a limit can be said; each compares the candidate (c) with the stable version (s).
LIMITS = ("max_increase", "max_ratio", "max_loss", "max_value", "min_value")


class MetricSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One metric, and how much worse than the stable version a candidate may be. One limit is given.

    Attributes:
        name: The metric's name, as `error_rate`.
        max_increase: c - s is at most this.
        max_ratio: c / s is at most this.
        max_loss: s - c is at most this.
        max_value: c is at most this, whatever the stable version has.
        min_value: c is at least this, whatever the stable version has.
        event: Which feedback counts, for metrics of outcomes.
        dry_run: It is shown, and decides nothing.
    """

    name: str
    max_increase: float | None = None
    max_ratio: float | None = None
    max_loss: float | None = None
    max_value: float | None = None
    min_value: float | None = None
    event: str = "click"
    dry_run: bool = False


class AnalysisSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a candidate is judged.

    Attributes:
        metrics: What is compared; all must pass.
        min_requests: Answers that the candidate needs before it may pass.
        max_seconds: How long a step waits for an outcome, unless the step says otherwise.
        alpha: The chance of a false alarm in the whole analysis, over all metrics and all looks.
    """

    metrics: tuple[MetricSpec, ...] = ()
    min_requests: int = 1000
    max_seconds: float = 3600.0
    alpha: float = 0.05


class MetricVerdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What came out for one metric.

    Attributes:
        name: The metric's name.
        stable: The stable version's value; None where there is none yet.
        candidate: The candidate's value.
        difference: What is compared with the limit, in the direction of worse.
        low, high: The confidence interval of the difference.
        limit: The largest difference that is allowed.
        outcome: Of this metric alone.
        n: Observations of the candidate.
        reason: A sentence.
    """

    name: str
    stable: float | None
    candidate: float | None
    difference: float | None
    low: float | None
    high: float | None
    limit: float
    outcome: Outcome
    n: int
    reason: str


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What came out for one candidate.

    Attributes:
        outcome: `fail` as soon as one metric has failed, `pass` when all have passed; `running` needs more;
            `inconclusive` cannot be decided by more.
        metrics: The outcomes of the metrics.
        reason: A sentence; empty where the metrics say it all.
    """

    outcome: Outcome
    metrics: tuple[MetricVerdict, ...] = ()
    reason: str = ""
