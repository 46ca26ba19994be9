"""How rollouts go on by themselves."""

import pytest
from msgspec import structs

from rankhouse.serving.analysis.spec import MetricVerdict, Verdict
from rankhouse.serving.control.model_state import Change, ModelState, Rollout, verdict_key
from rankhouse.serving.control.progress import advance
from rankhouse.serving.control.transitions import abort, pause, resume, start_rollout
from tests.serving.control.states_of_models import ANALYSIS, begun, name, replica, spec, stable_at, started, verdicts

LOADED = [replica(1, 2, 3)]
TIMED = [{"weight": 5, "pause": "10m"}, {"weight": 25, "pause": "10m"}, {"weight": 100}]
JUDGED = [{"weight": 5, "analysis": {"max": "1h"}}, {"weight": 100, "pause": "1h"}]


def moved(state: ModelState, now: float, *outcomes: str) -> Change:
    """The change that the conductor makes; fails where there is none."""
    change = advance(
        state, now=now, replicas=LOADED, verdicts=verdicts(state.rollouts[0], outcomes) if outcomes else {}
    )
    assert change is not None
    return change


def rests(state: ModelState, now: float, *outcomes: str) -> bool:
    judged = verdicts(state.rollouts[0], outcomes) if outcomes else {}
    return advance(state, now=now, replicas=LOADED, verdicts=judged) is None


def only(state: ModelState) -> Rollout:
    [rollout] = state.rollouts
    return rollout


def test_without_rollouts_there_is_nothing_to_do() -> None:
    assert advance(stable_at(1), now=1.0, replicas=LOADED, verdicts={}) is None


def test_from_start_to_promotion_by_time() -> None:
    state = started(stable_at(1), spec(2, steps=TIMED), now=0.0)
    weights = []
    for now in (1.0, 601.0, 1201.0, 1202.0):
        if state.rollouts[0].started_at is not None and now != 1202.0:
            assert rests(state, now - 1)
        change = moved(state, now)
        state = change.state
        weights.append(state.rollouts[0].weight if state.rollouts else None)
    assert weights == [5.0, 25.0, 100.0, None]
    assert (state.stable, change.finished[0].status, change.events[-1].actor) == (name(2), "promoted", "conductor")


def test_it_begins_when_all_living_replicas_have_it() -> None:
    state = started(stable_at(1), spec(2), now=0.0)
    for replicas in ([], [replica(1)], [replica(2), replica(1, replica_id="b")], [replica(2, is_draining=True)]):
        assert advance(state, now=1.0, replicas=replicas, verdicts={}) is None
    ready = [replica(2), replica(1, replica_id="b", is_draining=True)]
    change = advance(state, now=1.0, replicas=ready, verdicts={})
    assert change is not None
    assert only(change.state).status == "progressing"


@pytest.mark.parametrize(("on_failure", "status"), [("roll_back", "rolled_back"), ("pause", "paused")])
def test_the_wait_for_replicas_ends(on_failure: str, status: str) -> None:
    state = started(stable_at(1), spec(2, ready_within="1m", on_failure=on_failure), now=0.0)
    replicas = [replica(1, failed={name(2): "no room"}), replica(2, replica_id="b")]
    assert advance(state, now=60.0, replicas=replicas, verdicts={}) is None
    change = advance(state, now=61.0, replicas=replicas, verdicts={})
    assert change is not None
    [rollout] = change.finished or change.state.rollouts
    assert rollout.status == status
    assert "without them: a; a cannot load 000002" in change.events[0].reason
    assert "no room" in change.events[0].reason


def test_no_replica_at_all_is_told() -> None:
    state = started(stable_at(1), spec(2, ready_within="1m"), now=0.0)
    change = advance(state, now=61.0, replicas=[], verdicts={})
    assert change is not None
    assert "no replica lives" in change.events[0].reason


def test_resuming_a_wait_that_was_over_waits_on() -> None:
    state = started(stable_at(1), spec(2, ready_within="1m", on_failure="pause"), now=0.0)
    change = advance(state, now=61.0, replicas=[], verdicts={})
    assert change is not None
    state = resume(change.state, "r000001", actor="ann", now=70.0).state
    assert only(state).status == "pending"
    assert advance(state, now=1e6, replicas=[], verdicts={}) is None
    assert only(moved(state, 1e6).state).status == "progressing"


