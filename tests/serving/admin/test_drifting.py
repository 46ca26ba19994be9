"""Drift, from published summaries in a real store to the event that sets off a retraining."""

from collections.abc import Iterator

import httpx
import msgspec
import numpy as np
import pytest

from rankhouse.embedding_cache.format.errors import StorageError
from rankhouse.embedding_cache.format.score_bins import NUM_SCORE_BINS, score_bins
from rankhouse.embedding_cache.format.statistics import TrainingStatistics
from rankhouse.serving.admin.conductor import Conductor
from rankhouse.serving.admin.drifting import Drifting, parse_drift, read_drift
from rankhouse.serving.analysis.summary import Summary
from rankhouse.serving.control.model_state import Change, RefreshPolicy
from rankhouse.serving.control.state_store import StateStore, summary_key
from rankhouse.serving.errors import RolloutSpecError
from tests.serving.admin.world import MODEL, V1, V2, has_stable

DRIFT = {
    "monitors": [{"name": "score_psi", "max_value": 0.1}, {"name": "error_rate", "max_value": 0.1}],
    "window": "10m",
    "min_requests": 200,
    "cool_down": "1h",
}
POLICY = RefreshPolicy(drift=DRIFT)


def scored(num: int, mean: float, seed: int = 0) -> np.ndarray:
    return 1 / (1 + np.exp(-np.random.default_rng(seed).normal(mean, 1, num)))


def baseline(version: str) -> TrainingStatistics | None:
    counts = np.bincount(score_bins(scored(10_000, -3.0)), minlength=NUM_SCORE_BINS)
    return TrainingStatistics("valid", np.zeros(NUM_SCORE_BINS, np.int64), counts, 500.0, 0.0, 0.0)


class Traffic:
    """What a replica has answered with the stable version, all in all."""

    def __init__(self, store: StateStore, version: str = V1) -> None:
        self._store, self._key, self._summary = store, summary_key("", version, "stable"), Summary()
        self.answer(1)

    def answer(self, num: int, mean: float = -3.0) -> None:
        for scores in scored(4 * num, mean, seed=num).reshape(num, 4):
            self._summary.observe_answer(200, 0.01, scores)
        self._store.publish_summaries("one", MODEL, {self._key: self._summary.to_bytes()})


@pytest.fixture
def conductor(store: StateStore) -> Iterator[Conductor]:
    has_stable(store, policy=POLICY)
    yield Conductor(store, MODEL, replica="one", baseline=baseline)
    store.release_lease(f"conductor/{MODEL}", "one")


def events(store: StateStore) -> list[tuple[str, str | None, str]]:
    return [(event.kind, event.version, event.after) for event in store.history(MODEL) if event.kind == "drifted"]


def test_traffic_like_that_of_training_says_nothing(store: StateStore, conductor: Conductor) -> None:
    traffic = Traffic(store)
    assert conductor.round(1000.0)
    traffic.answer(1500)
    assert conductor.round(1060.0)
    found = read_drift(store, MODEL)
    assert found is not None
    assert (found.version, found.at, found.num_requests) == (V1, 1060.0, 1500)
    assert [reading.outcome for reading in found.readings] == ["pass", "pass"]
    assert not events(store)


def test_other_traffic_is_an_event_once_in_the_cool_down(store: StateStore, conductor: Conductor) -> None:
    traffic = Traffic(store)
    conductor.round(1000.0)
    traffic.answer(1500, mean=-1.0)
    conductor.round(1060.0)
    assert events(store) == [("drifted", V1, "score_psi")]
    (event,) = [event for event in store.history(MODEL) if event.kind == "drifted"]
    assert "has drifted" in event.reason
    conductor.round(1200.0)
    assert len(events(store)) == 1
    # Another replica takes over, and does not begin anew.
    store.release_lease(f"conductor/{MODEL}", "one")
    other = Conductor(store, MODEL, replica="two", baseline=baseline)
    other.round(1300.0)
    traffic.answer(1000, mean=-1.0)
    other.round(1400.0)
    assert len(events(store)) == 1
    traffic.answer(1100, mean=-1.0)
    other.round(4700.0)
    assert len(events(store)) == 2
    store.release_lease(f"conductor/{MODEL}", "two")


def test_an_event_that_was_not_committed_comes_again(store: StateStore) -> None:
    has_stable(store, policy=POLICY)
    traffic, state = Traffic(store), store.read(MODEL).state
    drifting = Drifting(store, MODEL, baseline)
    assert drifting.look(state, 1000.0) is None
    traffic.answer(1500, mean=-1.0)
    first = drifting.look(state, 1060.0)
    assert isinstance(first, Change)
    assert drifting.look(state, 1061.0) is None  # It is not time yet.
    assert drifting.look(state, 1100.0) is not None
    drifting.done()
    assert drifting.look(state, 1200.0) is None


