"""What is asked of a candidate, and what came out, as plain data that checks itself."""

import difflib
import math
from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from rankhouse.serving.analysis.errors import AnalysisSpecError

Outcome: TypeAlias = Literal["pass", "fail", "inconclusive", "running"]

# How a limit can be said; the first three compare the candidate (c) with the stable version (s).
LIMITS = ("max_increase", "max_ratio", "max_loss", "max_value", "min_value")

_RATE = ("max_increase", "max_ratio", "max_value")

# The metrics, and the limits that each can have.
METRICS: dict[str, tuple[str, ...]] = {
    "error_rate": _RATE,
    "refusal_rate": _RATE,
    "degraded": _RATE,
    "missing_features": _RATE,
    "unknown_ids": _RATE,
    "latency_p50": ("max_ratio", "max_value"),
    "latency_p99": ("max_ratio", "max_value"),
    "score_psi": ("max_value",),
    "score_ks": ("max_value",),
    "rank_correlation": ("min_value",),
    "top_k_overlap": ("min_value",),
    "ctr": ("max_loss", "min_value"),
    "auc": ("max_loss", "min_value"),
    "calibration": ("max_increase", "max_value"),
}


class MetricSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One metric, and how much worse than the stable version a candidate may be. One limit is given.

    Attributes:
        name: The metric's name, one of `METRICS`.
        max_increase: c - s is at most this.
        max_ratio: c / s is at most this.
        max_loss: 1 - c / s is at most this: 0.05 is five per cent of what the stable version has.
        max_value: c is at most this, whatever the stable version has; seconds for a latency.
        min_value: c is at least this, whatever the stable version has.
        event: Whose outcomes are compared, for `ctr`, `auc` and `calibration`.
        dry_run: It is reported only, and decides nothing.

    Raises:
        AnalysisSpecError: There is no such metric, or the limit is none that it can have.
    """

    name: str
    max_increase: float | None = None
    max_ratio: float | None = None
    max_loss: float | None = None
    max_value: float | None = None
    min_value: float | None = None
    event: str = "click"
    dry_run: bool = False

    def __post_init__(self) -> None:
        check_name(self.name, METRICS, what="metric")
        given = [limit for limit in LIMITS if getattr(self, limit) is not None]
        allowed = METRICS[self.name]
        if len(given) != 1 or given[0] not in allowed:
            found = ", ".join(given) or "none"
            raise AnalysisSpecError(f"{self.name} has the limits {found}; give one of {', '.join(allowed)}")
        most = 1.0 if self.limit_kind == "max_loss" else math.inf
        if not 0 <= self.limit < most:
            raise AnalysisSpecError(
                f"{self.name}: {self.limit_kind} is {self.limit:g}; expected a number from 0"
                + (" to less than 1: a share of the stable version's value" if most == 1 else "")
            )

    @property
    def limit_kind(self) -> str:
        """Which of the limits is given."""
        return next(limit for limit in LIMITS if getattr(self, limit) is not None)

    @property
    def limit(self) -> float:
        """The limit that is given."""
        value: float = getattr(self, self.limit_kind)
        return value


class AnalysisSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a candidate is judged.

    Attributes:
        metrics: What is compared; all must pass.
        min_requests: Answers that the candidate needs before it may pass.
        max_seconds: How long a step waits for an outcome, unless the step says otherwise.
        alpha: The chance of a false alarm in the whole analysis, over all metrics and all looks.

    Raises:
        AnalysisSpecError: A number is out of range, or a metric is given twice.
    """

    metrics: tuple[MetricSpec, ...] = ()
    min_requests: int = 1000
    max_seconds: float = 3600.0
    alpha: float = 0.05

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 0.5:
            raise AnalysisSpecError(
                f"alpha is {self.alpha:g}; expected a chance of more than 0 and at most 0.5, as 0.05"
            )
        if self.min_requests < 1 or not self.max_seconds > 0:
            raise AnalysisSpecError(
                f"min_requests is {self.min_requests}, max_seconds {self.max_seconds:g}; "
                "expected 1 or more, and more than 0"
            )
        keys = [(metric.name, metric.event) for metric in self.metrics]
        for name, event in keys:
            if keys.count((name, event)) > 1:
                raise AnalysisSpecError(f"the metric {name} stands twice; each metric has one limit")


class MetricVerdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What came out for one metric.

    Attributes:
        name: The metric's name.
        stable: The stable version's value; None where there is none yet, or none is compared.
        candidate: The candidate's value; None where there is none yet.
        difference: What is compared with the limit: c - s for `max_increase`, c / s for `max_ratio`, 1 - c / s for
            `max_loss`, else c.
        low: The lower bound of that; None where nothing can be said yet, or it is infinite.
        high: The upper bound.
        limit: The limit.
        outcome: Of this metric alone.
        n: Observations of the candidate: requests, shadow pairs or impressions.
        reason: A sentence.
        limit_kind: Which limit it is; worse is lower for `min_value`, else higher.
        dry_run: It decides nothing.
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
    limit_kind: str = "max_value"
    dry_run: bool = False


class Verdict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What came out for one candidate.

    Attributes:
        outcome: `fail` as soon as one metric has failed, `pass` when all have passed; `running` needs more
            observations; `inconclusive`: the time was over before.
        metrics: The outcomes of the metrics.
        reason: A sentence; empty where the metrics say it all.
    """

    outcome: Outcome
    metrics: tuple[MetricVerdict, ...] = ()
    reason: str = ""


def check_name(name: str, known: Iterable[str], *, what: str) -> None:
    """Refuses a name that is not known, and says which may have been meant.

    Raises:
        AnalysisSpecError: It is not known.
    """
    names = list(known)
    if name not in names:
        nearest = difflib.get_close_matches(name[:100], names, n=1, cutoff=0.4)
        hint = f"did you mean {nearest[0]}? " if nearest else ""
        raise AnalysisSpecError(f"there is no {what} {name[:100]!r}; {hint}known are {', '.join(names)}")