def test_no_step_begins_while_a_replica_lacks_the_candidate() -> None:
    state = begun(stable_at(1), spec(2, steps=TIMED), now=0.0)
    assert advance(state, now=700.0, replicas=[replica(2), replica(1, replica_id="b")], verdicts={}) is None
    assert advance(state, now=700.0, replicas=[], verdicts={}) is None
    assert only(moved(state, 700.0).state).step == 1


def test_a_step_waits_for_its_analysis_and_notes_the_verdict() -> None:
    state = begun(stable_at(1), spec(2, steps=JUDGED, analysis=ANALYSIS), now=0.0)
    assert rests(state, 10.0)
    assert rests(state, 10.0, "running")
    assert rests(state, 10.0, "inconclusive")
    after = only(moved(state, 10.0, "pass").state)
    assert (after.step, after.weight) == (1, 100.0)
    assert after.verdict == {name(2): {"outcome": "pass", "metrics": [], "reason": ""}}


def test_a_verdict_of_an_earlier_step_ends_no_later_one() -> None:
    steps = [{"weight": 5, "analysis": True}, {"weight": 10, "analysis": True}]
    state = begun(stable_at(1), spec(2, steps=steps, analysis=ANALYSIS), now=0.0)
    old = verdicts(only(state), ["pass"])
    state = moved(state, 10.0, "pass").state
    assert advance(state, now=11.0, replicas=LOADED, verdicts=old) is None
    assert moved(state, 11.0, "pass").state.stable == name(2)


def test_a_step_with_a_pause_and_an_analysis_waits_for_both() -> None:
    steps = [{"weight": 5, "pause": "10m", "analysis": True}]
    state = begun(stable_at(1), spec(2, steps=steps, analysis=ANALYSIS), now=0.0)
    assert rests(state, 10.0, "pass")
    assert rests(state, 700.0, "running")
    assert moved(state, 700.0, "pass").state.stable == name(2)


@pytest.mark.parametrize("steps", [TIMED, JUDGED])
def test_failure_rolls_back_in_any_step(steps: list[dict[str, object]]) -> None:
    state = begun(stable_at(1), spec(2, steps=steps, analysis=ANALYSIS), now=0.0)
    metric = MetricVerdict("error_rate", 0.0, 0.1, 0.1, 0.05, 0.15, 0.001, "fail", 900, "errors are 10 %")
    failed = {verdict_key("r000001", 0, name(2)): Verdict("fail", (metric,))}
    change = advance(state, now=1.0, replicas=LOADED, verdicts=failed)
    assert change is not None
    assert (change.state.stable, change.state.floor, change.finished[0].status) == (name(1), 2, "rolled_back")
    assert change.events[0].reason == f"{name(2)}: error_rate: errors are 10 %"
    assert change.finished[0].verdict is not None


def test_failure_rolls_back_also_while_the_operator_paused_it() -> None:
    state = begun(stable_at(1), spec(2, steps=TIMED, analysis=ANALYSIS), now=0.0)
    state = pause(state, "r000001", actor="ann", now=1.0).state
    assert rests(state, 1e6, "pass")
    assert moved(state, 2.0, "fail").finished[0].status == "rolled_back"


def test_failure_may_pause_and_the_operator_may_go_over_it_for_a_step() -> None:
    state = begun(stable_at(1), spec(2, steps=TIMED, analysis=ANALYSIS, on_failure="pause"), now=0.0)
    state = moved(state, 1.0, "fail").state
    assert (only(state).status, only(state).pause_cause) == ("paused", "failure")
    assert rests(state, 2.0, "fail")
    state = resume(state, "r000001", actor="ann", now=3.0).state
    assert rests(state, 4.0, "fail")
    state = moved(state, 700.0, "fail").state
    assert (only(state).status, only(state).step) == ("progressing", 1)
    assert only(moved(state, 701.0, "fail").state).pause_cause == "failure"


@pytest.mark.parametrize("outcome", [(), ("running",), ("inconclusive",)])
def test_an_analysis_without_outcome_pauses_when_its_time_is_over(outcome: tuple[str, ...]) -> None:
    state = begun(stable_at(1), spec(2, steps=JUDGED, analysis=ANALYSIS), now=0.0)
    assert rests(state, 3599.0, *outcome)
    state = moved(state, 3600.0, *outcome).state
    assert (only(state).status, only(state).pause_cause) == ("paused", "inconclusive")
    state = resume(state, "r000001", actor="ann", now=4000.0).state
    assert only(moved(state, 4001.0, *outcome).state).step == 1


