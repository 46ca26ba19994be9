"""What commands do, beyond the table of statuses."""

from functools import partial

import pytest

from rankhouse.serving.control import transitions
from rankhouse.serving.control.model_state import ModelState, RefreshPolicy
from rankhouse.serving.control.transitions import (
    abort,
    admit,
    pause,
    promote,
    quarantine,
    release,
    resume,
    rollback_to,
    set_holdout,
    set_policy,
    set_weight,
    skip_step,
    start_rollout,
    why_not_admitted,
)
from rankhouse.serving.errors import AdmissionError, RolloutSpecError, TransitionError
from tests.serving.control.states_of_models import begun, name, replica, spec, stable_at, started

STEPS = [{"weight": 10, "pause": "10m"}, {"weight": 50, "pause": "10m"}]
R1, R2 = "r000001", "r000002"


def kinds(change: transitions.Change) -> list[str]:
    return [event.kind for event in change.events]


def test_starting_notes_who_when_and_why() -> None:
    change = start_rollout(stable_at(1), spec(2), actor="ann", now=5.0, reason="new day")
    [rollout] = change.state.rollouts
    assert (rollout.id, rollout.status, rollout.created_by, rollout.created_at) == (R1, "pending", "ann", 5.0)
    [event] = change.events
    assert (event.kind, event.actor, event.at, event.reason, event.version) == (
        "started",
        "ann",
        5.0,
        "new day",
        name(2),
    )


def test_users_come_first_in_another_order_each_time_but_not_while_a_rollout_is_active() -> None:
    state = begun(stable_at(1), spec(2))
    assert state.salt == "m/r000001"
    assert begun(state, spec(3)).salt == "m/r000001"
    ended = abort(state, R1, actor="ann", now=1.0).state
    assert begun(ended, spec(3)).salt == "m/r000002"


@pytest.mark.parametrize(
    ("state", "candidate", "said"),
    [
        (stable_at(5), 5, "not newer than the stable version 000005"),
        (stable_at(5), 4, "to go back to an earlier stable version: rankhouse rollout rollback 000004"),
        (stable_at(5, quarantined={name(6): "bad hash"}), 6, "is quarantined: bad hash; release it first"),
        (started(stable_at(5), spec(6)), 6, "is one of rollout r000001 already"),
    ],
)
def test_candidates_that_must_not_take_traffic(state: ModelState, candidate: int, said: str) -> None:
    with pytest.raises(AdmissionError, match=said):
        start_rollout(state, spec(candidate), actor="ann", now=1.0)


def test_latest_has_to_be_resolved() -> None:
    wanted = spec(2).with_candidates("latest")
    with pytest.raises(AdmissionError, match="`latest`, which whoever starts the rollout has to resolve"):
        start_rollout(stable_at(1), wanted, actor="ann", now=1.0)
    with pytest.raises(RolloutSpecError, match="is no version's name"):
        wanted.with_candidates("newest")


def test_the_first_version_is_not_rolled_out() -> None:
    with pytest.raises(TransitionError, match="model m has no stable version yet"):
        start_rollout(ModelState("m"), spec(1), actor="ann", now=1.0)


def test_rollouts_that_would_share_users_are_refused() -> None:
    state = started(stable_at(1), spec(2, steps=[{"weight": 5}, {"weight": 60}]))
    with pytest.raises(TransitionError, match="more than the 100 % that are not held out: r000001 up to 60 %, r000002"):
        started(state, spec(3, steps=[{"weight": 50}]))
    with pytest.raises(TransitionError, match="more than the 95 % that are not held out"):
        started(state, spec(3, steps=[{"weight": 40}], holdout=5))
    assert len(started(state, spec(3, steps=[{"weight": 40}])).rollouts) == 2


def test_candidates_that_share_all_users_leave_no_room_for_the_holdout_of_the_model() -> None:
    halves = spec(2, 3, steps=[{"weight": 10}, {"weight": 50}])
    with pytest.raises(TransitionError, match="more than the 99 % that are not held out: r000001 up to 100 %"):
        started(stable_at(1, holdout_percent=1.0), halves)
    state = begun(stable_at(1), halves)
    with pytest.raises(TransitionError, match="r000001 up to 100 %"):
        set_holdout(state, 1.0, actor="ann", now=20.0)


def test_a_rollout_to_all_users_stands_alone() -> None:
    state = started(stable_at(1), spec(2, steps=[{"weight": 100}], holdout=1))
    with pytest.raises(TransitionError, match="r000001 up to 99 %"):
        started(state, spec(3, steps=[{"weight": 1}]))


