"""The analysis' verdict in the forms that other tools for rollouts read.

Argo Rollouts' web metric takes a field of a JSON answer by `jsonPath` and compares it. Flagger's webhooks look at the
HTTP status alone, and its metric templates ask what looks like Prometheus for one number. docs/rollout.md has examples
of all three.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from rankhouse.serving.admin.views import RolloutView
from rankhouse.serving.errors import GateClosedError, InvalidFieldError

Gate = Literal["advance", "promote", "rollback"]

_FAILED = ("fail", "rolled_back")
_OUTCOMES = ("fail", "inconclusive", "running", "pass")  # The worst first: the one that counts of several candidates.


class MetricNumbers(msgspec.Struct, frozen=True):
    """One metric of a verdict."""

    outcome: str
    stable: float | None
    candidate: float | None
    difference: Annotated[float | None, Meta(description="What is compared with the limit.")]
    low: Annotated[float | None, Meta(description="The lower bound of that.")]
    high: Annotated[float | None, Meta(description="The upper bound.")]
    limit: float
    n: int


class VerdictNumbers(msgspec.Struct, frozen=True):
    """A rollout's verdict, flat, so that one condition can read it."""

    ok: Annotated[bool, Meta(description="Whether nothing speaks against going on: not failed, not rolled back.")]
    done: Annotated[bool, Meta(description="Whether it has passed or was promoted: it may become stable.")]
    outcome: Annotated[str, Meta(description="`pass`, `fail`, `inconclusive` or `running`.")]
    rollout: str
    status: str
    weight: float
    step: int
    reason: str
    metrics: Annotated[
        dict[str, MetricNumbers], Meta(description="By name; with several candidates by `<version>.<name>`.")
    ]


class VerdictAnswer(msgspec.Struct, frozen=True):
    """What Argo Rollouts' web metric reads with the jsonPath `{$.data}`."""

    data: VerdictNumbers


def verdict_numbers(view: RolloutView) -> VerdictNumbers:
    """Makes one verdict of a rollout's, the worst of its candidates'."""
    verdicts = {arm.version: arm.verdict for arm in view.arms}
    outcomes = ["running" if verdict is None else str(verdict["outcome"]) for verdict in verdicts.values()]
    outcome = {"promoted": "pass", "rolled_back": "fail"}.get(view.status) or min(outcomes, key=_OUTCOMES.index)
    reasons = [str(verdict["reason"]) for verdict in verdicts.values() if verdict and verdict.get("reason")]
    return VerdictNumbers(
        ok=outcome != "fail",
        done=outcome == "pass",
        outcome=outcome,
        rollout=view.id,
        status=view.status,
        weight=sum(arm.weight for arm in view.arms),
        step=view.step,
        reason="; ".join(reasons) or view.waits_for,
        metrics={
            metric["name"] if len(verdicts) == 1 else f"{version}.{metric['name']}": _metric_numbers(metric)
            for version, verdict in verdicts.items()
            for metric in (verdict or {}).get("metrics", ())
        },
    )


def check_gate(numbers: VerdictNumbers, gate: Gate) -> None:
    """Returns if a gate is open.

    Args:
        numbers: The verdict.
        gate: `advance` is open unless the rollout failed, `promote` when it has passed, `rollback` when it failed.

    Raises:
        GateClosedError: It is closed.
    """
    is_open = {"advance": numbers.ok, "promote": numbers.done, "rollback": not numbers.ok}[gate]
    if not is_open:
        raise GateClosedError(
            f"rollout {numbers.rollout} is {numbers.status}, its analysis says {numbers.outcome}"
            f"{': ' if numbers.reason else ''}{numbers.reason}"
        )


def prometheus_answer(numbers: VerdictNumbers, query: str, now: float) -> dict[str, Any]:
    """Answers a query as Prometheus' `/api/v1/query` does: a vector of one sample, or of none where there is no number.

    Args:
        numbers: The verdict.
        query: `ok`, `done`, `failed`, `weight`, `step`, or a metric and what of it, as `ctr.candidate`; `vector(1)` is
            1.
        now: Unix seconds.

    Raises:
        InvalidFieldError: There is no such number.
    """
    value = _number(numbers, query.strip())
    labels = {"rollout": numbers.rollout, "query": query.strip()}
    result = [] if value is None else [{"metric": labels, "value": [now, repr(value)]}]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def _number(numbers: VerdictNumbers, query: str) -> float | None:
    flat: Mapping[str, float] = {
        "vector(1)": 1.0,
        "ok": float(numbers.ok),
        "done": float(numbers.done),
        "failed": float(not numbers.ok),
        "weight": numbers.weight,
        "step": float(numbers.step),
    }
    if query in flat:
        return flat[query]
    name, _, field = query.rpartition(".")
    fields = ("stable", "candidate", "difference", "low", "high", "limit", "n")
    if name in numbers.metrics and field in fields:
        value = getattr(numbers.metrics[name], field)
        return None if value is None else float(value)
    if name and field in fields and not numbers.metrics:  # The analysis has not said anything yet.
        return None
    metrics = ", ".join(numbers.metrics) or "the analysis"
    raise InvalidFieldError(
        f"is {query[:80]!r}; expected one of {', '.join(flat)}, or a metric of {metrics} with one of "
        f"{', '.join(fields)}, as ctr.candidate",
        "query",
    )


def _metric_numbers(metric: Mapping[str, Any]) -> MetricNumbers:
    return MetricNumbers(**{name: metric[name] for name in MetricNumbers.__struct_fields__})