def test_an_event_that_was_committed_and_not_noted_begins_the_cool_down(store: StateStore) -> None:
    """The process died in between, or the store took no more."""
    has_stable(store, policy=POLICY)
    traffic, stored = Traffic(store), store.read(MODEL)
    dying = Drifting(store, MODEL, baseline)
    dying.look(stored.state, 1000.0)
    traffic.answer(1500, mean=-1.0)
    change = dying.look(stored.state, 1060.0)
    assert change is not None
    store.commit(change.state, expected=stored.revision, events=change.events)
    other = Drifting(store, MODEL, baseline)
    for drifting, first_look in ((dying, 1100.0), (other, 1200.0)):
        assert drifting.look(stored.state, first_look) is None
        traffic.answer(1500, mean=-1.0)
        assert drifting.look(stored.state, first_look + 60.0) is None
    found = read_drift(store, MODEL)
    assert found is not None
    assert found.state.acted_at == 1060.0
    traffic.answer(1500, mean=-1.0)
    assert other.look(stored.state, 1060.0 + 3600.0) is not None


def test_another_stable_version_begins_anew(store: StateStore, conductor: Conductor) -> None:
    traffic = Traffic(store)
    conductor.round(1000.0)
    traffic.answer(1500, mean=-1.0)
    stored = store.read(MODEL)
    assert stored.state.stable == V1
    other = Traffic(store, V2)
    drifting = Drifting(store, MODEL, baseline)
    state = msgspec.structs.replace(stored.state, stable=V2)
    assert drifting.look(stored.state, 1000.0) is None
    assert drifting.look(state, 1060.0) is None
    other.answer(1500)
    assert drifting.look(state, 1120.0) is None
    found = read_drift(store, MODEL)
    assert found is not None
    assert (found.version, found.num_requests) == (V2, 1500)


def test_statistics_that_cannot_be_read_are_tried_again(store: StateStore, caplog: pytest.LogCaptureFixture) -> None:
    has_stable(store, policy=POLICY)
    traffic, state = Traffic(store), store.read(MODEL).state
    answers = iter([StorageError("the bucket is away"), baseline(V1)])

    def reading(version: str) -> TrainingStatistics | None:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    drifting = Drifting(store, MODEL, reading)
    drifting.look(state, 1000.0)
    assert "the bucket is away" in caplog.text
    traffic.answer(1500, mean=-1.0)
    assert drifting.look(state, 1060.0) is not None


def test_no_policy_watches_nothing(store: StateStore) -> None:
    has_stable(store)
    Traffic(store)
    conductor = Conductor(store, MODEL, replica="one", baseline=baseline)
    conductor.round(1000.0)
    assert read_drift(store, MODEL) is None


def test_a_policy_of_another_release_is_said_and_watches_nothing(
    store: StateStore, caplog: pytest.LogCaptureFixture
) -> None:
    has_stable(store, policy=RefreshPolicy(drift={"monitors": [{"name": "of the future", "max_value": 1}]}))
    conductor = Conductor(store, MODEL, replica="one", baseline=baseline)
    conductor.round(1000.0)
    assert "drift is not watched" in caplog.text
    assert read_drift(store, MODEL) is None


def test_durations_and_monitors_are_read() -> None:
    spec = parse_drift(DRIFT)
    assert (spec.window_seconds, spec.cool_down_seconds, spec.min_requests) == (600.0, 3600.0, 200)
    assert [monitor.name for monitor in spec.monitors] == ["score_psi", "error_rate"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"monitors": []}, "monitors is empty"),
        ({"windows": "1h"}, "did you mean window"),
        ({"window": "soon"}, "drift.window"),
        ({"monitors": [{"name": "score_pssi", "max_value": 0.1}]}, "did you mean score_psi"),
        ({"monitors": [{"name": "latency_p99", "max_ratio": 2}]}, "versions hold no such statistic"),
        ({"alpha": 2}, "drift.alpha"),
    ],
    ids=str,
)
def test_what_cannot_be_watched_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(RolloutSpecError, match=message):
        parse_drift({**DRIFT, **change})


def test_the_port_refuses_a_policy_whose_drift_does_not_work(client: httpx.Client) -> None:
    policy = {"admit": "direct", "drift": {"monitors": [{"name": "ctrr", "max_loss": 0.1}]}}
    answer = client.put("/refresh/policy", json={"policy": policy})
    assert answer.status_code == 422, answer.text
    assert "did you mean ctr" in answer.text
    answer = client.put("/refresh/policy", json={"policy": {"admit": "direct", "drift": DRIFT}})
    assert answer.status_code == 200, answer.text
