"""The moves that commands are made of: a rollout enters a step, pauses, is promoted, is rolled back."""

from typing import Any

import msgspec

from rankhouse.serving.control.assignment import with_weight
from rankhouse.serving.control.model_state import Change, Event, ModelState, PauseCause, Rollout, number_of
from rankhouse.serving.control.states import FINISHED, TRANSITIONS, Command, RolloutStatus
from rankhouse.serving.errors import NoSuchRolloutError

MAX_PREVIOUS = 20

_replace = msgspec.structs.replace


class Draft:
    """A state while one command changes it, and the history of that. Lives inside one call of a pure function.

    Args:
        state: The state before.
        actor: Who changes it.
        now: When, in unix seconds.
        reason: Why.
    """

    def __init__(self, state: ModelState, *, actor: str, now: float, reason: str) -> None:
        self.state, self.actor, self.now, self.reason = state, actor, now, reason
        self._events: list[Event] = []
        self._finished: list[Rollout] = []

    def rollout(self, rollout_id: str) -> Rollout:
        """An active rollout.

        Raises:
            NoSuchRolloutError: There is none of that name.
        """
        for rollout in self.state.rollouts:
            if rollout.id == rollout_id:
                return rollout
        active = ", ".join(rollout.id for rollout in self.state.rollouts) or "none"
        raise NoSuchRolloutError(
            f"model {self.state.model} has no active rollout {rollout_id[:40]!r}; active are: {active}. "
            "Finished ones take no commands"
        )

    def set(self, **values: Any) -> None:
        """Changes fields of the state."""
        self.state = _replace(self.state, **values)

    def put(self, rollout: Rollout, command: Command, **values: Any) -> Rollout:
        """Changes fields of an active rollout by a command; one that is finished by it leaves the state."""
        moved = _replace(rollout, **values)
        assert moved.status in TRANSITIONS[command][rollout.status], f"{command}: {rollout.status} -> {moved.status}"
        if moved.status in FINISHED:
            self._finished.append(moved)
            rest = tuple(other for other in self.state.rollouts if other.id != moved.id)
        else:
            rest = tuple(moved if other.id == moved.id else other for other in self.state.rollouts)
        self.set(rollouts=rest)
        return moved

    def note(
        self,
        kind: str,
        *,
        rollout: Rollout | None = None,
        version: str | None = None,
        before: str = "",
        after: str = "",
        reason: str | None = None,
    ) -> None:
        """Adds an event to the history."""
        if rollout is not None and version is None and len(rollout.arms) == 1:
            version = rollout.arms[0].version
        event = Event(
            number=0,
            at=self.now,
            actor=self.actor,
            model=self.state.model,
            kind=kind,
            rollout=None if rollout is None else rollout.id,
            version=version,
            before=before,
            after=after,
            reason=self.reason if reason is None else reason,
        )
        self._events.append(event)

    def change(self) -> Change | None:
        """What was made; None where nothing happened."""
        if not self._events:
            return None
        return Change(self.state, tuple(self._events), tuple(self._finished))


def described(rollout: Rollout) -> str:
    """A rollout's status in a few words, for the history."""
    if rollout.started_at is None or rollout.status in FINISHED:
        return rollout.status
    where = f"step {rollout.step + 1} of {len(rollout.spec.steps)}, {rollout.weight:g} %"
    return f"{rollout.status} ({rollout.pause_cause}): {where}" if rollout.pause_cause else f"{rollout.status}: {where}"


def enter_step(draft: Draft, rollout: Rollout, step: int, command: Command) -> Rollout:
    """Gives the candidates a step's share. It never takes users away from them, unless the spec has `may_shrink`."""
    target = rollout.spec.steps[step]
    weight = target.weight
    if not rollout.spec.may_shrink and rollout.arms:
        weight = max(weight, *(arm.weight for arm in rollout.arms))
    moved = draft.put(
        rollout,
        command,
        status="paused" if target.is_manual else "progressing",
        arms=with_weight(draft.state, rollout, weight),
        step=step,
        step_since=draft.now,
        started_at=draft.now if rollout.started_at is None else rollout.started_at,
        pause_cause="step" if target.is_manual else None,
        paused_at=draft.now if target.is_manual else None,
        waived=(),
    )
    draft.note("stepped", rollout=moved, before=described(rollout), after=described(moved))
    return moved


def pause_for(
    draft: Draft, rollout: Rollout, cause: PauseCause, command: Command, *, reason: str | None = None
) -> Rollout:
    """Stops a rollout where it is; its candidates keep their share."""
    moved = draft.put(rollout, command, status="paused", pause_cause=cause, paused_at=draft.now)
    draft.note("paused", rollout=moved, before=described(rollout), after=described(moved), reason=reason)
    return moved


def make_promoted(draft: Draft, rollout: Rollout, version: str, command: Command) -> None:
    """Makes a candidate the stable version, and ends its rollout; refresh never admits the other candidates."""
    moved = draft.put(rollout, command, **_ended(draft, "promoted"))
    draft.note(
        "promoted", rollout=moved, version=version, before=f"stable {draft.state.stable}", after=f"stable {version}"
    )
    draft.set(floor=max(draft.state.floor, *map(number_of, rollout.spec.candidates)))
    make_stable(draft, version)


def make_rolled_back(draft: Draft, rollout: Rollout, command: Command, *, reason: str | None = None) -> None:
    """Takes all users back to the stable version. Refresh never admits the candidates again, nor what is older."""
    moved = draft.put(rollout, command, **_ended(draft, "rolled_back"))
    draft.set(floor=max(draft.state.floor, *map(number_of, rollout.spec.candidates)))
    draft.note("rolled_back", rollout=moved, before=described(rollout), after="rolled_back", reason=reason)
    if draft.state.policy.admit == "direct" and not rollout.is_rollback:
        hold_refresh(draft, f"rollout {rollout.id} was rolled back, and what follows may be built on its candidate")


def make_stable(draft: Draft, version: str) -> None:
    """Changes the stable version, forward or back, and ends rollouts that it overtakes."""
    state = draft.state
    if version in state.previous:
        previous = state.previous[state.previous.index(version) + 1 :]
    else:
        previous = (*(() if state.stable is None else (state.stable,)), *state.previous)[:MAX_PREVIOUS]
    numbers = [number_of(name) for name in (version, state.stable) if name is not None]
    draft.set(stable=version, previous=previous, floor=max(state.floor, *numbers))
    for other in state.rollouts:
        if not other.is_rollback and min(number_of(name) for name in other.candidates) <= number_of(version):
            make_rolled_back(draft, other, "abort", reason=f"overtaken: {version} is stable now")


def hold_refresh(draft: Draft, reason: str) -> None:
    """Stops refresh from admitting anything until an operator resumes it."""
    if draft.state.policy.is_held:
        return
    draft.set(policy=_replace(draft.state.policy, is_held=True))
    draft.note("policy_changed", before="refresh admits", after="refresh is held", reason=reason)


def _ended(draft: Draft, status: RolloutStatus) -> dict[str, Any]:
    return {"status": status, "pause_cause": None, "paused_at": None, "finished_at": draft.now}