@pytest.mark.parametrize(("on_inconclusive", "stable", "active"), [("roll_back", 1, 0), ("go_on", 1, 1)])
def test_an_analysis_without_outcome_may_do_otherwise(on_inconclusive: str, stable: int, active: int) -> None:
    wanted = spec(2, steps=JUDGED, analysis=ANALYSIS, on_inconclusive=on_inconclusive)
    change = moved(begun(stable_at(1), wanted, now=0.0), 3600.0)
    assert (change.state.stable, len(change.state.rollouts)) == (name(stable), active)
    assert "no outcome after 3600 s" in change.events[0].reason


def test_a_manual_step_waits_for_resume() -> None:
    state = begun(stable_at(1), spec(2, steps=[{"weight": 5, "pause": "manual"}, {"weight": 100}]), now=0.0)
    assert (only(state).status, only(state).pause_cause) == ("paused", "step")
    assert rests(state, 1e6)
    state = resume(state, "r000001", actor="ann", now=1e6).state
    assert only(moved(state, 1e6 + 1).state).step == 1


def test_of_several_candidates_failed_ones_are_dropped_and_one_is_promoted_by_an_operator() -> None:
    state = begun(stable_at(1), spec(2, 3, steps=[{"weight": 10, "analysis": True}], analysis=ANALYSIS), now=0.0)
    assert rests(state, 1.0, "pass", "running")
    change = moved(state, 1.0, "running", "fail")
    assert only(change.state).candidates == (name(2),)
    assert (change.events[0].kind, change.events[0].version) == ("dropped", name(3))
    assert moved(change.state, 2.0, "pass").state.stable == name(2)
    both = moved(state, 1.0, "pass", "pass").state
    assert (only(both).status, only(both).pause_cause) == ("paused", "step")
    assert moved(state, 1.0, "fail", "fail").finished[0].status == "rolled_back"


def test_each_rollout_goes_on_by_itself() -> None:
    state = begun(begun(stable_at(1), spec(2, steps=TIMED[:2]), now=0.0), spec(3, steps=TIMED[:2]), now=300.0)
    state = moved(state, 600.0).state
    assert [rollout.step for rollout in state.rollouts] == [1, 0]
    change = moved(state, 1200.0)
    assert [rollout.id for rollout in change.state.rollouts] == ["r000002"]
    assert change.state.stable == name(2)


def test_a_promotion_that_overtakes_another_ends_both() -> None:
    state = begun(begun(stable_at(1), spec(3, steps=TIMED[:1]), now=0.0), spec(2, steps=TIMED[:1]), now=0.0)
    change = moved(state, 600.0)
    assert [rollout.status for rollout in change.finished] == ["promoted", "rolled_back"]
    assert (change.state.stable, change.state.rollouts) == (name(3), ())


def test_a_clock_that_goes_back_only_waits() -> None:
    state = begun(stable_at(1), spec(2, steps=TIMED), now=1000.0)
    assert rests(state, 10.0)
    paused = pause(state, "r000001", actor="ann", now=1100.0).state
    assert only(resume(paused, "r000001", actor="ann", now=900.0).state).step_since == 1000.0


def test_the_conductor_is_deterministic() -> None:
    state = start_rollout(begun(stable_at(1), spec(2)), spec(3), actor="ann", now=1.0).state
    assert moved(state, 5.0) == moved(state, 5.0)
    assert abort(state, "r000001", actor="a", now=2.0) == abort(state, "r000001", actor="a", now=2.0)


def test_a_rollout_without_room_pauses_and_the_others_go_on() -> None:
    stuck = begun(stable_at(1), spec(2, 3, steps=[{"weight": 10}, {"weight": 45}]))
    both = started(stuck, spec(4, steps=[{"weight": 5}]))
    # No command leads here; should one ever, it must not stop everything.
    state = structs.replace(both, holdout_percent=20.0)
    change = advance(state, now=30.0, replicas=[replica(1, 2, 3, 4)], verdicts={})
    assert change is not None
    first, second = change.state.rollouts
    assert (first.status, first.pause_cause, second.status) == ("paused", "failure", "progressing")
    assert "cannot give" in change.events[0].reason
