"""Verdicts on arms whose truth is known."""

import msgspec
import numpy as np
import pytest

from rankhouse.serving.analysis.judgement import judge
from rankhouse.serving.analysis.spec import AnalysisSpec, MetricSpec, MetricVerdict, Verdict
from rankhouse.serving.analysis.summary import Summary

from .arms import Truth, arm

SPEC = AnalysisSpec(
    metrics=(
        MetricSpec("error_rate", max_increase=0.01),
        MetricSpec("refusal_rate", max_increase=0.01),
        MetricSpec("degraded", max_value=0.01),
        MetricSpec("latency_p50", max_ratio=1.2),
        MetricSpec("latency_p99", max_ratio=1.5),
        MetricSpec("missing_features", max_increase=0.03),
        MetricSpec("unknown_ids", max_ratio=3.0),
        MetricSpec("score_psi", max_value=0.1),
        MetricSpec("score_ks", max_value=0.12),
        MetricSpec("rank_correlation", min_value=0.9),
        MetricSpec("top_k_overlap", min_value=0.8),
        MetricSpec("ctr", max_loss=0.1),
        MetricSpec("auc", max_loss=0.05),
        MetricSpec("calibration", max_increase=0.2),
    ),
    min_requests=500,
)
NUM_CANDIDATE, NUM_STABLE = 5000, 20_000


def shadow_of(noise: float, num: int = 1500) -> Summary:
    rng, summary = np.random.default_rng(10), Summary()
    for _ in range(num):
        log_odds = rng.normal(-3, 1, 16)
        stable, candidate = (1 / (1 + np.exp(-log_odds - extra)) for extra in (0, noise * rng.normal(size=16)))
        summary.observe_pair(stable, candidate, 5)
    return summary


@pytest.fixture(scope="module")
def stable() -> Summary:
    return arm(Truth(), NUM_STABLE, np.random.default_rng(0))


def by_name(verdict: Verdict) -> dict[str, MetricVerdict]:
    return {metric.name: metric for metric in verdict.metrics}


def test_an_equal_candidate_passes_in_every_metric(stable: Summary) -> None:
    candidate = arm(Truth(), NUM_CANDIDATE, np.random.default_rng(1))
    verdict = judge(SPEC, stable, candidate, shadow_of(0.05))
    assert verdict.outcome == "pass", verdict
    for metric in verdict.metrics:
        assert metric.outcome == "pass"
        assert metric.low is not None
        assert metric.high is not None
        assert metric.difference is not None
        assert metric.low <= metric.difference <= metric.high
    assert msgspec.json.decode(msgspec.json.encode(verdict), type=Verdict) == verdict


@pytest.mark.parametrize(
    ("truth", "names"),
    [
        (Truth(error_rate=0.04), {"error_rate"}),
        (Truth(slowness=2.2), {"latency_p50", "latency_p99"}),
        (Truth(ctr_factor=0.7), {"ctr"}),
        (Truth(order_noise=2.0), {"auc"}),
        (Truth(score_factor=2.0), {"calibration", "score_psi", "score_ks"}),
    ],
    ids=["errors", "slow", "fewer clicks", "shuffled", "miscalibrated"],
)
def test_a_worse_candidate_fails_where_it_is_worse(stable: Summary, truth: Truth, names: set[str]) -> None:
    candidate = arm(truth, NUM_CANDIDATE, np.random.default_rng(2))
    verdict = judge(SPEC, stable, candidate, shadow_of(0.05))
    assert verdict.outcome == "fail"
    failed = {metric.name for metric in verdict.metrics if metric.outcome == "fail"}
    assert names <= failed
    for name in failed:
        assert name in verdict.reason
    assert "error_rate" not in failed - names


def test_a_shadow_of_another_order_fails(stable: Summary) -> None:
    metrics = (MetricSpec("rank_correlation", min_value=0.9), MetricSpec("top_k_overlap", min_value=0.8))
    verdict = judge(AnalysisSpec(metrics=metrics), stable, Summary(), shadow_of(3.0))
    assert verdict.outcome == "fail"  # Before it has answered anyone.
    assert {metric.outcome for metric in verdict.metrics} == {"fail"}


def test_a_shadow_of_the_same_order_passes_without_answering_anyone(stable: Summary) -> None:
    metrics = (MetricSpec("rank_correlation", min_value=0.9), MetricSpec("top_k_overlap", min_value=0.8))
    spec = AnalysisSpec(metrics=metrics)
    assert judge(spec, stable, Summary(), shadow_of(0.05)).outcome == "pass"
    assert judge(spec, stable, Summary(), shadow_of(0.05, num=900)).outcome == "running"


def test_a_candidate_that_only_fails_is_seen_after_a_handful_of_requests(stable: Summary) -> None:
    candidate = Summary()
    for _ in range(5):
        candidate.observe_answer(500, 0.001)
    assert judge(SPEC, stable, candidate).outcome == "fail"


def test_a_candidate_that_refuses_callers_fails(stable: Summary) -> None:
    candidate = Summary()
    for _ in range(8):
        candidate.observe_answer(400, 0.001)
    assert by_name(judge(SPEC, stable, candidate))["refusal_rate"].outcome == "fail"


