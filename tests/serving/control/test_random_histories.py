"""Whatever commands come in whatever order, what must always hold does."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rankhouse.serving.control import transitions
from rankhouse.serving.control.assignment import buckets_of_percent, holdout_percent
from rankhouse.serving.control.model_state import NUM_BUCKETS, Change, ModelState, decode_state, encode_state, number_of
from rankhouse.serving.control.states import FINISHED, TRANSITIONS
from rankhouse.serving.errors import ControlError, NoSuchRolloutError
from tests.serving.control.states_of_models import ANALYSIS, name, replica, spec, verdicts

STEP = st.fixed_dictionaries(
    {"weight": st.sampled_from([0, 1, 5, 25, 50, 100])},
    optional={"pause": st.sampled_from(["10s", "100s", "manual"]), "analysis": st.just({"max": "50s"})},
)
SPEC = st.fixed_dictionaries(
    {
        "steps": st.lists(STEP, min_size=1, max_size=4).map(
            lambda steps: sorted(steps, key=lambda step: step["weight"])
        ),
        "analysis": st.just(ANALYSIS),
        "on_failure": st.sampled_from(["roll_back", "pause"]),
        "on_inconclusive": st.sampled_from(["roll_back", "pause", "go_on"]),
        "holdout": st.sampled_from([0, 5]),
        "ready_within": st.just("60s"),
    }
)
OUTCOME = st.sampled_from(["pass", "fail", "inconclusive", "running"])


def users_of(state: ModelState) -> dict[int, tuple[str, str]]:
    """Each bucket's rollout and candidate; fails where a bucket has two."""
    users: dict[int, tuple[str, str]] = {}
    for rollout in state.rollouts:
        for arm in rollout.arms:
            for each in arm.ranges:
                for bucket in range(each.start, each.stop):
                    assert bucket not in users
                    users[bucket] = (rollout.id, arm.version)
    return users


