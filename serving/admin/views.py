"""What the admin API answers: the state, the replicas' reports and the version store, put together for readers."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rankhouse.serving.admin.catalog import CatalogEntry
from rankhouse.serving.admin.traffic import traffic_weights
from rankhouse.serving.control.model_state import ModelState, ReplicaReport, Rollout, number_of
from rankhouse.serving.control.rollout_spec import rollout_document
from rankhouse.serving.control.webhook_urls import hidden_urls


class VersionOnReplica(msgspec.Struct, frozen=True):
    """How a version stands on one replica."""

    replica: str
    state: Annotated[str, Meta(description="`loaded`, `preparing`, `failed` or `absent`.")]
    detail: Annotated[str, Meta(description="How far it is, or why it failed.")] = ""


class VersionView(msgspec.Struct, frozen=True):
    """A version: what it is, and what becomes of it."""

    name: str
    role: Annotated[
        str,
        Meta(
            description="`stable`, `candidate`, `previous`, `quarantined`, `failed`, `preparing`, `taken_back`, "
            "`loaded` or `stored`."
        ),
    ]
    reason: Annotated[str, Meta(description="Why it is quarantined, failed or taken back.")]
    weight: Annotated[float, Meta(description="Percent of the request keys that it answers.")]
    replicas: list[VersionOnReplica]
    stored: Annotated[CatalogEntry | None, Meta(description="What the version store says; null if it has no such.")]


class ArmView(msgspec.Struct, frozen=True):
    """A candidate of a rollout."""

    version: str
    weight: Annotated[float, Meta(description="Percent of the request keys that it answers.")]
    verdict: Annotated[
        dict[str, Any] | None, Meta(description="What the analysis says of it; null before it said anything.")
    ]


class RolloutView(msgspec.Struct, frozen=True):
    """A rollout. Times are unix seconds."""

    id: str
    status: Annotated[str, Meta(description="`pending`, `progressing`, `paused`, `promoted` or `rolled_back`.")]
    arms: list[ArmView]
    step: Annotated[int, Meta(description="Which of the spec's steps it is in, from 0.")]
    num_steps: int
    waits_for: Annotated[str, Meta(description="What happens next, and when, in words.")]
    spec: Annotated[dict[str, Any], Meta(description="What was asked for, as in its YAML file.")]
    created_at: float
    created_by: str
    reason: str
    step_since: float
    started_at: float | None
    paused_at: float | None
    pause_cause: str | None
    finished_at: float | None
    is_rollback: bool


class ReplicaView(msgspec.Struct, frozen=True):
    """A living replica."""

    replica: str
    seconds_ago: Annotated[float, Meta(description="When it last said something of itself.")]
    is_draining: bool
    routing_revision: Annotated[int, Meta(description="The revision of the state that its requests are routed by.")]
    lags: Annotated[bool, Meta(description="Whether there is a newer revision.")]
    loaded: list[str]
    preparing: dict[str, str]
    failed: dict[str, str]
    urls: dict[str, str]
    details: dict[str, Any]


def rollout_view(
    rollout: Rollout, *, verdicts: Mapping[str, Any], replicas: Sequence[ReplicaReport], now: float
) -> RolloutView:
    """Shows a rollout.

    Args:
        rollout: The rollout.
        verdicts: The analysis' last verdicts by version; what the rollout keeps itself fills in for others.
        replicas: The living replicas.
        now: The time, in unix seconds.
    """
    kept = rollout.verdict or {}
    return RolloutView(
        id=rollout.id,
        status=rollout.status,
        arms=[
            ArmView(arm.version, arm.weight, verdicts.get(arm.version, kept.get(arm.version))) for arm in rollout.arms
        ],
        step=rollout.step,
        num_steps=len(rollout.spec.steps),
        waits_for=waits_for(rollout, replicas=replicas, now=now),
        spec=hidden_urls(rollout_document(rollout.spec)),
        created_at=rollout.created_at,
        created_by=rollout.created_by,
        reason=rollout.reason,
        step_since=rollout.step_since,
        started_at=rollout.started_at,
        paused_at=rollout.paused_at,
        pause_cause=rollout.pause_cause,
        finished_at=rollout.finished_at,
        is_rollback=rollout.is_rollback,
    )


def waits_for(rollout: Rollout, *, replicas: Sequence[ReplicaReport], now: float) -> str:
    """Says in words what a rollout waits for."""
    if rollout.status == "pending":
        missing = {
            report.replica: [version for version in rollout.candidates if version not in report.loaded]
            for report in replicas
            if not report.is_draining
        }
        named = [
            f"{replica} to load {', '.join(versions)}" for replica, versions in sorted(missing.items()) if versions
        ]
        return f"waits for {'; '.join(named)}" if named else "waits for a living replica" * (not missing)
    if rollout.status == "paused":
        return {
            "operator": "paused by an operator: resume goes on",
            "step": "the step is over: resume goes on",
            "failure": "the analysis failed: abort rolls back, resume goes on all the same",
            "inconclusive": "the analysis came to no outcome in time: resume goes on, abort rolls back",
        }.get(rollout.pause_cause or "", "paused: resume goes on")
    if rollout.status != "progressing":
        return ""
    step = rollout.spec.steps[rollout.step]
    passed = now - rollout.step_since
    parts = [f"{_duration(step.pause_seconds - passed)} more"] if step.pause_seconds > passed else []
    if step.analysis_seconds is not None:
        parts.append(f"its analysis to pass, for at most {_duration(max(step.analysis_seconds - passed, 0.0))} more")
    if step.is_manual:
        parts.append("an operator: resume goes on")
    return f"waits for {' and '.join(parts)}" if parts else "goes on"


def version_views(
    state: ModelState, replicas: Sequence[ReplicaReport], stored: Sequence[CatalogEntry]
) -> list[VersionView]:
    """Shows all versions that the store, the state or a replica knows, the newest first."""
    entries = {entry.name: entry for entry in stored}
    weights = traffic_weights(state)
    candidates = (version for rollout in state.rollouts for version in rollout.candidates)
    names = {*entries, *weights, *candidates, *state.previous, *state.quarantined}
    for report in replicas:
        names |= {*report.loaded, *report.preparing, *report.failed}
    return [
        _version_view(name, state, replicas, entries.get(name), weights.get(name, 0.0))
        for name in sorted(names, key=lambda name: (number_of(name), name), reverse=True)
    ]


def replica_views(replicas: Sequence[ReplicaReport], *, revision: int, now: float) -> list[ReplicaView]:
    """Shows the living replicas."""
    return [
        ReplicaView(
            replica=report.replica,
            seconds_ago=round(max(now - report.at, 0.0), 3),
            is_draining=report.is_draining,
            routing_revision=report.routing_revision,
            lags=report.routing_revision < revision,
            loaded=list(report.loaded),
            preparing=report.preparing,
            failed=report.failed,
            urls=report.urls,
            details=report.details,
        )
        for report in replicas
    ]


def _version_view(
    name: str, state: ModelState, replicas: Sequence[ReplicaReport], stored: CatalogEntry | None, weight: float
) -> VersionView:
    on = [_on_replica(name, report) for report in replicas]
    role = _role(name, state, on)
    reason = state.quarantined.get(name) or next((each.detail for each in on if each.state == "failed"), "")
    if role == "taken_back":
        reason = "it or a later one was rolled back, so refresh never admits it; a rollout of it may be started"
    return VersionView(name, role, reason, weight, on, stored)


def _role(name: str, state: ModelState, on: Sequence[VersionOnReplica]) -> str:
    if name == state.stable:
        return "stable"
    if any(name in rollout.candidates for rollout in state.rollouts):
        return "candidate"
    if name in state.quarantined:
        return "quarantined"
    if name in state.previous:
        return "previous"
    states = {each.state for each in on}
    if not states & {"failed", "preparing"} and _was_taken_back(name, state):
        return "taken_back"
    return next((one for one in ("failed", "preparing", "loaded") if one in states), "stored")


def _was_taken_back(name: str, state: ModelState) -> bool:
    return state.stable is not None and number_of(state.stable) < number_of(name) <= state.floor


def _on_replica(name: str, report: ReplicaReport) -> VersionOnReplica:
    if name in report.loaded:
        return VersionOnReplica(report.replica, "loaded")
    if name in report.preparing:
        return VersionOnReplica(report.replica, "preparing", report.preparing[name])
    if name in report.failed:
        return VersionOnReplica(report.replica, "failed", report.failed[name])
    return VersionOnReplica(report.replica, "absent")


def _duration(seconds: float) -> str:
    whole = round(max(seconds, 0.0))
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 3600 else f"{whole / 3600:.1f} h"