def test_no_verdict_before_enough_requests(stable: Summary) -> None:
    candidate = arm(Truth(), 400, np.random.default_rng(3))
    spec = AnalysisSpec(metrics=(MetricSpec("error_rate", max_increase=0.5),), min_requests=500)
    verdict = judge(spec, stable, candidate)
    assert verdict.outcome == "running"
    assert "of 500 requests" in verdict.reason
    assert judge(msgspec.structs.replace(spec, min_requests=100), stable, candidate).outcome == "pass"


def test_a_limit_that_cannot_be_told_is_inconclusive_when_the_time_is_over(stable: Summary) -> None:
    candidate = arm(Truth(), 600, np.random.default_rng(4))
    spec = AnalysisSpec(metrics=(MetricSpec("ctr", max_loss=0.01),), min_requests=500, max_seconds=60)
    assert judge(spec, stable, candidate, elapsed_seconds=59).outcome == "running"
    verdict = judge(spec, stable, candidate, elapsed_seconds=60)
    assert verdict.outcome == "inconclusive"
    assert "ctr" in verdict.reason
    assert verdict.metrics[0].outcome == "inconclusive"


def test_what_is_missing_is_said() -> None:
    verdict = by_name(judge(SPEC, Summary(), Summary()))
    assert "observations of the stable version" in verdict["error_rate"].reason
    assert "answers of the stable version" in verdict["latency_p99"].reason
    assert "shadow" in verdict["rank_correlation"].reason
    assert "feedback" in verdict["ctr"].reason
    assert "requests with scores" in verdict["score_psi"].reason
    assert {metric.outcome for metric in verdict.values()} == {"running"}


def test_outcomes_of_another_event_do_not_count(stable: Summary) -> None:
    candidate = arm(Truth(), 1000, np.random.default_rng(5))
    spec = AnalysisSpec(metrics=(MetricSpec("ctr", max_loss=0.5, event="order"),))
    assert "'order'" in judge(spec, stable, candidate).metrics[0].reason


def test_a_dry_run_decides_nothing(stable: Summary) -> None:
    candidate = arm(Truth(ctr_factor=0.5), NUM_CANDIDATE, np.random.default_rng(6))
    metrics = (MetricSpec("error_rate", max_increase=0.05), MetricSpec("ctr", max_loss=0.1, dry_run=True))
    verdict = judge(AnalysisSpec(metrics=metrics), stable, candidate)
    assert verdict.outcome == "pass"
    assert [(metric.outcome, metric.dry_run) for metric in verdict.metrics] == [("pass", False), ("fail", True)]


def test_absolute_limits_need_no_stable_version() -> None:
    candidate = arm(Truth(), NUM_CANDIDATE, np.random.default_rng(7))
    metrics = (
        MetricSpec("error_rate", max_value=0.01),
        MetricSpec("latency_p99", max_value=0.05),
        MetricSpec("unknown_ids", max_value=0.2),
    )
    assert judge(AnalysisSpec(metrics=metrics), Summary(), candidate).outcome == "pass"
    slow = (MetricSpec("latency_p50", max_value=0.001),)
    assert judge(AnalysisSpec(metrics=slow), Summary(), candidate).outcome == "fail"


def test_absolute_limits_of_outcomes(stable: Summary) -> None:
    candidate = arm(Truth(), NUM_CANDIDATE, np.random.default_rng(8))
    limits = {"ctr": ("min_value", 0.03), "auc": ("min_value", 0.6), "calibration": ("max_value", 0.2)}
    metrics = tuple(MetricSpec(name, **{kind: limit}) for name, (kind, limit) in limits.items())
    assert judge(AnalysisSpec(metrics=metrics), stable, candidate).outcome == "pass"
    wrong = {"ctr": ("min_value", 0.2), "auc": ("min_value", 0.9)}
    metrics = tuple(MetricSpec(name, **{kind: limit}) for name, (kind, limit) in wrong.items())
    verdict = judge(AnalysisSpec(metrics=metrics), stable, candidate)
    assert [metric.outcome for metric in verdict.metrics] == ["fail", "fail"]


def test_scores_in_the_wrong_order_of_all_are_an_auc_of_0(stable: Summary) -> None:
    candidate = Summary()
    for _ in range(100):
        candidate.observe_answer(200, 0.004, np.array([0.9, 0.1]))
        candidate.observe_outcomes(np.array([0.9, 0.1]), np.array([0, 1]))
    spec = AnalysisSpec(metrics=(MetricSpec("auc", max_loss=0.1),), min_requests=50)
    assert judge(spec, stable, candidate).outcome == "fail"


def test_more_analyses_share_alpha(stable: Summary) -> None:
    candidate = arm(Truth(), NUM_CANDIDATE, np.random.default_rng(9))
    one, five = (judge(SPEC, stable, candidate, num_analyses=number) for number in (1, 5))
    for narrow, wide in zip(one.metrics, five.metrics, strict=True):
        if narrow.low is not None and wide.low is not None:
            assert wide.low <= narrow.low
