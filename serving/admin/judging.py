"""What the analysis says of each candidate now: the replicas' summaries, merged, and compared with the stable ones.

Only observations of the step that a rollout is in are compared: the weights differ by step, and mixed they would let
the time of day decide. Summaries are cumulative, so what they were at the step's start is kept in the state store, and
taken off. Verdicts and how they moved are kept there too, for readers: a conductor that dies takes nothing with it.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from rankhouse.serving.admin.judging_process import Case, JudgingProcess
from rankhouse.serving.analysis.errors import SummaryError
from rankhouse.serving.analysis.spec import AnalysisSpec, Verdict
from rankhouse.serving.analysis.summary import Summary
from rankhouse.serving.control.model_state import ModelState, Rollout, verdict_key
from rankhouse.serving.control.state_store import PublishedSummary, StateStore, summary_key

# Values of old rollouts make way for new ones, so that they do not grow without end.
_NUM_SLOTS = 32
_MAX_POINTS = 240
_SHORTEST_SECONDS = 2.0  # between points
# How long a step's start waits for every replica to publish what it saw before it.
_SETTLE_SECONDS = 5.0
_log = logging.getLogger(__name__)


class StepStart(msgspec.Struct, frozen=True):
    """What had been counted when a rollout's step began: summaries by their keys."""

    rollout: str
    step: int
    summaries: dict[str, bytes]


class Band(msgspec.Struct, frozen=True):
    """A metric at one time: both versions, and the confidence interval of what is compared with the limit."""

    stable: float | None
    candidate: float | None
    difference: float | None
    low: float | None
    high: float | None


class Point(msgspec.Struct, frozen=True):
    """The analysis at one time: by candidate and metric."""

    at: float
    step: int
    weight: float
    bands: dict[str, dict[str, Band]]


class Findings(msgspec.Struct, frozen=True):
    """What the analysis says of a rollout: the last verdict on each candidate, as plain data, and when it said so."""

    rollout: str
    at: float
    verdicts: dict[str, Any]


class Course(msgspec.Struct, frozen=True):
    """How a rollout's metrics moved, the oldest first; thinned as it grows. Kept apart, as it is large."""

    rollout: str
    points: list[Point]


class Judge:
    """Judges the active rollouts of a model. Blocks, but not for the judgement; used from one thread at a time.

    Args:
        store: Holds the summaries and what is found.
        model: The model's name.
        interval_seconds: Between two looks at the summaries.
    """

    def __init__(self, store: StateStore, model: str, *, interval_seconds: float) -> None:
        self._store = store
        self._model = model
        self._interval_seconds = interval_seconds
        self._process = JudgingProcess()
        self._looked_at = float("-inf")

    def verdicts(self, state: ModelState, now: float) -> dict[str, Verdict]:
        """The verdicts that are there: on each candidate that has requests and whose rollout has an analysis.

        The judgement is another process's. What it has found in the meantime is taken; when it is not busy, and the
        time has come, it is given what the summaries say now. A verdict is of one step, and its key says so.

        Raises:
            StateStoreError: The store is away.
        """
        judged = {each.id: each for each in state.rollouts if each.started_at is not None and each.spec.analysis}
        is_due = not 0 <= now - self._looked_at < self._interval_seconds
        if judged and is_due and not self._process.is_busy:
            self._looked_at = now
            self._begin(list(judged.values()), state.stable, now)
        found: dict[str, Verdict] = {}
        for key, result in self._process.results().items():
            if isinstance(result, Verdict):
                found[key] = result
            else:
                _log.error("%s cannot be judged: %s", key, result)
        for rollout in judged.values():
            self._keep(rollout, found, now)
        return found

    @property
    def is_busy(self) -> bool:
        """Whether a judgement is under way."""
        return self._process.is_busy

    def close(self) -> None:
        """Ends the process that judges."""
        self._process.close()

    def _begin(self, rollouts: Sequence[Rollout], stable: str | None, now: float) -> None:
        published = self._store.summaries(self._model)
        cases: dict[str, Case] = {}
        for rollout in rollouts:
            own = [each for each in published if each.key.startswith(f"{rollout.id}/")]
            cases |= self._cases(rollout, stable, own, now)
        if cases:
            self._process.start(cases)

    def _cases(
        self, rollout: Rollout, stable: str | None, published: Sequence[PublishedSummary], now: float
    ) -> dict[str, Case]:
        merged = merged_summaries(published)
        try:
            window = self._since_start(rollout, published, merged, now)
        except SummaryError as error:
            _log.warning("rollout %s: the step's observations are counted anew: %s", rollout.id, error)
            self._keep_start(rollout, merged)
            return {}
        if window is None:
            return {}
        contents = {key: summary.to_bytes() for key, summary in window.items()}
        nothing = next((Summary(each.features) for each in window.values()), Summary()).to_bytes()
        elapsed = (now if rollout.paused_at is None else rollout.paused_at) - rollout.step_since
        return {
            verdict_key(rollout.id, rollout.step, version): Case(
                spec=_spec_of_step(rollout),
                # Of the version that is stable now, should another one have been at the step's start.
                stable=contents.get(summary_key(rollout.id, stable or "", "stable"), nothing),
                candidate=contents.get(summary_key(rollout.id, version, "candidate"), nothing),
                shadow=contents.get(summary_key(rollout.id, version, "shadow")),
                elapsed_seconds=max(elapsed, 0.0),
                num_analyses=len(rollout.spec.steps) * len(rollout.spec.candidates),
            )
            for version in rollout.candidates
        }

    def _since_start(
        self, rollout: Rollout, published: Sequence[PublishedSummary], merged: Mapping[str, Summary], now: float
    ) -> dict[str, Summary] | None:
        """What was counted in this step; None while that is not known yet."""
        if rollout.step == 0:
            return dict(merged)
        content = self._store.get_value(self._name("step", rollout))
        start = None if content is None else msgspec.msgpack.decode(content, type=StepStart)
        if start is None or (start.rollout, start.step) != (rollout.id, rollout.step):
            is_settled = all(each.at >= rollout.step_since for each in published)
            if is_settled or now - rollout.step_since > _SETTLE_SECONDS:
                self._keep_start(rollout, merged)
            return None
        before = {key: Summary.from_bytes(content) for key, content in start.summaries.items()}
        return {key: summary.since(before[key]) if key in before else summary for key, summary in merged.items()}

    def _keep_start(self, rollout: Rollout, merged: Mapping[str, Summary]) -> None:
        start = StepStart(rollout.id, rollout.step, {key: summary.to_bytes() for key, summary in merged.items()})
        self._store.put_value(self._name("step", rollout), msgspec.msgpack.encode(start))

    def _keep(self, rollout: Rollout, found: Mapping[str, Verdict], now: float) -> None:
        keys = {version: verdict_key(rollout.id, rollout.step, version) for version in rollout.candidates}
        verdicts = {version: found[key] for version, key in keys.items() if key in found}
        if not verdicts:
            return
        plain = {name: msgspec.to_builtins(each) for name, each in verdicts.items()}
        self._store.put_value(self._name("findings", rollout), msgspec.json.encode(Findings(rollout.id, now, plain)))
        point = Point(now, rollout.step, rollout.weight, {name: _bands(each) for name, each in verdicts.items()})
        before = read_course(self._store, self._model, rollout.id)
        points = thinned(before, point)
        if points != before:
            course = Course(rollout.id, points)
            self._store.put_value(self._name("course", rollout), msgspec.json.encode(course))

    def _name(self, kind: str, rollout: Rollout) -> str:
        return f"{kind}/{self._model}/{_slot(rollout.id)}"


