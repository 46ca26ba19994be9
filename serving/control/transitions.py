"""All commands over a model's state, as pure functions: no clock, no files, no network. Times are unix seconds.

Each returns a Change for the state store to commit, and raises where the state does not allow it; see states.py for the
table of a rollout's statuses. Commands that take a `rollout` mean the id of an active one.
"""

from collections.abc import Sequence

import msgspec

from rankhouse.serving.control.assignment import buckets_of_percent, holdout_percent, with_weight
from rankhouse.serving.control.model_state import (
    NUM_BUCKETS,
    Arm,
    Change,
    ModelState,
    PauseCause,
    RefreshPolicy,
    ReplicaReport,
    Rollout,
    number_of,
)
from rankhouse.serving.control.moves import (
    Draft,
    described,
    enter_step,
    hold_refresh,
    make_promoted,
    make_rolled_back,
    make_stable,
    pause_for,
)
from rankhouse.serving.control.progress import advance, replicas_without
from rankhouse.serving.control.rollout_spec import LATEST, RolloutSpec, Step, checked
from rankhouse.serving.control.states import check_allowed
from rankhouse.serving.errors import AdmissionError, TransitionError

__all__ = [
    "Change",
    "abort",
    "admit",
    "admit_everywhere",
    "advance",
    "pause",
    "promote",
    "quarantine",
    "release",
    "resume",
    "rollback_to",
    "set_holdout",
    "set_policy",
    "set_weight",
    "skip_step",
    "start_rollout",
    "why_not_admitted",
]

MAX_ACTIVE = 16
MAX_QUARANTINED = 1000

_REFRESH = "refresh"


def start_rollout(state: ModelState, spec: RolloutSpec, *, actor: str, now: float, reason: str = "") -> Change:
    """Starts a rollout; it waits as `pending` until all replicas have its candidates.

    Args:
        state: The model's state.
        spec: What it is to do, with versions' names for candidates.
        actor: Who starts it.
        now: When.
        reason: Why.

    Raises:
        RolloutSpecError: The spec does not hold together.
        AdmissionError: A candidate must not take traffic.
        TransitionError: There is no room for it beside the active rollouts, or no stable version yet.
    """
    draft = Draft(state, actor=actor, now=now, reason=reason)
    _start(draft, spec, is_rollback=False)
    return _made(draft)


def _start(draft: Draft, spec: RolloutSpec, *, is_rollback: bool) -> None:
    state = draft.state
    checked(spec)
    if state.stable is None:
        raise TransitionError(
            f"model {state.model} has no stable version yet: the first one is admitted, not rolled out"
        )
    for version in spec.candidates:
        _check_candidate(state, version, is_rollback=is_rollback)
    rollout = Rollout(
        id=f"r{state.next_id:06d}",
        spec=spec,
        status="pending",
        created_at=draft.now,
        created_by=draft.actor,
        reason=draft.reason,
        arms=tuple(Arm(version) for version in spec.candidates),
        step_since=draft.now,
        is_rollback=is_rollback,
    )
    # Other users come first in each rollout; but while one is active, users keep their buckets.
    salt = state.salt if state.rollouts else f"{state.model}/{rollout.id}"
    draft.set(rollouts=(*state.rollouts, rollout), next_id=state.next_id + 1, salt=salt)
    _check_room(draft.state)
    draft.note("started", rollout=rollout, after=f"pending: {', '.join(spec.candidates)}")


def pause(state: ModelState, rollout: str, *, actor: str, now: float, reason: str = "") -> Change:
    """Stops a rollout where it is, until `resume`. A failing analysis still rolls it back.

    Raises:
        NoSuchRolloutError: It is not active.
        TransitionError: It is paused already.
    """
    draft = Draft(state, actor=actor, now=now, reason=reason)
    found = draft.rollout(rollout)
    check_allowed("pause", found.status, rollout=rollout)
    pause_for(draft, found, "operator", "pause")
    return _made(draft)