def test_a_holdout_takes_no_buckets_that_are_given_away() -> None:
    state = begun(begun(stable_at(1), spec(2, steps=[{"weight": 50}])), spec(3, steps=[{"weight": 40}]))
    state = abort(state, R1, actor="ann", now=1.0).state
    with pytest.raises(TransitionError, match="a holdout of 20 % takes buckets that rollout r000002 has"):
        set_holdout(state, 20.0, actor="ann", now=1.0)
    assert set_holdout(state, 10.0, actor="ann", now=1.0).state.holdout_percent == 10.0
    with pytest.raises(TransitionError, match=r"the holdout is 50\.5; expected a percentage from 0 to 50"):
        set_holdout(state, 50.5, actor="ann", now=1.0)


def test_there_is_an_end_of_rollouts() -> None:
    state = stable_at(1)
    for number in range(transitions.MAX_ACTIVE):
        state = started(state, spec(2 + number, steps=[{"weight": 1}]))
    with pytest.raises(TransitionError, match="has 16 active rollouts"):
        started(state, spec(99, steps=[{"weight": 1}]))


def test_a_pause_of_the_operator_is_no_time_of_the_step() -> None:
    state = begun(stable_at(1), spec(2, steps=STEPS), now=100.0)
    state = pause(state, R1, actor="ann", now=150.0).state
    state = resume(state, R1, actor="ann", now=1150.0).state
    [rollout] = state.rollouts
    assert (rollout.status, rollout.step_since, rollout.pause_cause, rollout.waived) == (
        "progressing",
        1100.0,
        None,
        (),
    )


def test_promotion_makes_stable_and_keeps_what_was() -> None:
    state = begun(stable_at(1, previous=(name(0),)), spec(2, steps=STEPS))
    change = promote(state, R1, actor="ann", now=20.0, reason="fine", replicas=[replica(1, 2)])
    after = change.state
    assert (after.stable, after.previous, after.floor, after.rollouts) == (name(2), (name(1), name(0)), 2, ())
    assert [(each.id, each.status, each.finished_at) for each in change.finished] == [(R1, "promoted", 20.0)]
    assert (change.events[-1].before, change.events[-1].after) == (f"stable {name(1)}", f"stable {name(2)}")


def test_promotion_needs_the_candidate_everywhere_but_where_it_drains() -> None:
    state = begun(stable_at(1), spec(2))
    replicas = [replica(1, 2), replica(1, replica_id="b"), replica(1, replica_id="c", is_draining=True)]
    with pytest.raises(TransitionError, match=r"000002-\w+ cannot be promoted: b have not loaded it"):
        promote(state, R1, actor="ann", now=20.0, replicas=replicas)
    assert promote(state, R1, actor="ann", now=20.0, replicas=replicas[::2]).state.stable == name(2)


def test_of_several_candidates_one_is_named_and_the_others_never_come_back_by_refresh() -> None:
    state = begun(stable_at(1), spec(2, 3))
    with pytest.raises(TransitionError, match="name the one to promote"):
        promote(state, R1, actor="ann", now=20.0)
    with pytest.raises(TransitionError, match="is no candidate of rollout r000001; these are 000002"):
        promote(state, R1, actor="ann", now=20.0, version=name(4))
    after = promote(state, R1, actor="ann", now=20.0, version=name(2)).state
    assert (after.stable, after.floor) == (name(2), 3)
    assert "not above 3" in why_not_admitted(after, name(3))


def test_promotion_ends_rollouts_that_it_overtakes() -> None:
    state = begun(begun(begun(stable_at(1), spec(2)), spec(3)), spec(4))
    change = promote(state, R2, actor="ann", now=20.0)
    assert [(each.id, each.status) for each in change.finished] == [(R2, "promoted"), (R1, "rolled_back")]
    assert [each.id for each in change.state.rollouts] == ["r000003"]
    assert "overtaken" in change.events[1].reason


def test_skipping_the_last_step_promotes() -> None:
    state = begun(stable_at(1), spec(2, steps=STEPS))
    state = skip_step(state, R1, actor="ann", now=20.0).state
    assert (state.rollouts[0].step, state.rollouts[0].weight) == (1, 50.0)
    with pytest.raises(TransitionError, match="cannot be promoted: b have not loaded it"):
        skip_step(state, R1, actor="ann", now=21.0, replicas=[replica(1, 2), replica(1, replica_id="b")])
    assert skip_step(state, R1, actor="ann", now=21.0).state.stable == name(2)


def test_an_operator_may_give_more_or_less_and_steps_never_take_users_away() -> None:
    state = begun(stable_at(1), spec(2, steps=STEPS))
    raised = set_weight(state, R1, 70.0, actor="ann", now=20.0).state
    assert skip_step(raised, R1, actor="ann", now=21.0).state.rollouts[0].weight == 70.0
    lowered = set_weight(raised, R1, 5.0, actor="ann", now=20.0).state
    assert skip_step(lowered, R1, actor="ann", now=21.0).state.rollouts[0].weight == 50.0
    with pytest.raises(TransitionError, match=r"the weight is 100\.5"):
        set_weight(state, R1, 100.5, actor="ann", now=20.0)