def read_findings(store: StateStore, model: str, rollout_id: str) -> Findings | None:
    """What the analysis has found of a rollout; None if nothing, or too many rollouts came after it. Blocks."""
    content = store.get_value(f"findings/{model}/{_slot(rollout_id)}")
    if content is None:
        return None
    findings = msgspec.json.decode(content, type=Findings)
    return findings if findings.rollout == rollout_id else None


def read_course(store: StateStore, model: str, rollout_id: str) -> list[Point]:
    """How a rollout's metrics moved, the oldest first; empty where nothing is known any more. Blocks."""
    content = store.get_value(f"course/{model}/{_slot(rollout_id)}")
    course = None if content is None else msgspec.json.decode(content, type=Course)
    return course.points if course is not None and course.rollout == rollout_id else []


def merged_summaries(published: Iterable[PublishedSummary]) -> dict[str, Summary]:
    """All replicas' summaries together, by key; one that cannot be read is left out, and said in the log."""
    merged: dict[str, Summary] = {}
    for each in published:
        try:
            summary = Summary.from_bytes(each.content)
            merged[each.key] = merged[each.key].merge(summary) if each.key in merged else summary
        except SummaryError as error:
            _log.error("the summary %s of replica %s is left out: %s", each.key, each.replica, error)
    return merged


def thinned(points: Sequence[Point], point: Point) -> list[Point]:
    """Adds a point, unless the last one is too near; when there are too many, every other one goes."""
    span = point.at - points[0].at if points else 0.0
    if points and point.at - points[-1].at < max(_SHORTEST_SECONDS, span / _MAX_POINTS):
        return list(points)
    grown = [*points, point]
    return grown if len(grown) <= _MAX_POINTS else [*grown[:-1:2], grown[-1]]


def _spec_of_step(rollout: Rollout) -> AnalysisSpec:
    spec, step = rollout.spec.analysis, rollout.spec.steps[rollout.step]
    assert spec is not None
    return spec if step.analysis_seconds is None else msgspec.structs.replace(spec, max_seconds=step.analysis_seconds)


def _bands(verdict: Verdict) -> dict[str, Band]:
    return {
        metric.name: Band(metric.stable, metric.candidate, metric.difference, metric.low, metric.high)
        for metric in verdict.metrics
    }


def _slot(rollout_id: str) -> int:
    return int(rollout_id.lstrip("r")) % _NUM_SLOTS