def resume(state: ModelState, rollout: str, *, actor: str, now: float, reason: str = "") -> Change:
    """Lets a paused rollout go on. The pause is no time of the step; a cause but the operator is waived for this step.

    Raises:
        NoSuchRolloutError: It is not active.
        TransitionError: It is not paused.
    """
    draft = Draft(state, actor=actor, now=now, reason=reason)
    found = draft.rollout(rollout)
    check_allowed("resume", found.status, rollout=rollout)
    assert found.pause_cause is not None
    assert found.paused_at is not None
    waived: tuple[PauseCause, ...] = () if found.pause_cause == "operator" else (found.pause_cause,)
    moved = draft.put(
        found,
        "resume",
        status="pending" if found.started_at is None else "progressing",
        step_since=found.step_since + max(0.0, now - found.paused_at),
        pause_cause=None,
        paused_at=None,
        waived=tuple(sorted({*found.waived, *waived})),
    )
    draft.note("resumed", rollout=moved, before=described(found), after=described(moved))
    return _made(draft)


def promote(
    state: ModelState,
    rollout: str,
    *,
    actor: str,
    now: float,
    reason: str = "",
    version: str | None = None,
    replicas: Sequence[ReplicaReport] = (),
) -> Change:
    """Makes a candidate the stable version at once, whatever steps are left.

    Args:
        state: The model's state.
        rollout: The rollout's id.
        actor: Who.
        now: When.
        reason: Why.
        version: Which candidate, where there are several.
        replicas: The living replicas; all must have it.

    Raises:
        NoSuchRolloutError: It is not active.
        TransitionError: It has not begun, has several candidates and none was named, or a replica has not loaded it.
    """
    draft = Draft(state, actor=actor, now=now, reason=reason)
    found = draft.rollout(rollout)
    check_allowed("promote", found.status, rollout=rollout)
    _check_begun(found, "promote")
    make_promoted(draft, found, _winner(found, version, replicas), "promote")
    return _made(draft)


def abort(state: ModelState, rollout: str, *, actor: str, now: float, reason: str = "") -> Change:
    """Rolls a rollout back: all users get the stable version, at once.

    Raises:
        NoSuchRolloutError: It is not active.
    """
    draft = Draft(state, actor=actor, now=now, reason=reason)
    found = draft.rollout(rollout)
    check_allowed("abort", found.status, rollout=rollout)
    make_rolled_back(draft, found, "abort")
    return _made(draft)


def skip_step(
    state: ModelState,
    rollout: str,
    *,
    actor: str,
    now: float,
    reason: str = "",
    replicas: Sequence[ReplicaReport] = (),
) -> Change:
    """Ends a rollout's step at once: the next one begins, or after the last one the candidate is promoted.

    Raises:
        NoSuchRolloutError: It is not active.
        TransitionError: It has not begun, or was in its last step with several candidates, or with one that a living
            replica has not loaded.
    """
    draft = Draft(state, actor=actor, now=now, reason=reason)
    found = draft.rollout(rollout)
    check_allowed("skip_step", found.status, rollout=rollout)
    _check_begun(found, "skip_step")
    if found.step + 1 < len(found.spec.steps):
        enter_step(draft, found, found.step + 1, "skip_step")
    else:
        make_promoted(draft, found, _winner(found, None, replicas), "skip_step")
    return _made(draft)


def set_weight(state: ModelState, rollout: str, weight: float, *, actor: str, now: float, reason: str = "") -> Change:
    """Gives each candidate of a rollout another share now, also a smaller one; its steps go on from there.

    Raises:
        NoSuchRolloutError: It is not active.
        TransitionError: It has not begun, or there are not that many buckets.
    """
    draft = Draft(state, actor=actor, now=now, reason=reason)
    found = draft.rollout(rollout)
    check_allowed("set_weight", found.status, rollout=rollout)
    _check_begun(found, "set_weight")
    _check_percent(weight, "the weight", most=100.0)
    moved = draft.put(found, "set_weight", arms=with_weight(state, found, weight))
    _check_room(draft.state)
    draft.note("weighted", rollout=moved, before=described(found), after=described(moved))
    return _made(draft)


