from typing import Any

import pytest

from rankhouse.serving.admin.admission import Admission, Waiting, next_admission
from rankhouse.serving.control.model_state import ModelState, RefreshPolicy, ReplicaReport
from tests.serving.admin.world import MODEL, V1, V2, V3

STATE = ModelState(model=MODEL, stable=V1, floor=1)


def replica(name: str, *loaded: str, **more: Any) -> ReplicaReport:
    return ReplicaReport(replica=name, model=MODEL, at=0.0, loaded=loaded, **more)


def decide(
    *replicas: ReplicaReport, state: ModelState = STATE, waiting: Waiting | None = None, now: float = 100.0
) -> Admission:
    return next_admission(state, replicas, waiting, now=now, convergence_seconds=30.0)


def test_what_all_have_is_let_in() -> None:
    decision = decide(replica("a", V1, V2), replica("b", V1, V2))
    assert decision == Admission(V2, "all 2 replicas have loaded it", None)
    assert decide(replica("a", V1, V2)).reason == "the one replica has loaded it"


def test_the_newest_that_all_have_goes_before_a_newer_one_that_some_have() -> None:
    decision = decide(replica("a", V1, V2, V3), replica("b", V1, V2))
    assert (decision.version, decision.waiting) == (V2, Waiting(V3, 100.0))
    again = decide(replica("a", V2, V3), replica("b", V2), waiting=Waiting(V3, 90.0))
    assert again.waiting == Waiting(V3, 90.0)


def test_who_drains_is_not_waited_for() -> None:
    assert decide(replica("a", V2), replica("b", V1, is_draining=True)).version == V2
    assert decide(replica("b", V2, is_draining=True)).version is None


def test_a_laggard_is_waited_for_and_then_named() -> None:
    replicas = (replica("a", V1, V2), replica("b", V1), replica("c", V1))
    first = decide(*replicas)
    assert (first.version, first.waiting) == (None, Waiting(V2, 100.0))
    assert decide(*replicas, waiting=first.waiting, now=129.0).version is None
    last = decide(*replicas, waiting=first.waiting, now=130.0)
    assert (last.version, last.waiting) == (V2, None)
    assert "after 30 s without b, c" in last.reason


def test_newer_versions_do_not_make_the_wait_endless() -> None:
    waiting = decide(replica("a", V1, V2), replica("b", V1)).waiting
    assert decide(replica("a", V1, V2, V3), replica("b", V1), waiting=waiting, now=120.0).waiting == waiting
    assert decide(replica("a", V1, V2, V3), replica("b", V1), waiting=waiting, now=131.0).version == V2


@pytest.mark.parametrize(
    "state",
    [
        ModelState(model=MODEL, stable=V2, floor=2),
        ModelState(model=MODEL, stable=V1, floor=1, quarantined={V2: "bad"}),
        ModelState(model=MODEL, stable=V1, floor=1, policy=RefreshPolicy(is_held=True)),
        ModelState(model=MODEL, stable=V1, floor=1, policy=RefreshPolicy(admit="manual")),
    ],
)
def test_what_must_not_come_is_neither_let_in_nor_waited_for(state: ModelState) -> None:
    assert decide(replica("a", V1, V2), state=state) == Admission(None, "", None)


def test_without_replicas_nothing_happens() -> None:
    assert decide() == Admission(None, "", None)
