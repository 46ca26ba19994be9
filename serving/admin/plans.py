"""What a rollout would do if it were started now, in words, for whoever has to confirm it."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rankhouse.serving.control.assignment import holdout_percent
from rankhouse.serving.control.model_state import ModelState, ReplicaReport
from rankhouse.serving.control.rollout_spec import RolloutSpec, Step, rollout_document
from rankhouse.serving.control.webhook_urls import shown_url

_ON_FAILURE = {"roll_back": "all users get the stable version again", "pause": "the rollout pauses"}
_ON_INCONCLUSIVE = {**_ON_FAILURE, "go_on": "the next step begins"}


class RolloutPlan(msgspec.Struct, frozen=True):
    """A rollout that could be started."""

    spec: Annotated[dict[str, Any], Meta(description="What to send to start it: its file, with `latest` resolved.")]
    effects: Annotated[list[str], Meta(description="What would happen, a sentence each, in order.")]


def plan_of(spec: RolloutSpec, state: ModelState, replicas: Sequence[ReplicaReport]) -> RolloutPlan:
    """Says what a rollout would do. Pure.

    Args:
        spec: The rollout, with versions' names for candidates.
        state: The model's state, which allows it.
        replicas: The living replicas.
    """
    return RolloutPlan(rollout_document(spec), list(_effects(spec, state, replicas)))


def _effects(spec: RolloutSpec, state: ModelState, replicas: Sequence[ReplicaReport]) -> Iterator[str]:
    yield from (_loading(version, replicas) for version in spec.candidates)
    holdout = max(spec.holdout, holdout_percent(state))
    for number, step in enumerate(spec.steps, 1):
        share = f"{step.weight:g} % of the users get {' and '.join(spec.candidates)}"
        if step.weight == 100:
            share = f"all users but the holdout get {spec.candidates[0]}" if holdout else share.replace("100 %", "all")
        yield f"Step {number}: {share}{' each' * (len(spec.candidates) > 1)}{_end_of(step)}."
    if len(spec.candidates) == 1:
        yield f"Then {spec.candidates[0]} becomes the stable version in place of {state.stable}."
    else:
        yield "Then the rollout pauses until somebody promotes one of the candidates."
    if spec.shadow:
        yield f"Meanwhile the candidates score {spec.shadow:g} % of the stable version's requests as well, unseen."
    if holdout:
        yield f"Until then {holdout:g} % of the users are held out: they keep {state.stable}."
    yield from _judgement(spec)
    for hook in spec.webhooks:
        yield f"{shown_url(hook.url)} is told of {', '.join(hook.events) or 'every change'}."


def _loading(version: str, replicas: Sequence[ReplicaReport]) -> str:
    waiting = sorted(each.replica for each in replicas if not each.is_draining and version not in each.loaded)
    if not waiting:
        return f"{version} is loaded on all {len(replicas)} replicas." if replicas else "No replica lives: it waits."
    return f"It waits until {', '.join(waiting)} {'has' if len(waiting) == 1 else 'have'} loaded {version}."


def _end_of(step: Step) -> str:
    parts = [f"for {_duration(step.pause_seconds)}"] if step.pause_seconds else []
    if step.is_manual:
        parts.append("until somebody resumes")
    if step.analysis_seconds is not None:
        parts.append(f"until the analysis passes, for at most {_duration(step.analysis_seconds)}")
    return f", {' and '.join(parts)}" if parts else ""


def _judgement(spec: RolloutSpec) -> Iterator[str]:
    if spec.analysis is None:
        yield "Nothing is analysed: only an operator can find that the candidate is worse."
        return
    names = ", ".join(metric.name for metric in spec.analysis.metrics)
    yield f"When the analysis of {names} fails, {_ON_FAILURE[spec.on_failure]}."
    yield f"When it comes to no outcome in time, {_ON_INCONCLUSIVE[spec.on_inconclusive]}."


def _duration(seconds: float) -> str:
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"
