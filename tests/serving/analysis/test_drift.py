"""Monitors on traffic like that of training, and on traffic that has become another."""

from functools import cache

import msgspec
import numpy as np
import pytest

from rankhouse.embedding_cache.format.score_bins import NUM_SCORE_BINS, score_bins
from rankhouse.embedding_cache.format.statistics import TrainingStatistics
from rankhouse.serving.analysis.drift import DriftDecision, DriftSpec, DriftState, watch
from rankhouse.serving.analysis.errors import AnalysisSpecError
from rankhouse.serving.analysis.spec import MetricSpec
from rankhouse.serving.analysis.summary import Summary

FEATURES = ("user", "item")
SPEC = DriftSpec(
    monitors=(
        MetricSpec("score_psi", max_value=0.1),
        MetricSpec("score_ks", max_value=0.15),
        MetricSpec("missing_features", max_increase=0.1),
        MetricSpec("unknown_ids", max_increase=0.05),
        MetricSpec("ctr", max_loss=0.3),
        MetricSpec("auc", max_loss=0.1),
        MetricSpec("calibration", max_increase=0.4),
        MetricSpec("error_rate", max_value=0.05),
    ),
    cool_down_seconds=100.0,
)


def scored(rng: np.random.Generator, num: int) -> np.ndarray:
    return 1 / (1 + np.exp(-rng.normal(-2.5, 1, num)))


@cache
def baseline() -> TrainingStatistics:
    rng = np.random.default_rng(0)
    scores = scored(rng, 16_000)
    labels = rng.random(16_000) < scores
    counts = [np.bincount(score_bins(scores[chosen]), minlength=NUM_SCORE_BINS) for chosen in (labels, ~labels)]
    rates = {"user": 0.02, "item": 0.0}
    return TrainingStatistics("valid", *counts, float(scores.sum()), 0.01, 0.02, rates, {"item": 0.04})


def traffic(num: int = 3000, **changes: float) -> Summary:
    """Requests of 4 rows, as in training but for the changes."""
    rng, summary = np.random.default_rng(1), Summary(FEATURES)
    for _ in range(num):
        scores = scored(rng, 4)
        labels = rng.random(4) < scores * changes.get("clicks", 1.0)
        answered = np.roll(scores, 1) if changes.get("shuffled") else scores
        odds = changes.get("odds", 1.0) * answered / (1 - answered)
        answered = odds / (1 + odds)
        missing = rng.binomial(4, [changes.get("user", 0.02), changes.get("item", 0.0)])
        summary.observe_answer(200, 0.01, answered, num_missing=int(missing.sum()), num_values=8, missing_F=missing)
        summary.observe_ids(int(rng.binomial(8, changes.get("unknown", 0.02))), 8)
        summary.observe_outcomes(answered, labels)
    return summary


def look(window: Summary, state: DriftState | None = None, *, now: float = 1000.0, version: str = "1") -> DriftDecision:
    return watch(SPEC, state or DriftState(), baseline(), window, version=version, now=now)


def test_traffic_like_that_of_training_fires_nothing() -> None:
    decision = look(traffic())
    assert decision.action is None
    assert decision.state == DriftState("1")
    assert {reading.outcome for reading in decision.readings} == {"pass"}, decision.readings


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"odds": 3.0}, {"score_psi", "score_ks", "calibration"}),
        ({"user": 0.5}, {"missing_features"}),
        ({"unknown": 0.2}, {"unknown_ids"}),
        ({"clicks": 0.4}, {"ctr", "calibration"}),
        ({"shuffled": 1.0}, {"auc"}),
    ],
    ids=lambda names: "+".join(sorted(names)),
)
def test_traffic_that_has_changed_fires_what_watches_it(changes: dict[str, float], names: set[str]) -> None:
    decision = look(traffic(**changes))
    assert set(decision.state.firing) == names
    assert decision.action is not None
    assert {reading.name for reading in decision.action.monitors} == names
    assert (decision.action.version, decision.action.at) == ("1", 1000.0)
    assert all(name in decision.action.reason for name in names - {"missing_features"})
    assert msgspec.json.decode(msgspec.json.encode(decision.state), type=DriftState) == decision.state


def test_one_feature_that_goes_missing_is_named() -> None:
    spec = DriftSpec(monitors=(MetricSpec("missing_features", max_increase=0.12),))
    decision = watch(spec, DriftState(), baseline(), traffic(item=0.2), version="1", now=0.0)  # 0.1 over both.
    assert decision.action is not None
    assert "the feature item is missing in 19.6%" in decision.action.reason


def test_errors_are_watched_without_a_baseline() -> None:
    summary = Summary()
    for number in range(2000):
        summary.observe_answer(500 if number % 5 == 0 else 200, 0.01)
    decision = watch(SPEC, DriftState(), None, summary, version="1", now=0.0)
    assert set(decision.state.firing) == {"error_rate"}
    reasons = [reading.reason for reading in decision.readings if reading.name == "score_psi"]
    assert "a version with training statistics" in reasons[0]


def test_a_window_of_few_requests_says_nothing() -> None:
    decision = look(traffic(100, unknown=0.9))
    assert decision.action is None
    assert "it has 100" in decision.readings[0].reason


def test_an_action_is_due_once_in_the_cool_down() -> None:
    first = look(traffic(unknown=0.2), now=1000.0)
    assert first.action is not None
    second = look(traffic(unknown=0.2), first.state, now=1099.0)
    assert second.action is None
    assert second.state.firing == {"unknown_ids": 1000.0}
    third = look(traffic(unknown=0.2), second.state, now=1100.0)
    assert third.action is not None
    assert third.state.acted_at == 1100.0


def test_a_monitor_that_fires_stops_only_when_it_is_surely_within_its_limit() -> None:
    fired = look(traffic(unknown=0.2)).state
    between = look(traffic(unknown=0.07), fired, now=1001.0)  # About as much as is allowed: it cannot be told.
    assert between.readings[3].outcome == "running"
    assert set(between.state.firing) == {"unknown_ids"}
    assert not look(traffic(unknown=0.07), DriftState("1")).state.firing
    assert not look(traffic(), between.state, now=1002.0).state.firing


def test_another_version_begins_anew_but_keeps_the_cool_down() -> None:
    fired = look(traffic(unknown=0.2), now=1000.0).state
    other = look(traffic(100), fired, now=1001.0, version="2")
    assert other.state == DriftState("2", {}, 1000.0)


def test_a_monitor_that_is_no_longer_asked_for_is_forgotten() -> None:
    fired = look(traffic(unknown=0.2)).state
    spec = DriftSpec(monitors=(MetricSpec("score_psi", max_value=0.1),))
    assert not watch(spec, fired, baseline(), traffic(100), version="1", now=2000.0).state.firing


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"monitors": (MetricSpec("rank_correlation", min_value=0.9),)}, "no monitor 'rank_correlation'"),
        ({"monitors": (MetricSpec("latency_p99", max_ratio=2.0),)}, "latency_p99 has max_ratio"),
        ({"monitors": (MetricSpec("ctr", max_loss=0.1), MetricSpec("ctr", min_value=0.1))}, "stands twice"),
        ({"alpha": 0.0}, "alpha is 0"),
        ({"min_requests": 0}, "min_requests 0"),
        ({"window_seconds": 0.0}, "window_seconds is 0"),
        ({"cool_down_seconds": -1.0}, "cool_down_seconds -1"),
    ],
    ids=str,
)
def test_what_cannot_be_watched_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(AnalysisSpecError, match=message):
        DriftSpec(**values)
