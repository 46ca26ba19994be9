"""The analysis on simulated rollouts: how often it is wrong, and whether it sees what is worse in time."""

import numpy as np
import pytest
from scipy import stats

from benchmarks.rollout_analysis import ALPHA, CANDIDATES, NOT_WORSE, SPEC, alarm_sheet, rollout_sheet
from benchmarks.support.rollout_analysis.picture import draw
from benchmarks.support.rollout_analysis.simulation import (
    Alarms,
    Rollout,
    false_alarms,
    looks_until,
    roll_out,
    share_by,
)
from benchmarks.support.rollout_analysis.traffic import STABLE, Version, requests, shadow_pairs
from rankhouse.serving.analysis.rank_agreement import spearman
from rankhouse.serving.analysis.summary import Summary

NUM_EQUAL = 40


def test_equal_candidates_give_no_more_false_alarms_than_stated() -> None:
    looks = looks_until(5000, first=500)
    alarms = [false_alarms(NOT_WORSE, ALPHA, looks, seed) for seed in range(NUM_EQUAL)]
    allowed = stats.binom.ppf(1 - 1e-4, NUM_EQUAL, ALPHA)
    assert sum(one.analysis is not None for one in alarms) <= allowed
    for metric in NOT_WORSE:
        assert sum(metric.name in one.metrics for one in alarms) <= allowed, metric.name
    # What a test for one look does at ten looks.
    assert sum(one.naive is not None for one in alarms) >= 4


@pytest.mark.parametrize(
    ("name", "num_requests", "metric"),
    [
        ("clicks -10 %", 25_000, "ctr"),
        ("clicks -20 %", 6000, "ctr"),
        ("errors 0.1 -> 2 %", 2500, "error_rate"),
        ("all 30 % slower", 3000, "latency_p50"),
        ("slow tail 0.5 -> 3 %", 3000, "latency_p99"),
        ("odds of scores x 1.5", 5000, "calibration"),
        ("shuffled ranking", 500, "rank_correlation"),
    ],
)
def test_worse_candidates_are_rolled_back_in_time(name: str, num_requests: int, metric: str) -> None:
    for seed in range(3):
        ended = roll_out(SPEC, CANDIDATES[name], looks_until(num_requests), seed)
        assert ended.outcome == "fail"
        assert metric in ended.failed


def test_equal_candidates_are_promoted() -> None:
    for seed in range(2):
        assert roll_out(SPEC, STABLE, looks_until(150_000, first=3000), seed).outcome == "pass"


def test_a_candidate_that_cannot_be_told_stays_undecided() -> None:
    assert roll_out(SPEC, Version(clicks=0.97), looks_until(2000, first=1000), 0) == Rollout("running", 2000)


def test_looks_grow_rarer() -> None:
    looks = looks_until(20_000)
    assert looks[:3] == [250, 500, 750]
    assert looks[-1] == 20_000
    assert (np.diff(looks[:-1]) >= 250).all()


def test_shares_count_what_happened_by_each_look() -> None:
    assert share_by([1, 2, 3], [2, None, 3, 1]).tolist() == [0.25, 0.5, 0.75]


def test_simulated_requests_are_what_observing_them_would_give() -> None:
    summary = requests(STABLE, 500, np.random.default_rng(0))
    statuses, outcomes = summary.arrays["statuses"], summary.events["click"]
    assert statuses.sum() == 500
    assert summary.arrays["latencies"].sum() == statuses[0]
    assert outcomes["positives"].sum() + outcomes["negatives"].sum() == 8 * statuses[0]
    assert outcomes["pairs"].sum() == 64 * statuses[0]


def test_simulated_pairs_are_what_observing_them_would_give() -> None:
    found = shadow_pairs(Version(noise=1.0), 300, np.random.default_rng(1))
    same = shadow_pairs(STABLE, 300, np.random.default_rng(1))
    for name in ("rank_correlations", "top_k_overlaps"):
        num, total, _ = found.arrays[name]
        assert (num, total < same.arrays[name][1]) == (300, True)
    rng = np.random.default_rng(2)
    one, other = rng.random((2, 8))
    ranks = [np.argsort(np.argsort(-scores)) for scores in (one, other)]
    assert 1 - 6 * ((ranks[0] - ranks[1]) ** 2).sum() / (8 * 63) == pytest.approx(spearman(one, other))


def test_sheets_count_what_happened() -> None:
    alarms = [Alarms(), Alarms({"ctr": 500}, 750, 250), Alarms({"ctr": 500}), Alarms()]
    lines = {line[0]: line[1:] for line in alarm_sheet(alarms, [250, 500]).lines}
    assert lines["the analysis"] == ["1", "25.0%"]
    assert lines["ctr alone"] == ["2", "50.0%"]
    rollouts = {"equal": [Rollout("pass", 100)], "worse": [Rollout("fail", 50, ("ctr",)), Rollout("running", 200)]}
    assert rollout_sheet(rollouts).lines == [
        ["equal", "1", "0", "1", "0", "100", "100", ""],
        ["worse", "2", "1", "0", "1", "50", "50", "ctr"],
    ]


def test_the_picture_is_svg_of_all_curves() -> None:
    looks = [250, 500]
    flat = np.array([0.0, 0.5])
    picture = draw(
        looks, {"ctr": flat, "one look": flat, "analysis": flat}, ALPHA, looks, {"worse": flat, "equal": flat}
    )
    assert picture.startswith("<?xml")
    for text in ("a metric alone", "worse", "equal: promoted", "CTR by a z-test for one look"):
        assert text in picture


def test_summaries_of_simulated_requests_travel() -> None:
    summary = requests(STABLE, 100, np.random.default_rng(3))
    assert Summary.from_bytes(summary.to_bytes()).num_requests == 100