def test_a_spec_may_shrink_by_its_own_word() -> None:
    state = begun(stable_at(1), spec(2, steps=[{"weight": 50}, {"weight": 5}], may_shrink=True))
    assert skip_step(state, R1, actor="ann", now=21.0).state.rollouts[0].weight == 5.0


def test_more_weight_must_leave_room_for_the_others() -> None:
    state = begun(begun(stable_at(1), spec(2)), spec(3, steps=[{"weight": 5}, {"weight": 60}]))
    with pytest.raises(TransitionError, match="r000001 up to 50 %, r000002 up to 60 %"):
        set_weight(state, R1, 50.0, actor="ann", now=20.0)


def test_what_was_rolled_back_never_comes_back_by_itself_but_by_an_operator() -> None:
    state = abort(begun(stable_at(1), spec(3)), R1, actor="ann", now=20.0).state
    assert (state.stable, state.floor) == (name(1), 3)
    for number in (2, 3):
        assert "not above 3" in why_not_admitted(state, name(number))
    assert started(state, spec(3)).rollouts[0].candidates == (name(3),)


def test_a_rollback_under_direct_admission_holds_refresh() -> None:
    change = abort(begun(stable_at(1), spec(2)), R1, actor="ann", now=20.0)
    assert change.state.policy.is_held
    assert kinds(change) == ["rolled_back", "policy_changed"]
    assert why_not_admitted(change.state, name(3)) == "refresh is held"
    judged = RefreshPolicy("rollout", rollout=spec(9))
    change = abort(begun(stable_at(1, policy=judged), spec(2)), R1, actor="ann", now=20.0)
    assert not change.state.policy.is_held


@pytest.mark.parametrize(
    "replicas",
    [
        [replica(1, 2, 3)],
        [replica(1, 2, 3), replica(3, replica_id="b", is_draining=True)],
        [replica(1, 2, 3), replica(replica_id="b")],  # Its Triton is gone: it answers nobody.
    ],
)
def test_rollback_is_one_step_where_the_version_is_loaded(replicas: list[transitions.ReplicaReport]) -> None:
    state = begun(stable_at(3, previous=(name(2), name(1))), spec(4))
    change = rollback_to(state, name(2), replicas=replicas, actor="ann", now=20.0, reason="ctr")
    after = change.state
    assert (after.stable, after.previous, after.floor, after.rollouts) == (name(2), (name(1),), 4, ())
    assert after.policy.is_held
    assert kinds(change) == ["rolled_back", "policy_changed", "reverted"]


@pytest.mark.parametrize("replicas", [[], [replica()], [replica(3)], [replica(2, 3), replica(3, replica_id="b")]])
def test_rollback_waits_for_replicas_that_must_load_the_version(replicas: list[transitions.ReplicaReport]) -> None:
    state = stable_at(3, previous=(name(2), name(1)))
    state = rollback_to(state, name(2), replicas=replicas, actor="ann", now=20.0).state
    assert (state.stable, state.rollouts[0].status, state.rollouts[0].is_rollback) == (name(3), "pending", True)
    everywhere = [replica(2, 3), replica(2, 3, replica_id="b"), replica(replica_id="c")]
    for now in (21.0, 22.0):
        change = transitions.advance(state, now=now, replicas=everywhere, verdicts={})
        assert change is not None
        state = change.state
    assert (state.stable, state.previous, state.floor) == (name(2), (name(1),), 3)


@pytest.mark.parametrize("version", [name(3), name(4), "x"])
def test_rollback_goes_to_an_earlier_stable_version_only(version: str) -> None:
    with pytest.raises(AdmissionError, match="no earlier stable version of m; these are: 000002"):
        rollback_to(stable_at(3, previous=(name(2),)), version, replicas=[], actor="ann", now=20.0)


def test_the_first_version_becomes_stable_under_either_policy() -> None:
    for policy in (RefreshPolicy(), RefreshPolicy("rollout", rollout=spec(9))):
        change = admit(ModelState("m", policy=policy), name(1), now=1.0)
        assert (change.state.stable, change.state.previous, change.state.floor) == (name(1), (), 1)
        assert kinds(change) == ["admitted"]


