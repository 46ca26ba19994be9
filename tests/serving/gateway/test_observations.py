from dataclasses import replace

import numpy as np
import pytest

from rankhouse.serving.analysis.errors import SummaryError
from rankhouse.serving.analysis.summary import Summary
from rankhouse.serving.control.assignment import Route
from rankhouse.serving.gateway.call import Answered, Result
from rankhouse.serving.gateway.messages import ScoreRequest
from rankhouse.serving.gateway.observations import Observations, missing_values
from rankhouse.serving.gateway.scorer import best_first
from rankhouse.serving.gateway.served_model import ServedModel
from tests.serving.small_version import FEATURES, MODEL, ROWS

VERSION = "000001-aaaaaaaa"
STABLE = Route(VERSION, "", "stable", 0)
SERVED = ServedModel(MODEL, VERSION, FEATURES, {})


@pytest.fixture
def observations() -> Observations:
    observations = Observations()
    observations.follow({VERSION: SERVED}, ["r1", "r2"])
    return observations


def result() -> Result:
    request = ScoreRequest(list(ROWS))
    scores = np.linspace(0.1, 0.9, len(ROWS), dtype=np.float32)
    return Result(SERVED, request, SERVED.raw_batch(request, max_candidates=10), scores, best_first(scores), False)


def answered(route: Route, *rollouts: str) -> Answered:
    return Answered("id", route, rollouts, 200, 0.003, 0.0, result())


def test_missing_values_are_counted_by_feature() -> None:
    missing = dict(zip(SERVED.columns, missing_values(result()).tolist(), strict=True))
    expected = {feature.name: sum(row.get(feature.name) in (None, []) for row in ROWS) for feature in FEATURES}
    assert missing == expected


def test_the_stable_arm_counts_for_its_version_and_for_every_rollout(observations: Observations) -> None:
    observations.observe(answered(STABLE, "r1", "r2", "over"))
    assert observations.content().keys() == {f"{rollout}/{VERSION}/stable" for rollout in ("", "r1", "r2")}
    for content in observations.content().values():
        assert Summary.from_bytes(content).num_requests == 1


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
