"""Whether live traffic is still what the stable version was trained for, and the event that sets off a retraining.

What is watched stands in the refresh policy; what the monitors remember (who fires, when something was done last) in
the state store, so that a conductor that dies does not set the same retraining off again.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rankhouse.embedding_cache.format.errors import FormatError
from rankhouse.embedding_cache.format.statistics import TrainingStatistics
from rankhouse.serving.admin.judging import merged_summaries
from rankhouse.serving.admin.subscriptions import DRIFTED
from rankhouse.serving.analysis.drift import DriftAction, DriftSpec, DriftState, watch
from rankhouse.serving.analysis.errors import AnalysisError
from rankhouse.serving.analysis.spec import MetricVerdict
from rankhouse.serving.analysis.summary import Summary
from rankhouse.serving.analysis.window import SummaryWindow
from rankhouse.serving.control.model_state import Change, Event, ModelState
from rankhouse.serving.control.rollout_spec import parse_metric
from rankhouse.serving.control.spec_section import Section
from rankhouse.serving.control.state_store import StateStore, summary_key
from rankhouse.serving.errors import RolloutSpecError

_KEYS = ("monitors", "window", "min_requests", "alpha", "cool_down")
# Between two looks; a 24th of the window where that is less.
_INTERVAL_SECONDS = 30.0
# Events among which one is looked for that was just committed.
_RECENT = 100
_log = logging.getLogger(__name__)


class DriftFindings(msgspec.Struct, frozen=True):
    """What the monitors have found.

    Attributes:
        version: The version that was watched.
        at: When, in unix seconds.
        num_requests: Its requests in the window.
        state: Who fires, and when something was done last.
        readings: What each monitor has found; `fail` is beyond the limit.
    """

    version: str
    at: float
    num_requests: int
    state: DriftState
    readings: tuple[MetricVerdict, ...] = ()


class Drifting:
    """Watches a model's stable version. Blocks; used from one thread at a time.

    Args:
        store: Holds the summaries and what the monitors remember.
        model: The model's name.
        baseline: Reads the training statistics of a version; None: it has none. May raise FormatError.
    """

    def __init__(self, store: StateStore, model: str, baseline: Callable[[str], TrainingStatistics | None]) -> None:
        self._store = store
        self._model = model
        self._baseline = baseline
        self._baselines: dict[str, TrainingStatistics | None] = {}
        self._document: dict[str, Any] | None = None
        self._spec: DriftSpec | None = None
        self._version = ""
        self._window = SummaryWindow(1.0)
        self._looked_at = float("-inf")
        self._undone: DriftFindings | None = None

    def look(self, state: ModelState, now: float) -> Change | None:
        """Looks, if it is time.

        Returns:
            That traffic has drifted and something is to be done about it: the state as it is, with the event. When it
            is committed, `done` is called; else the next look gives it again.

        Raises:
            StateStoreError: The store is away.
        """
        spec = self._spec_of(state)
        if spec is None or state.stable is None or state.stable != self._version:
            self._begin(state.stable or "", spec)
        if spec is None or state.stable is None:
            return None
        if 0 <= now - self._looked_at < min(_INTERVAL_SECONDS, spec.window_seconds / 24):
            return None
        self._looked_at = now
        window = self._window.advance(now, self._total(state.stable))
        before = read_drift(self._store, self._model)
        remembered = DriftState() if before is None else before.state
        statistics = self._statistics(state.stable)
        decision = watch(spec, remembered, statistics, window, version=state.stable, now=now)
        if decision.action is not None and (acted_at := self._unnoted(remembered)) is not None:
            remembered = msgspec.structs.replace(remembered, acted_at=acted_at)
            decision = watch(spec, remembered, statistics, window, version=state.stable, now=now)
        found = DriftFindings(state.stable, now, window.num_requests, decision.state, decision.readings)
        if decision.action is None:
            self._keep(found)
            return None
        self._undone = found
        return Change(state, (_event(self._model, decision.action),))

    def done(self) -> None:
        """Takes note that the last event was committed: the cool-down begins."""
        if self._undone is not None:
            self._keep(self._undone)
            self._undone = None

    def _unnoted(self, remembered: DriftState) -> float | None:
        """When the last event was committed, where nobody came to note it: a crash or a full store was faster."""
        newest = next((each for each in self._store.history(self._model, limit=_RECENT) if each.kind == DRIFTED), None)
        is_noted = newest is None or (remembered.acted_at is not None and newest.at <= remembered.acted_at)
        return None if is_noted or newest is None else newest.at

    def _spec_of(self, state: ModelState) -> DriftSpec | None:
        if state.policy.drift != self._document:
            self._document, self._version = state.policy.drift, ""
            try:
                self._spec = None if self._document is None else parse_drift(self._document)
            except RolloutSpecError as error:
                self._spec = None
                _log.error("drift is not watched: %s", error)
        return self._spec

    def _begin(self, version: str, spec: DriftSpec | None) -> None:
        self._version, self._looked_at = version, float("-inf")
        self._window = SummaryWindow(1.0 if spec is None else spec.window_seconds)

    def _total(self, version: str) -> Summary:
        """All that the version has answered as the stable one, on all replicas."""
        key = summary_key("", version, "stable")
        published = [each for each in self._store.summaries(self._model) if each.key == key]
        try:
            return merged_summaries(published).get(key, Summary())
        except AnalysisError as error:
            _log.error("the summaries of %s cannot be merged: %s", version, error)
            return Summary()

    def _statistics(self, version: str) -> TrainingStatistics | None:
        if version not in self._baselines:
            try:
                self._baselines = {version: self._baseline(version)}
            except FormatError as error:
                _log.warning("the training statistics of %s cannot be read: %s", version, error)
                return None
        return self._baselines[version]

    def _keep(self, found: DriftFindings) -> None:
        self._store.put_value(_name(self._model), msgspec.json.encode(found))


def read_drift(store: StateStore, model: str) -> DriftFindings | None:
    """What the monitors have found; None if nothing is watched yet. Blocks.

    Raises:
        StateStoreError: The store is away.
    """
    content = store.get_value(_name(model))
    return None if content is None else msgspec.json.decode(content, type=DriftFindings)


def parse_drift(document: Mapping[str, Any]) -> DriftSpec:
    """Reads what is watched of a policy's `drift`.

    Raises:
        RolloutSpecError: A key or value does not work.
    """
    section, defaults = Section(document, "drift", _KEYS), DriftSpec()
    monitors = tuple(parse_metric(item, f"drift.monitors[{i}]") for i, item in enumerate(section.items("monitors")))
    if not monitors:
        raise RolloutSpecError("drift.monitors is empty; give one metric or more, or leave drift out")
    try:
        return DriftSpec(
            monitors=monitors,
            window_seconds=section.duration("window", defaults.window_seconds),
            min_requests=int(section.number("min_requests", defaults.min_requests, low=1, high=1e12)),
            alpha=section.number("alpha", defaults.alpha, low=1e-9, high=0.5),
            cool_down_seconds=section.duration("cool_down", defaults.cool_down_seconds),
        )
    except AnalysisError as exc:
        raise RolloutSpecError(f"drift: {exc}") from exc


def _event(model: str, action: DriftAction) -> Event:
    names = ", ".join(dict.fromkeys(monitor.name for monitor in action.monitors))
    return Event(
        number=0,
        at=action.at,
        actor="conductor",
        model=model,
        kind=DRIFTED,
        rollout=None,
        version=action.version,
        before="as in training",
        after=names,
        reason=action.reason,
    )


def _name(model: str) -> str:
    return f"drift/{model}"
