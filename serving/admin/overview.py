"""One answer with all that an operations page shows: what serves whom, what is under way, and how it goes."""

import time
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rankhouse.serving.admin.catalog import VersionCatalog
from rankhouse.serving.admin.judging import Point, merged_summaries, read_course, read_findings
from rankhouse.serving.admin.subscriptions import Subscriptions
from rankhouse.serving.admin.traffic import TrafficPoint, read_traffic
from rankhouse.serving.admin.views import (
    ReplicaView,
    RolloutView,
    VersionView,
    replica_views,
    rollout_view,
    version_views,
)
from rankhouse.serving.admin.webhooks import Progress, read_progress
from rankhouse.serving.analysis.latency_bins import latency_quantile
from rankhouse.serving.analysis.layout import ANSWERED, FAILED, REFUSED
from rankhouse.serving.analysis.summary import Summary
from rankhouse.serving.control.model_state import Event, ModelState, ReplicaReport, Rollout
from rankhouse.serving.control.refresh_policy import policy_document
from rankhouse.serving.control.state_store import StateStore
from rankhouse.serving.control.webhook_urls import hidden_urls

_SHOWN_EVENTS = 50
_SHOWN_ROLLOUTS = 10


class ArmNumbers(msgspec.Struct, frozen=True):
    """What one version did in one role, on all replicas together, those that ended in the last 7 days included."""

    rollout: Annotated[
        str, Meta(description="The rollout that it is counted for; empty: all of the stable version's requests.")
    ]
    version: str
    arm: Annotated[str, Meta(description="`stable`, `candidate` or `shadow`.")]
    num_answered: int
    num_failed: int
    num_refused: int
    num_degraded: int
    latency_p50: Annotated[float | None, Meta(description="Seconds.")]
    latency_p99: Annotated[float | None, Meta(description="Seconds.")]


class RolloutDetail(msgspec.Struct, frozen=True):
    """A rollout, and how its candidates compared with the stable version over time."""

    rollout: RolloutView
    points: Annotated[list[Point], Meta(description="Metrics with their confidence bands, the oldest first.")]


class Overview(msgspec.Struct, frozen=True):
    """All that an operations page shows. Times are unix seconds."""

    at: float
    model: str
    revision: Annotated[int, Meta(description="Of the state; it grows with every change.")]
    stable: str | None
    previous: Annotated[
        list[str], Meta(description="Earlier stable versions that a rollback may bring back, newest first.")
    ]
    holdout_percent: float
    policy: Annotated[dict[str, Any], Meta(description="What happens with new versions.")]
    versions: list[VersionView]
    rollouts: Annotated[list[RolloutDetail], Meta(description="Active ones first, then the newest finished ones.")]
    traffic: Annotated[list[TrafficPoint], Meta(description="How the request keys were shared, the oldest first.")]
    arms: list[ArmNumbers]
    freshness: Annotated[dict[str, Any], Meta(description="What each replica says of how fresh its versions are.")]
    replicas: list[ReplicaView]
    events: Annotated[list[Event], Meta(description="The newest of the history, newest first.")]
    receivers: Annotated[list[Progress], Meta(description="How far each receiver of events has come.")]
    warnings: Annotated[list[str], Meta(description="What somebody should look at, in words.")]


