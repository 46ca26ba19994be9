from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.serving.analysis.errors import SummaryError
from rankhouse.serving.analysis.judgement import judge
from rankhouse.serving.analysis.spec import AnalysisSpec, MetricSpec
from rankhouse.serving.analysis.summary import Summary
from rankhouse.serving.control.assignment import Route
from rankhouse.serving.gateway.call import Answered, Result
from rankhouse.serving.gateway.messages import ScoreRequest
from rankhouse.serving.gateway.observations import Observations, missing_values
from rankhouse.serving.gateway.scorer import best_first
from rankhouse.serving.gateway.served_model import ServedModel
from tests.serving.small_version import CATEGORICAL, FEATURES, MODEL, ROWS, raw_batch

VERSION = "000001-aaaaaaaa"
STABLE = Route(VERSION, "", "stable", 0)
SERVED = ServedModel(MODEL, VERSION, FEATURES, {})


@pytest.fixture
def observations() -> Observations:
    observations = Observations()
    observations.follow({VERSION: SERVED}, ["r1", "r2"])
    return observations


def result(num_unknown: int = 0) -> Result:
    request = ScoreRequest(list(ROWS))
    scores = np.linspace(0.1, 0.9, len(ROWS), dtype=np.float32)
    raw = SERVED.raw_batch(request, max_candidates=10)
    return Result(SERVED, request, raw, scores, best_first(scores), False, num_unknown, SERVED.num_ids(raw))


def answered(route: Route, *rollouts: str, num_unknown: int = 0) -> Answered:
    return Answered("id", route, rollouts, 200, 0.003, 0.0, result(num_unknown))


def test_missing_values_are_counted_by_feature() -> None:
    missing = dict(zip(SERVED.columns, missing_values(result()).tolist(), strict=True))
    expected = {feature.name: sum(row.get(feature.name) in (None, []) for row in ROWS) for feature in FEATURES}
    assert missing == expected


def expected_ids(row: Mapping[str, Any]) -> int:
    """A missing value has an id of its own, but an empty list has none."""
    return sum(len(row.get(feature.name) or []) if feature.is_list else 1 for feature in CATEGORICAL)


@pytest.mark.parametrize("rows", [[], [{}], ROWS, ROWS[:1] * 7], ids=["none", "empty row", "few", "lists"])
def test_ids_are_counted_as_the_transform_makes_them(rows: Sequence[Mapping[str, Any]]) -> None:
    assert SERVED.num_ids(raw_batch(rows)) == sum(map(expected_ids, rows))
    text = replace(SERVED, features=FEATURES[:4])
    assert text.num_ids(RawBatch.from_rows(text.features, [{}] * len(rows))) == 2 * len(rows)


def test_the_stable_arm_counts_for_its_version_and_for_every_rollout(observations: Observations) -> None:
    observations.observe(answered(STABLE, "r1", "r2", "over"))
    assert observations.content().keys() == {f"{rollout}/{VERSION}/stable" for rollout in ("", "r1", "r2")}
    for content in observations.content().values():
        assert Summary.from_bytes(content).num_requests == 1


def test_a_candidate_that_does_not_know_the_values_shows_in_what_is_published(observations: Observations) -> None:
    candidate = Route(VERSION, "r1", "candidate", 0)
    for _ in range(300):
        observations.observe(answered(STABLE, "r1", num_unknown=1))
        observations.observe(answered(candidate, "r1", num_unknown=9))
        observations.observe_shadow("r1", VERSION, status=200, seconds=0.003, ids=(2, 10))
    published = {key: Summary.from_bytes(content) for key, content in observations.content().items()}
    stable, unknowing, shadow = (published[f"r1/{VERSION}/{arm}"] for arm in ("stable", "candidate", "shadow"))
    num_ids = sum(expected_ids(row) for row in ROWS)
    assert stable.arrays["ids"].tolist() == [300, 300 * num_ids]
    assert unknowing.arrays["ids"].tolist() == [2700, 300 * num_ids]
    assert shadow.arrays["ids"].tolist() == [600, 3000]
    spec = AnalysisSpec((MetricSpec("unknown_ids", max_increase=0.05),), min_requests=100)
    assert judge(spec, stable, unknowing, shadow).outcome == "fail"
    assert judge(spec, stable, stable, shadow).outcome != "fail"


def test_a_candidate_counts_for_its_rollout_alone(observations: Observations) -> None:
    observations.observe(answered(Route(VERSION, "r1", "candidate", 0), "r1"))
    assert observations.content().keys() == {f"r1/{VERSION}/candidate"}


@pytest.mark.parametrize("route", [replace(STABLE, arm="override"), replace(STABLE, is_fallback=True)])
def test_what_chance_did_not_choose_counts_nowhere(observations: Observations, route: Route) -> None:
    observations.observe(answered(route, "r1"))
    assert observations.content() == {}


def test_what_is_over_is_forgotten(observations: Observations) -> None:
    observations.observe(answered(STABLE, "r1", "r2"))
    observations.follow({VERSION: SERVED}, ["r2"])
    assert observations.content().keys() == {f"/{VERSION}/stable", f"r2/{VERSION}/stable"}
    observations.follow({}, [])
    assert observations.content() == {}


def test_there_are_only_so_many_events(observations: Observations) -> None:
    scores, labels = np.array([0.5], dtype=np.float32), np.array([True])
    outcomes = {"scores": scores, "labels": labels}
    for number in range(8):
        observations.observe_outcomes((), VERSION, "stable", **outcomes, event=f"event-{number}")
    with pytest.raises(SummaryError, match="one too many"):
        observations.observe_outcomes((), VERSION, "stable", **outcomes, event="event-8")