def rollback_to(
    state: ModelState,
    version: str,
    *,
    replicas: Sequence[ReplicaReport],
    actor: str,
    now: float,
    reason: str = "",
) -> Change:
    """Brings an earlier stable version back, ends all active rollouts and holds refresh.

    At once where all living replicas still have it, but for those that have nothing loaded, as they answer nobody;
    else a rollout waits until they have loaded it.

    Raises:
        AdmissionError: It is not an earlier stable version.
    """
    if version not in state.previous:
        raise AdmissionError(
            f"version {version[:40]!r} is no earlier stable version of {state.model}; these are: "
            f"{', '.join(state.previous) or 'none'}. A newer version comes by a rollout"
        )
    draft = Draft(state, actor=actor, now=now, reason=reason)
    for rollout in state.rollouts:
        make_rolled_back(draft, rollout, "abort", reason=f"rollback to {version}")
    hold_refresh(draft, f"rollback to {version}: what follows may be built on what is taken back")
    answering = [each for each in replicas if each.loaded]
    if not answering or replicas_without((version,), answering):
        spec = RolloutSpec(candidates=(version,), steps=(Step(weight=100.0),), on_failure="pause")
        _start(draft, spec, is_rollback=True)
        return _made(draft)
    draft.note("reverted", version=version, before=f"stable {state.stable}", after=f"stable {version}")
    make_stable(draft, version)
    return _made(draft)


def why_not_admitted(state: ModelState, version: str) -> str:
    """Why refresh must not admit a version now; empty: it may.

    Raises:
        AdmissionError: That is no version's name.
    """
    number = number_of(version)
    if version in state.quarantined:
        return f"it is quarantined: {state.quarantined[version]}"
    if number <= state.floor:
        return f"its number is not above {state.floor}, the highest that was stable or rolled back"
    if state.policy.is_held:
        return "refresh is held"
    # The first one is nobody's choice: without it, requests would be refused until somebody comes.
    if state.policy.admit == "manual" and state.stable is not None:
        return "the policy is manual: start a rollout of it"
    if state.rollouts:
        return f"rollout {state.rollouts[0].id} is active; it waits for its end"
    return ""


def admit(
    state: ModelState, version: str, *, actor: str = _REFRESH, now: float, reason: str = "", by_operator: bool = False
) -> Change:
    """Lets a new version in by the policy: it becomes stable, or a rollout of it starts. The first one becomes stable.

    Whoever calls has seen that the replicas have loaded it.

    Args:
        state: The model's state.
        version: The version.
        actor: Who admits it.
        now: When.
        reason: Why.
        by_operator: An operator makes it stable whatever the policy says; it must still be newer than what is stable.

    Raises:
        AdmissionError: It must not be admitted; says why, see `why_not_admitted`.
    """
    fault = _why_nobody_may_admit(state, version) if by_operator else why_not_admitted(state, version)
    if fault:
        raise AdmissionError(f"version {version} is not admitted: {fault}")
    policy = state.policy
    if policy.admit == "rollout" and state.stable is not None and not by_operator:
        assert policy.rollout is not None
        return start_rollout(state, policy.rollout.with_candidates(version), actor=actor, now=now, reason=reason)
    draft = Draft(state, actor=actor, now=now, reason=reason)
    draft.note("admitted", version=version, before=f"stable {state.stable or 'none'}", after=f"stable {version}")
    make_stable(draft, version)
    return _made(draft)


