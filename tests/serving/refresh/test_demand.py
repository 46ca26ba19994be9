import msgspec
import pytest

from rankhouse.serving.control import transitions
from rankhouse.serving.control.model_state import ModelState, RefreshPolicy
from rankhouse.serving.control.rollout_spec import parse_rollout
from rankhouse.serving.refresh.demand import Demand

FIRST, SECOND, THIRD = "000001-aaaaaaaa", "000002-bbbbbbbb", "000003-cccccccc"


def state_of(*admitted: str, **policy: object) -> ModelState:
    state = ModelState(model="small")
    for version in admitted:
        state = transitions.admit(state, version, now=0.0).state
    return msgspec.structs.replace(state, policy=RefreshPolicy(**policy))


def test_before_anything_was_admitted_the_newest_is_looked_for() -> None:
    assert Demand.of(state_of()) == Demand()


def test_the_first_version_is_looked_for_whatever_the_policy_says_of_new_ones() -> None:
    assert Demand.of(state_of(admit="manual")).is_admitting
    assert not Demand.of(state_of(is_held=True)).is_admitting


def test_stable_and_earlier_ones() -> None:
    demand = Demand.of(state_of(FIRST, SECOND, keep_loaded_bytes=5))
    assert (demand.stable, demand.earlier, demand.routed, demand.floor) == (SECOND, (FIRST,), (SECOND,), 2)
    assert demand.keep_loaded_bytes == 5


@pytest.mark.parametrize("policy", [{"admit": "manual"}, {"is_held": True}])
def test_nothing_is_looked_for_that_is_not_admitted(policy: dict[str, object]) -> None:
    assert not Demand.of(state_of(FIRST, **policy)).is_admitting


def test_candidates_are_needed_before_they_get_requests() -> None:
    spec = parse_rollout({"candidate": THIRD, "steps": [{"weight": 5, "pause": "1m"}, {"weight": 100}]})
    demand = Demand.of(transitions.start_rollout(state_of(FIRST, SECOND), spec, actor="test", now=0.0).state)
    assert demand.candidates == (THIRD,)
    assert demand.routed == (SECOND, THIRD)
    assert not demand.is_admitting, "until the rollout is over"