class Reader:
    """Reads what the admin API shows of one model. Blocks; any thread may use it.

    Every method raises StateStoreError where the store is away.

    Args:
        store: Holds the state.
        model: The model's name.
        catalog: Knows the version store; None where none is known here.
    """

    def __init__(self, store: StateStore, model: str, *, catalog: VersionCatalog | None) -> None:
        self._store = store
        self._model = model
        self._catalog = catalog

    def versions(self) -> list[VersionView]:
        """All versions, the newest first."""
        return self._versions(self._store.read(self._model).state, self._store.replicas(self._model))

    def replicas(self) -> list[ReplicaView]:
        """The living replicas."""
        revision = self._store.revision(self._model)
        return replica_views(self._store.replicas(self._model), revision=revision, now=time.time())

    def rollouts(self, *, limit: int) -> list[RolloutView]:
        """Active rollouts, then finished ones, the newest first."""
        replicas, now = self._store.replicas(self._model), time.time()
        return [self._rollout(each, replicas, now) for each in self._all_rollouts(limit)]

    def rollout(self, rollout: Rollout) -> RolloutView:
        """One rollout."""
        return self._rollout(rollout, self._store.replicas(self._model), time.time())

    def receivers(self) -> list[Progress]:
        """How far each receiver of events has come."""
        targets = Subscriptions.read(self._store, self._model).targets(has_command=True)
        found = [(target.shown, read_progress(self._store, self._model, target.name)) for target in targets]
        shown = [msgspec.structs.replace(each, receiver=name) for name, each in found if each is not None]
        return sorted(shown, key=lambda each: each.receiver)

    def overview(self) -> Overview:
        """Everything."""
        stored, replicas, now = self._store.read(self._model), self._store.replicas(self._model), time.time()
        state = stored.state
        versions, receivers = self._versions(state, replicas), self.receivers()
        views = replica_views(replicas, revision=stored.revision, now=now)
        return Overview(
            at=now,
            model=self._model,
            revision=stored.revision,
            stable=state.stable,
            previous=list(state.previous),
            holdout_percent=state.holdout_percent,
            policy=hidden_urls(policy_document(state.policy)),
            versions=versions,
            rollouts=[
                RolloutDetail(self._rollout(each, replicas, now), read_course(self._store, self._model, each.id))
                for each in self._all_rollouts(_SHOWN_ROLLOUTS)
            ],
            traffic=read_traffic(self._store, self._model),
            arms=self._arms(),
            freshness={each.replica: each.details["freshness"] for each in replicas if "freshness" in each.details},
            replicas=views,
            events=self._store.history(self._model, limit=_SHOWN_EVENTS),
            receivers=receivers,
            warnings=warnings(state, versions, views, receivers),
        )

    def _versions(self, state: ModelState, replicas: Sequence[ReplicaReport]) -> list[VersionView]:
        return version_views(state, replicas, [] if self._catalog is None else self._catalog.entries())

    def _all_rollouts(self, limit: int) -> list[Rollout]:
        active = self._store.read(self._model).state.rollouts
        return [*reversed(active), *self._store.finished(self._model, limit=limit)][: max(limit, len(active))]

    def _rollout(self, rollout: Rollout, replicas: Sequence[ReplicaReport], now: float) -> RolloutView:
        findings = read_findings(self._store, self._model, rollout.id)
        return rollout_view(rollout, verdicts=findings.verdicts if findings else {}, replicas=replicas, now=now)

    def _arms(self) -> list[ArmNumbers]:
        merged = merged_summaries(self._store.summaries(self._model))
        return [_arm_numbers(key, summary) for key, summary in sorted(merged.items())]


def warnings(
    state: ModelState, versions: Sequence[VersionView], replicas: Sequence[ReplicaView], receivers: Sequence[Progress]
) -> list[str]:
    """What somebody should look at, in words."""
    found = []
    if state.stable is None:
        found.append("no version is stable yet: requests are refused until one is admitted")
    if not replicas:
        found.append("no replica has said that it lives")
    if state.policy.is_held:
        found.append("refresh is held: no new version is admitted until somebody resumes it")
    found += [f"rollout {each.id} is paused ({each.pause_cause})" for each in state.rollouts if each.status == "paused"]
    found += [f"version {each.name} is quarantined: {each.reason}" for each in versions if each.role == "quarantined"]
    found += [f"version {each.name} could not be loaded: {each.reason}" for each in versions if each.role == "failed"]
    found += [
        f"replica {each.replica} has not loaded the stable version {state.stable}"
        for each in replicas
        if state.stable is not None and state.stable not in each.loaded and not each.is_draining
    ]
    found += [
        f"{each.receiver} takes no events since {time.strftime('%H:%M:%S UTC', time.gmtime(each.failing_since))}: "
        f"{each.last_error}"
        for each in receivers
        if each.failing_since is not None
    ]
    return found


def _arm_numbers(key: str, summary: Summary) -> ArmNumbers:
    rollout, version, arm = key.split("/")
    arrays = summary.arrays
    statuses = arrays["statuses"]
    return ArmNumbers(
        rollout=rollout,
        version=version,
        arm=arm,
        num_answered=int(statuses[ANSWERED]),
        num_failed=int(statuses[FAILED]),
        num_refused=int(statuses[REFUSED]),
        num_degraded=int(arrays["degraded"][0]),
        latency_p50=latency_quantile(arrays["latencies"], 0.5),
        latency_p99=latency_quantile(arrays["latencies"], 0.99),
    )