class Histories(RuleBasedStateMachine):
    """One model through random commands; every rule checks the change that it makes."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ModelState("m")
        self.now = 0.0
        self.newest = 0

    def do(self, command: Callable[..., Change], *arguments: Any, keeps_users: bool = False, **options: Any) -> None:
        """Does a command; one that is refused must change nothing, which pure functions cannot."""
        try:
            change = command(self.state, *arguments, actor="ann", now=self.now, **options)
        except ControlError:
            return
        self.take(change, keeps_users=keeps_users)

    def take(self, change: Change, *, keeps_users: bool) -> None:
        before, after = self.state, change.state
        assert change.events
        assert after.floor >= before.floor
        assert after.next_id >= before.next_id
        if before.rollouts and before.salt != after.salt:
            assert not {each.id for each in before.rollouts} & {each.id for each in after.rollouts}
        self.check_stable(before, change)
        for rollout in before.rollouts:
            [moved] = [each for each in (*after.rollouts, *change.finished) if each.id == rollout.id]
            reachable = {rollout.status} | {
                to for table in TRANSITIONS.values() for to in table.get(rollout.status, ())
            }
            assert moved.status in reachable
        if keeps_users:
            active, now = {each.id for each in after.rollouts}, users_of(after)
            arms = {arm.version for each in after.rollouts for arm in each.arms}
            for bucket, (rollout_id, version) in users_of(before).items():
                if rollout_id in active and version in arms:
                    assert now[bucket] == (rollout_id, version)
        self.state = after

    def check_stable(self, before: ModelState, change: Change) -> None:
        after = change.state
        if before.stable is None or after.stable is None or number_of(after.stable) >= number_of(before.stable):
            return
        by_rollback = any(each.is_rollback and each.status == "promoted" for each in change.finished)
        assert by_rollback or any(event.kind == "reverted" for event in change.events)

    @rule(wait=st.sampled_from([1.0, 15.0, 120.0]))
    def time_passes(self, wait: float) -> None:
        self.now += wait

    @rule()
    def a_version_comes(self) -> None:
        self.newest += 1
        self.do(transitions.admit, name(self.newest))

    @precondition(lambda self: self.newest > 0)
    @rule(wanted=SPEC, back=st.integers(0, 3), more=st.integers(0, 2))
    def start(self, wanted: dict[str, object], back: int, more: int) -> None:
        self.newest += more
        numbers = range(max(1, self.newest - back), self.newest + 1) if back < 2 else [self.newest]
        try:
            made = spec(*numbers, **wanted)
        except ControlError:
            return
        self.do(transitions.start_rollout, made, keeps_users=True)

    @precondition(lambda self: self.state.rollouts)
    @rule(data=st.data(), loaded=st.sampled_from(["all", "all", "all", "none", "some"]))
    def conduct(self, data: st.DataObject, loaded: str) -> None:
        everything = range(1, self.newest + 1)
        replicas = {"all": [replica(*everything)], "none": [], "some": [replica(*everything), replica(replica_id="b")]}
        judged = {}
        for rollout in self.state.rollouts:
            outcomes = data.draw(st.lists(OUTCOME, min_size=len(rollout.arms), max_size=len(rollout.arms)))
            judged |= verdicts(rollout, outcomes)
        change = transitions.advance(self.state, now=self.now, replicas=replicas[loaded], verdicts=judged)
        if change is not None:
            self.take(change, keeps_users=True)

    @precondition(lambda self: self.state.rollouts)
    @rule(
        data=st.data(),
        command=st.sampled_from(["pause", "resume", "resume", "promote", "abort", "skip_step"]),
    )
    def command(self, data: st.DataObject, command: str) -> None:
        rollout = data.draw(st.sampled_from(self.state.rollouts))
        self.do(getattr(transitions, command), rollout.id, keeps_users=True)

    @precondition(lambda self: self.state.rollouts)
    @rule(data=st.data(), weight=st.sampled_from([0.0, 0.01, 10.0, 33.33, 100.0]))
    def set_weight(self, data: st.DataObject, weight: float) -> None:
        self.do(transitions.set_weight, data.draw(st.sampled_from(self.state.rollouts)).id, weight)

    @precondition(lambda self: self.newest > 0)
    @rule(data=st.data(), is_loaded=st.booleans())
    def rollback(self, data: st.DataObject, is_loaded: bool) -> None:
        version = data.draw(st.sampled_from(self.state.previous or (name(self.newest),)))
        replicas = [replica(*range(1, self.newest + 1))] if is_loaded else []
        self.do(transitions.rollback_to, version, replicas=replicas)

    @precondition(lambda self: self.newest > 0)
    @rule(data=st.data())
    def quarantine(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(1, self.newest + 1))
        self.do(transitions.quarantine, name(number), reason="bad hash", keeps_users=True)

    @rule(percent=st.sampled_from([0.0, 1.0, 20.0]))
    def set_holdout(self, percent: float) -> None:
        self.do(transitions.set_holdout, percent, keeps_users=True)

    @rule()
    def refresh_goes_on(self) -> None:
        policy = type(self.state.policy)()
        self.do(transitions.set_policy, policy, keeps_users=True)

    @invariant()
    def nobody_is_in_two_experiments_and_the_holdout_is_kept(self) -> None:
        end = NUM_BUCKETS - buckets_of_percent(holdout_percent(self.state))
        users = users_of(self.state)
        assert all(bucket < end for bucket in users)
        for rollout in self.state.rollouts:
            for arm in rollout.arms:
                share = sum(each.stop - each.start for each in arm.ranges)
                assert math.isclose(share, arm.weight * 100)

    @invariant()
    def the_state_holds_together(self) -> None:
        state = self.state
        assert decode_state(encode_state(state)) == state
        assert all(rollout.status not in FINISHED for rollout in state.rollouts)
        assert state.stable not in state.previous
        assert state.stable not in state.quarantined
        assert not set(state.previous) & set(state.quarantined)
        assert state.stable is None or number_of(state.stable) <= state.floor
        for rollout in state.rollouts:
            assert (rollout.status == "paused") == (rollout.pause_cause is not None) == (rollout.paused_at is not None)
            assert not (rollout.status == "pending" and rollout.weight)

    @invariant()
    def what_was_stable_or_rolled_back_is_never_admitted(self) -> None:
        for number in range(1, self.state.floor + 1):
            assert transitions.why_not_admitted(self.state, name(number))

    @invariant()
    def an_unknown_rollout_is_refused(self) -> None:
        with pytest.raises(NoSuchRolloutError):
            transitions.abort(self.state, "r999999", actor="ann", now=self.now)


Histories.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestHistories = Histories.TestCase