def admit_everywhere(
    state: ModelState, version: str, *, replicas: Sequence[ReplicaReport], actor: str, now: float, reason: str = ""
) -> Change:
    """Makes a newer version stable for an operator, whatever the policy says.

    At once where all living replicas have it; else a rollout of one step waits until they have loaded it: replicas load
    what a rollout names also where refresh is held or the policy is manual.

    Raises:
        AdmissionError: It must not be admitted, whoever asks; or it would be the first, which comes when it is loaded.
    """
    living = [each for each in replicas if not each.is_draining]
    if living and not replicas_without((version,), living):
        return admit(state, version, actor=actor, now=now, reason=reason, by_operator=True)
    if fault := _why_nobody_may_admit(state, version):
        raise AdmissionError(f"version {version} is not admitted: {fault}")
    if state.stable is None:
        raise AdmissionError(f"version {version}, the first, is not admitted: not all replicas have loaded it; wait")
    spec = RolloutSpec(candidates=(version,), steps=(Step(weight=100.0),), on_failure="pause")
    return start_rollout(state, spec, actor=actor, now=now, reason=reason)


def _why_nobody_may_admit(state: ModelState, version: str) -> str:
    return why_not_admitted(msgspec.structs.replace(state, policy=RefreshPolicy()), version)


def set_policy(state: ModelState, policy: RefreshPolicy, *, actor: str, now: float, reason: str = "") -> Change:
    """Changes what happens with new versions; `is_held` in it holds and resumes refresh.

    Raises:
        TransitionError: `admit: rollout` has no rollout to start.
    """
    if policy.admit == "rollout" and policy.rollout is None:
        raise TransitionError("the policy admits by a rollout, but has none: give its steps under rollout")
    draft = Draft(state, actor=actor, now=now, reason=reason)
    draft.set(policy=policy)
    draft.note("policy_changed", before=_described_policy(state.policy), after=_described_policy(policy))
    return _made(draft)


def set_holdout(state: ModelState, percent: float, *, actor: str, now: float, reason: str = "") -> Change:
    """Changes the share of the buckets that no candidate of the model gets before its promotion.

    Raises:
        TransitionError: Active rollouts have some of these buckets, or will need them.
    """
    _check_percent(percent, "the holdout", most=50.0)
    draft = Draft(state, actor=actor, now=now, reason=reason)
    draft.set(holdout_percent=percent)
    _check_room(draft.state)
    draft.note("holdout_changed", before=f"{state.holdout_percent:g} %", after=f"{percent:g} %")
    return _made(draft)


def quarantine(state: ModelState, version: str, *, actor: str, now: float, reason: str) -> Change:
    """Keeps a version from traffic: rollouts that have it are rolled back, and it cannot be brought back.

    Raises:
        AdmissionError: That is no version's name, or it is the stable version.
    """
    number_of(version)
    if version == state.stable:
        raise AdmissionError(f"version {version} is stable: bring an earlier one back first, or promote another")
    draft = Draft(state, actor=actor, now=now, reason=reason)
    kept = {name: why for name, why in state.quarantined.items() if name != version} | {version: reason}
    for name in sorted(kept, key=number_of)[: len(kept) - MAX_QUARANTINED]:
        del kept[name]
    draft.set(quarantined=kept, previous=tuple(name for name in state.previous if name != version))
    draft.note("quarantined", version=version)
    for rollout in state.rollouts:
        if version in rollout.candidates:
            make_rolled_back(draft, rollout, "abort", reason=f"{version} is quarantined: {reason}")
    return _made(draft)


def release(state: ModelState, version: str, *, actor: str, now: float, reason: str = "") -> Change:
    """Takes a version out of quarantine; whether refresh admits it, its number decides.

    Raises:
        AdmissionError: It is not quarantined.
    """
    if version not in state.quarantined:
        held = ", ".join(state.quarantined) or "none"
        raise AdmissionError(f"version {version[:40]!r} is not quarantined; quarantined are: {held}")
    draft = Draft(state, actor=actor, now=now, reason=reason)
    draft.set(quarantined={name: why for name, why in state.quarantined.items() if name != version})
    draft.note("released", version=version, before=state.quarantined[version])
    return _made(draft)


