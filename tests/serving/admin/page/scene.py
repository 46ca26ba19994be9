"""A day of a model's operations, made by the real transitions, judge and store at times of the past."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rankhouse.serving.admin.catalog import CatalogEntry, VersionCatalog
from rankhouse.serving.admin.judging import Judge
from rankhouse.serving.admin.traffic import note_traffic
from rankhouse.serving.analysis.spec import Verdict
from rankhouse.serving.analysis.summary import Summary
from rankhouse.serving.control import transitions
from rankhouse.serving.control.model_state import Change, ModelState, RefreshPolicy, ReplicaReport
from rankhouse.serving.control.rollout_spec import parse_rollout
from rankhouse.serving.control.state_store import StateStore, SummaryKey, summary_key

MODEL = "homefeed-ranker"
HOUR, MINUTE = 3600.0, 60.0
JUDGED_SECONDS = 300.0
REPLICAS = ("gateway-a-5d1f0c2e", "gateway-b-91c7e4aa")
FULL, D1, D2, BAD, GOOD, BROKEN, NEWEST = (
    *("000117-2b9e61d0", "000118-77c0a4f3", "000119-e03d5c18", "000120-a41f9b62"),
    *("000121-5c8e20f7", "000122-d9037e4b", "000123-18b6fa95"),
)
METRICS = [
    {"name": "error_rate", "max_increase": 0.002},
    {"name": "latency_p99", "max_ratio": 1.25},
    {"name": "ctr", "max_loss": 0.05},
    {"name": "auc", "max_loss": 0.02},
    {"name": "score_psi", "max_value": 0.1},
]


def spec_of(candidate: str) -> dict[str, Any]:
    """A rollout as a team would write it."""
    steps = [{"weight": 5, "pause": "10m"}, {"weight": 25, "analysis": {"max": "1h"}}, {"weight": 100, "pause": "30m"}]
    analysis = {"min_requests": 2000, "metrics": METRICS}
    return {"candidate": candidate, "steps": steps, "shadow": 10, "holdout": 1, "analysis": analysis}


class ListedVersions(VersionCatalog):
    """A version store whose manifests are given: sizes of a large model, without its bytes."""

    def __init__(self, entries: Sequence[CatalogEntry]) -> None:
        self._listed = list(entries)

    def entries(self) -> list[CatalogEntry]:
        return self._listed


def catalog(now: float) -> ListedVersions:
    """A whole export, deltas on it, and a compaction beside them."""
    rows, row_bytes = 48_213_554, 132

    def delta(name: str, parent: str, hours: float, added: int, auc: float) -> CatalogEntry:
        return CatalogEntry(
            *(name, "delta", parent, None, now - hours * HOUR, rows, rows * row_bytes, added, added * row_bytes),
            metrics={"auc": auc},
        )

    whole = CatalogEntry(
        *(FULL, "export", None, None, now - 26 * HOUR, rows, rows * row_bytes, rows, rows * row_bytes),
        metrics={"auc": 0.8013},
    )
    return ListedVersions(
        [
            whole,
            CatalogEntry(D1, "compact", None, FULL, now - 20 * HOUR, rows, rows * row_bytes, 0, 4096),
            delta(D2, D1, 7.0, 481_002, 0.8019),
            delta(BAD, D2, 4.6, 496_310, 0.8007),
            delta(GOOD, D2, 3.1, 512_449, 0.8031),
            delta(BROKEN, GOOD, 1.2, 498_871, 0.8028),
            delta(NEWEST, GOOD, 0.75, 505_126, 0.8042),
        ]
    )


@dataclass(frozen=True)
class Behaviour:
    """How a version behaves."""

    median_seconds: float = 0.0041
    failed: float = 0.0004
    click: float = 0.061
    shift: float = 0.0


@dataclass
class Traffic:
    """What all replicas have counted so far."""

    seed: int = 7
    summaries: dict[SummaryKey, Summary] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(self.seed)

    def answer(self, keys: Sequence[SummaryKey], number: int, behaviour: Behaviour) -> None:
        """Answers requests of eight candidates, each counted under all keys."""
        seconds = behaviour.median_seconds * np.exp(0.35 * self._random.standard_normal(number))
        failed = self._random.random(number) < behaviour.failed
        odds = np.log(behaviour.click) + behaviour.shift + 0.8 * self._random.standard_normal((number, 8))
        scores = (1 / (1 + np.exp(-odds))).astype(np.float32)
        clicks = self._random.random((number, 8)) < scores
        for key in keys:
            summary = self.summaries.setdefault(key, Summary())
            for each in range(number):
                summary.observe_answer(
                    500 if failed[each] else 200, seconds[each], None if failed[each] else scores[each]
                )
                summary.observe_outcomes(scores[each], clicks[each])

    def contents(self) -> dict[SummaryKey, bytes]:
        return {key: summary.to_bytes() for key, summary in self.summaries.items()}


class Scene:
    """Writes what happened into a store.

    Args:
        store: Is empty.
        now: When the scene ends, in unix seconds.
    """

    def __init__(self, store: StateStore, now: float) -> None:
        self.store = store
        self.now = now
        self.catalog = catalog(now)
        self.traffic = Traffic()
        self._judge = Judge(store, MODEL, interval_seconds=0.5)

    def play(self) -> None:
        """Plays the whole day, up to a rollout in the middle of its second step."""
        now = self.now
        policy = RefreshPolicy(
            admit="rollout", rollout=parse_rollout(_template(), is_template=True), keep_loaded_bytes=32 << 30
        )
        first = ModelState(model=MODEL, stable=D1, previous=(FULL,), floor=118, salt="first", policy=policy)
        self.store.create(first)
        note_traffic(self.store, first, now - 20 * HOUR)
        self.report()
        self._commit(
            now - 6.9 * HOUR,
            lambda state, at: transitions.admit(
                state, D2, actor="mira", now=at, reason="first day of the new features", by_operator=True
            ),
        )
        self._roll_out(BAD, now - 4.5 * HOUR, by="refresh", worse=Behaviour(failed=0.021), seconds=14 * MINUTE)
        self._roll_out(GOOD, now - 3 * HOUR, by="mira", worse=Behaviour(click=0.0625), seconds=75 * MINUTE)
        self._commit(
            now - 1.7 * HOUR,
            lambda state, at: transitions.promote(
                *(state, state.rollouts[0].id),
                replicas=self.store.replicas(MODEL),
                actor="mira",
                now=at,
                reason="error rate and AUC are fine, and the morning peak wants the new sessions",
            ),
        )
        self._commit(
            now - 1.15 * HOUR,
            lambda state, at: transitions.quarantine(
                *(state, BROKEN),
                actor="refresh",
                now=at,
                reason="golden request 3: candidate 11 scored 0.4121, the trainer's 0.4382",
            ),
        )
        self._roll_out(
            NEWEST, now - 38 * MINUTE, by="jonas", worse=Behaviour(0.0043, 0.0005, 0.0622), seconds=38 * MINUTE
        )
        self.report()
        self._judge.close()

    def report(self) -> None:
        """Has all replicas say what they have now."""
        for replica in REPLICAS:
            report = ReplicaReport(
                replica=replica,
                model=MODEL,
                at=time.time(),
                loaded=(D2, GOOD, NEWEST),
                routing_revision=self.store.read(MODEL).revision if self.store.models() else 1,
                urls={"rest": f"http://{replica[:9]}:8080", "admin": f"http://{replica[:9]}:8082"},
                details={"tiers": TIERS},
            )
            self.store.report(report, ttl_seconds=3600.0)

    def publish(self) -> None:
        """Publishes all that was counted."""
        self.store.publish_summaries(REPLICAS[0], MODEL, self.traffic.contents())

    def go_on(self, number: int) -> None:
        """Answers more requests in the rollout that is under way."""
        state = self.store.read(MODEL).state
        self._answer(state, number, Behaviour(0.0043, 0.0005, 0.0622))
        self.publish()
        self.report()

    def _roll_out(self, version: str, begin: float, *, by: str, worse: Behaviour, seconds: float) -> None:
        spec = parse_rollout(spec_of(version))
        reason = {
            BAD: "new version in the store",
            GOOD: "fixed the session feature",
            NEWEST: "retrained on last night",
        }[version]
        self._commit(begin, lambda state, at: transitions.start_rollout(state, spec, actor=by, now=at, reason=reason))
        replicas = [ReplicaReport(replica=each, model=MODEL, at=begin, loaded=(version,)) for each in REPLICAS]
        for at in _times(begin + 4, begin + seconds, 24):
            state = self.store.read(MODEL).state
            if not state.rollouts:
                return
            self._answer(state, 3000, worse)
            self.publish()
            verdicts = self._verdicts(state, at)
            self._advance(at, replicas, verdicts)

    def _advance(self, at: float, replicas: Sequence[ReplicaReport], verdicts: Mapping[str, Verdict]) -> None:
        if self.store.read(MODEL).state.rollouts:
            self._commit(
                at, lambda state, now: transitions.advance(state, now=now, replicas=replicas, verdicts=verdicts)
            )

    def _verdicts(self, state: ModelState, at: float) -> Mapping[str, Verdict]:
        found = self._judge.verdicts(state, at)
        end = time.monotonic() + JUDGED_SECONDS
        while self._judge.is_busy and time.monotonic() < end:
            found = self._judge.verdicts(state, at)
        return found

    def _answer(self, state: ModelState, number: int, worse: Behaviour) -> None:
        assert state.stable is not None
        rollout = state.rollouts[0]
        share = rollout.weight / 100
        keys = [summary_key("", state.stable, "stable"), summary_key(rollout.id, state.stable, "stable")]
        self.traffic.answer(keys, round(number * (1 - share)), Behaviour())
        if share:
            candidate = summary_key(rollout.id, rollout.arms[0].version, "candidate")
            self.traffic.answer([candidate], round(number * share), worse)

    def _commit(self, at: float, command: Any) -> None:
        stored = self.store.read(MODEL)
        change: Change | None = command(stored.state, at)
        if change is None:
            return
        self.store.commit(change.state, expected=stored.revision, events=change.events, finished=change.finished)
        note_traffic(self.store, change.state, at)


def _template() -> dict[str, Any]:
    return {key: value for key, value in spec_of(NEWEST).items() if key != "candidate"}


def _times(begin: float, end: float, number: int) -> Iterator[float]:
    return iter(np.linspace(begin, end, number).tolist())


TIERS = {
    GOOD: {"memory": 0, "cache": 181_204_331, "redis": 9_830_112, "degraded": 0, "unknown": 412_009},
    NEWEST: {"memory": 0, "cache": 41_077_820, "redis": 6_122_304, "degraded": 210, "unknown": 101_442},
}