def test_admission_by_a_rollout_fills_the_template() -> None:
    state = stable_at(1, policy=RefreshPolicy("rollout", rollout=spec(9, steps=STEPS, shadow=5)))
    change = admit(state, name(2), now=1.0)
    [rollout] = change.state.rollouts
    assert (rollout.spec, rollout.created_by) == (spec(2, steps=STEPS, shadow=5), "refresh")
    assert change.state.stable == name(1)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (stable_at(5), "number is not above 5"),
        (stable_at(1, floor=2), "number is not above 2"),
        (stable_at(1, quarantined={name(2): "bad hash"}), "quarantined: bad hash"),
        (stable_at(1, policy=RefreshPolicy(is_held=True)), "refresh is held"),
        (stable_at(1, policy=RefreshPolicy("manual")), "the policy is manual"),
        (started(stable_at(1), spec(3)), "rollout r000001 is active"),
    ],
)
def test_what_must_not_be_admitted_is_refused(state: ModelState, said: str) -> None:
    assert said in why_not_admitted(state, name(2))
    with pytest.raises(AdmissionError, match=f"version {name(2)} is not admitted: .*{said}"):
        admit(state, name(2), now=1.0)


def test_the_first_version_comes_in_by_itself_whatever_the_policy_says_of_new_ones() -> None:
    state = ModelState("m", policy=RefreshPolicy("manual"))
    assert admit(state, name(1), now=1.0).state.stable == name(1)
    with pytest.raises(AdmissionError, match="refresh is held"):
        admit(ModelState("m", policy=RefreshPolicy(is_held=True)), name(1), now=1.0)


def test_an_operator_may_admit_against_the_policy_but_not_an_older_version() -> None:
    state = stable_at(1, policy=RefreshPolicy("manual", is_held=True))
    assert admit(state, name(2), actor="ann", now=1.0, by_operator=True).state.stable == name(2)
    with pytest.raises(AdmissionError, match="not above 1"):
        admit(state, name(1), actor="ann", now=1.0, by_operator=True)


def test_an_operator_has_replicas_load_what_they_admit() -> None:
    state = stable_at(1, policy=RefreshPolicy("manual", is_held=True))
    anns = partial(transitions.admit_everywhere, actor="ann", now=1.0)
    assert anns(state, name(2), replicas=[replica(1, 2)]).state.stable == name(2)
    for replicas in ([], [replica(1)], [replica(1, 2), replica(1, replica_id="b")]):
        waiting = anns(state, name(2), replicas=replicas).state
        assert (waiting.stable, waiting.rollouts[0].candidates) == (name(1), (name(2),))
    here = [replica(2)]
    begun_now = transitions.advance(waiting, now=2.0, replicas=here, verdicts={})
    assert begun_now is not None
    over = transitions.advance(begun_now.state, now=3.0, replicas=here, verdicts={})
    assert over is not None
    assert over.state.stable == name(2)
    with pytest.raises(AdmissionError, match="not above 1"):
        anns(state, name(1), replicas=[])
    with pytest.raises(AdmissionError, match="the first, is not admitted: not all"):
        anns(ModelState("m"), name(1), replicas=[])


def test_quarantine_ends_rollouts_and_forgets_earlier_versions() -> None:
    state = begun(stable_at(2, previous=(name(1),)), spec(3))
    change = quarantine(state, name(3), actor="refresh", now=1.0, reason="bad hash")
    assert change.state.quarantined == {name(3): "bad hash"}
    assert kinds(change)[:2] == ["quarantined", "rolled_back"]
    assert change.state.rollouts == ()
    assert quarantine(state, name(1), actor="refresh", now=1.0, reason="x").state.previous == ()
    with pytest.raises(AdmissionError, match="is stable: bring an earlier one back first"):
        quarantine(state, name(2), actor="ann", now=1.0, reason="x")
    with pytest.raises(AdmissionError, match="'x' is not a version's name"):
        quarantine(state, "x", actor="ann", now=1.0, reason="x")


def test_quarantine_is_bounded_and_left_by_release() -> None:
    full = {name(number): "x" for number in range(10, 10 + transitions.MAX_QUARANTINED)}
    state = quarantine(stable_at(1, quarantined=full), name(5000), actor="a", now=1.0, reason="x").state
    assert len(state.quarantined) == transitions.MAX_QUARANTINED
    assert name(10) not in state.quarantined
    after = release(state, name(5000), actor="ann", now=2.0).state
    assert name(5000) not in after.quarantined
    with pytest.raises(AdmissionError, match="is not quarantined; quarantined are: "):
        release(after, name(5000), actor="ann", now=2.0)


def test_policies_are_changed_with_a_word_of_what_was() -> None:
    [event] = set_policy(stable_at(1), RefreshPolicy("manual", is_held=True), actor="ann", now=1.0).events
    assert (event.before, event.after) == ("direct, keeps 0 GiB loaded", "manual, keeps 0 GiB loaded, held")
    with pytest.raises(TransitionError, match="admits by a rollout, but has none"):
        set_policy(stable_at(1), RefreshPolicy("rollout"), actor="ann", now=1.0)