def _made(draft: Draft) -> Change:
    change = draft.change()
    assert change is not None
    return change


def _check_candidate(state: ModelState, version: str, *, is_rollback: bool) -> None:
    if version == LATEST:
        raise AdmissionError("the candidate is `latest`, which whoever starts the rollout has to resolve")
    if version in state.quarantined:
        raise AdmissionError(f"the candidate {version} is quarantined: {state.quarantined[version]}; release it first")
    for rollout in state.rollouts:
        if version in rollout.candidates:
            raise AdmissionError(f"the candidate {version} is one of rollout {rollout.id} already")
    assert state.stable is not None
    if not is_rollback and number_of(version) <= number_of(state.stable):
        raise AdmissionError(
            f"the candidate {version} is not newer than the stable version {state.stable}; "
            f"to go back to an earlier stable version: rankhouse rollout rollback {version}"
        )


def _check_room(state: ModelState) -> None:
    """Active rollouts must all be able to reach their largest step, and none may have buckets of the holdout."""
    if len(state.rollouts) > MAX_ACTIVE:
        raise TransitionError(f"model {state.model} has {MAX_ACTIVE} active rollouts; end one of them first")
    room = 100.0 - holdout_percent(state)
    wanted = {each.id: len(each.arms) * min(_largest_share(each), room) for each in state.rollouts}
    shares = ", ".join(f"{name} up to {percent:g} %" for name, percent in wanted.items())
    if sum(wanted.values()) > room + 1e-9:
        raise TransitionError(
            f"the rollouts of model {state.model} take more than the {room:g} % that are not held out: {shares}; "
            "their users must not overlap: give less weight, or end one of them"
        )
    end = NUM_BUCKETS - buckets_of_percent(100.0 - room)
    for each in state.rollouts:
        if any(r.stop > end for arm in each.arms for r in arm.ranges):
            raise TransitionError(
                f"a holdout of {100.0 - room:g} % takes buckets that rollout {each.id} has; end that one first"
            )


def _largest_share(rollout: Rollout) -> float:
    """The percent that one candidate has now or will have in some step; of 100 the holdout is taken off."""
    return max(*(step.weight for step in rollout.spec.steps), *(arm.weight for arm in rollout.arms))


def _check_begun(rollout: Rollout, command: str) -> None:
    if rollout.started_at is None:
        raise TransitionError(
            f"rollout {rollout.id} is {rollout.status} and has not begun, as not all replicas have its candidates; "
            f"{command} needs that: wait for it, or abort it"
        )


def _winner(rollout: Rollout, version: str | None, replicas: Sequence[ReplicaReport]) -> str:
    candidates = rollout.candidates
    if version is None and len(candidates) > 1:
        raise TransitionError(
            f"rollout {rollout.id} has the candidates {', '.join(candidates)}: name the one to promote"
        )
    winner = candidates[0] if version is None else version
    if winner not in candidates:
        raise TransitionError(
            f"{winner[:40]!r} is no candidate of rollout {rollout.id}; these are {', '.join(candidates)}"
        )
    if missing := replicas_without((winner,), replicas):
        raise TransitionError(f"{winner} cannot be promoted: {', '.join(missing)} have not loaded it; wait, or abort")
    return winner


def _check_percent(percent: float, what: str, *, most: float) -> None:
    if not 0 <= percent <= most or abs(percent * 100 - round(percent * 100)) > 1e-6:
        raise TransitionError(
            f"{what} is {percent}; expected a percentage from 0 to {most:g} with two decimals at most"
        )


def _described_policy(policy: RefreshPolicy) -> str:
    held = ", held" if policy.is_held else ""
    return f"{policy.admit}, keeps {policy.keep_loaded_bytes / 2**30:.3g} GiB loaded{held}"
