"""Commands over a model's state: what an operator may ask for, made as a change that the store commits.

Each reads, decides by a pure function of serving/control, and commits; when another writer was faster it decides again,
on what is there now. A command that finds already done what it asks for changes nothing and succeeds, so it may be sent
twice.
"""

import time
from collections.abc import Callable
from typing import Any

import msgspec

from rankhouse.serving.admin.catalog import VersionCatalog
from rankhouse.serving.admin.keys import Caller
from rankhouse.serving.admin.plans import RolloutPlan, plan_of
from rankhouse.serving.control import transitions
from rankhouse.serving.control.model_state import Change, ModelState, RefreshPolicy, Rollout, number_of
from rankhouse.serving.control.rollout_spec import LATEST, RolloutSpec
from rankhouse.serving.control.state_store import StateStore, Stored, change_state
from rankhouse.serving.errors import AdmissionError, InvalidFieldError, NoSuchRolloutError

LONGEST_REASON = 1000
NEWEST = "latest"  # As a rollout's id: the one that was started last.


class Commands:
    """Changes one model's state for callers of the admin API. Blocks; any thread may use it.

    Every command raises StateStoreError where the store is away, ConflictError where others are faster all the time,
    and what the functions of transitions.py raise where the state does not allow it.

    Args:
        store: Holds the state.
        model: Whose state it is.
        catalog: Knows what `latest` is; None where no version store is known here.
    """

    def __init__(self, store: StateStore, model: str, *, catalog: VersionCatalog | None) -> None:
        self._store = store
        self._model = model
        self._catalog = catalog

    def start(self, spec: RolloutSpec, *, by: Caller, reason: str) -> Rollout:
        """Starts a rollout. An active one of the same caller and spec is taken for this one, sent before."""
        filled = self._with_latest(spec)

        def command(state: ModelState) -> Change | None:
            if any(self._is_same(rollout, filled, by) for rollout in state.rollouts):
                return None
            return transitions.start_rollout(state, filled, actor=by.name, now=time.time(), reason=_checked(reason))

        state = self._make(command).state
        return next(each for each in reversed(state.rollouts) if self._is_same(each, filled, by))

    def plan(self, spec: RolloutSpec, *, by: Caller) -> RolloutPlan:
        """Says what `start` would do now, and does nothing."""
        state = self._store.read(self._model).state
        filled = self._with_latest(spec)
        transitions.start_rollout(state, filled, actor=by.name, now=time.time())
        return plan_of(filled, state, self._store.replicas(self._model))

    def pause(self, rollout: str, *, by: Caller, reason: str) -> Rollout:
        """Stops a rollout where it is."""
        return self._move(rollout, transitions.pause, by, reason, done="paused")

    def resume(self, rollout: str, *, by: Caller, reason: str) -> Rollout:
        """Lets a paused rollout go on."""
        return self._move(rollout, transitions.resume, by, reason, done=("pending", "progressing"))

    def promote(self, rollout: str, *, by: Caller, reason: str, version: str | None = None) -> Rollout:
        """Makes a rollout's candidate the stable version at once."""

        def promote(state: ModelState, rollout: str, **how: Any) -> Change:
            replicas = self._store.replicas(self._model)
            return transitions.promote(state, rollout, version=version, replicas=replicas, **how)

        return self._move(rollout, promote, by, reason, done="promoted")

    def abort(self, rollout: str, *, by: Caller, reason: str) -> Rollout:
        """Rolls a rollout back at once."""
        return self._move(rollout, transitions.abort, by, reason, done="rolled_back")

    def skip_step(self, rollout: str, *, by: Caller, reason: str, step: int | None = None) -> Rollout:
        """Ends a rollout's step at once.

        Args:
            rollout: The rollout's id.
            by: Who.
            reason: Why.
            step: The step that is meant, from 0; one that is over already is not skipped again.
        """

        def skip(state: ModelState, rollout: str, **how: Any) -> Change | None:
            is_over = step is not None and any(each.id == rollout and each.step > step for each in state.rollouts)
            if is_over:
                return None
            return transitions.skip_step(state, rollout, replicas=self._store.replicas(self._model), **how)

        return self._move(rollout, skip, by, reason, done="promoted")

    def set_weight(self, rollout: str, weight: float, *, by: Caller, reason: str) -> Rollout:
        """Gives a rollout's candidates another share now."""

        def set_weight(state: ModelState, rollout: str, **how: Any) -> Change | None:
            arms = next((each.arms for each in state.rollouts if each.id == rollout), ())
            is_done = bool(arms) and all(arm.weight == weight for arm in arms)
            return None if is_done else transitions.set_weight(state, rollout, weight, **how)

        return self._move(rollout, set_weight, by, reason, done=())

    def rollback(self, version: str, *, by: Caller, reason: str) -> Stored:
        """Brings an earlier stable version back; with none named, the one before."""

        def command(state: ModelState) -> Change | None:
            wanted = version or next(iter(state.previous), "")
            if wanted == state.stable and version:
                return None
            if not wanted:
                raise AdmissionError(f"model {state.model} has no earlier stable version to go back to")
            if any(each.is_rollback and each.candidates == (wanted,) for each in state.rollouts):
                return None
            replicas = self._store.replicas(self._model)
            return transitions.rollback_to(
                state, wanted, replicas=replicas, actor=by.name, now=time.time(), reason=_checked(reason)
            )

        return self._make(command)

    def admit(self, version: str, *, by: Caller, reason: str) -> Stored:
        """Makes a newer version stable, whatever the policy says, as soon as all replicas have loaded it."""

        def command(state: ModelState) -> Change | None:
            is_under_way = any(each.candidates == (version,) for each in state.rollouts)
            if state.stable == version or is_under_way:
                return None
            replicas = self._store.replicas(self._model)
            return transitions.admit_everywhere(
                state, version, replicas=replicas, actor=by.name, now=time.time(), reason=_checked(reason)
            )

        return self._make(command)

    def hold(self, *, is_held: bool, by: Caller, reason: str) -> Stored:
        """Stops refresh from admitting anything, or lets it go on."""
        return self._set_policy(lambda policy: msgspec.structs.replace(policy, is_held=is_held), by, reason)

    def set_policy(self, policy: RefreshPolicy, *, by: Caller, reason: str, keeps_bytes: bool = False) -> Stored:
        """Changes what happens with new versions; what is held stays held.

        Args:
            policy: What is to happen.
            by: Who.
            reason: Why.
            keeps_bytes: What earlier versions may take stays as it is.
        """

        def changed(old: RefreshPolicy) -> RefreshPolicy:
            size = old.keep_loaded_bytes if keeps_bytes else policy.keep_loaded_bytes
            return msgspec.structs.replace(policy, is_held=old.is_held, keep_loaded_bytes=size)

        return self._set_policy(changed, by, reason)

    def set_holdout(self, percent: float, *, by: Caller, reason: str) -> Stored:
        """Changes the share of request keys that no candidate gets before its promotion."""

        def command(state: ModelState) -> Change | None:
            if state.holdout_percent == percent:
                return None
            return transitions.set_holdout(state, percent, actor=by.name, now=time.time(), reason=_checked(reason))

        return self._make(command)

    def quarantine(self, version: str, *, by: Caller, reason: str) -> Stored:
        """Keeps a version from traffic."""
        if not reason:
            raise InvalidFieldError("is empty; say why, since others must decide whether to release it", "reason")

        def command(state: ModelState) -> Change | None:
            if version in state.quarantined:
                return None
            return transitions.quarantine(state, version, actor=by.name, now=time.time(), reason=_checked(reason))

        return self._make(command)

    def release(self, version: str, *, by: Caller, reason: str) -> Stored:
        """Takes a version out of quarantine."""
        return self._make(
            lambda state: transitions.release(state, version, actor=by.name, now=time.time(), reason=_checked(reason))
        )

    def find(self, rollout: str) -> Rollout:
        """A rollout, active or finished, by its id; `latest` is the one that was started last.

        Raises:
            NoSuchRolloutError: There is none.
        """
        active = self._store.read(self._model).state.rollouts
        if rollout == NEWEST:
            newest = max(
                (*active, *self._store.finished(self._model)), key=lambda each: (each.created_at, each.id), default=None
            )
            if newest is None:
                raise NoSuchRolloutError(f"model {self._model} has had no rollout yet")
            return newest
        for each in (*active, *self._store.finished(self._model, limit=500)):
            if each.id == rollout:
                return each
        raise NoSuchRolloutError(
            f"model {self._model} has no rollout {rollout[:40]!r}; GET /admin/v1/rollouts lists those that there are"
        )

    def _move(
        self,
        name: str,
        transition: Callable[..., Change | None],
        by: Caller,
        reason: str,
        *,
        done: str | tuple[str, ...],
    ) -> Rollout:
        """Moves a rollout, unless its status is what the command would make it."""
        rollout = self.find(name) if name == NEWEST else None
        rollout_id = name if rollout is None else rollout.id
        statuses = (done,) if isinstance(done, str) else done

        def command(state: ModelState) -> Change | None:
            for each in state.rollouts:
                if each.id == rollout_id and each.status in statuses:
                    return None
            if all(each.id != rollout_id for each in state.rollouts) and self.find(rollout_id).status in statuses:
                return None
            return transition(state, rollout_id, actor=by.name, now=time.time(), reason=_checked(reason))

        self._make(command)
        return self.find(rollout_id)

    def _set_policy(self, changed: Callable[[RefreshPolicy], RefreshPolicy], by: Caller, reason: str) -> Stored:
        def command(state: ModelState) -> Change | None:
            policy = changed(state.policy)
            if policy == state.policy:
                return None
            return transitions.set_policy(state, policy, actor=by.name, now=time.time(), reason=_checked(reason))

        return self._make(command)

    def _make(self, command: Callable[[ModelState], Change | None]) -> Stored:
        return change_state(self._store, self._model, command)

    def _with_latest(self, spec: RolloutSpec) -> RolloutSpec:
        if LATEST not in spec.candidates:
            return spec
        loaded = {name for each in self._store.replicas(self._model) for name in (*each.loaded, *each.preparing)}
        known = [] if self._catalog is None else [each.name for each in self._catalog.entries() if not each.problem]
        newest = max({*known, *loaded}, key=lambda name: (number_of(name), name), default=None)
        if newest is None:
            raise AdmissionError("the candidate is latest, but neither a replica nor the version store has any version")
        return spec.with_candidates(*(newest if name == LATEST else name for name in spec.candidates))

    @staticmethod
    def _is_same(rollout: Rollout, spec: RolloutSpec, by: Caller) -> bool:
        return rollout.spec == spec and rollout.created_by == by.name


def _checked(reason: str) -> str:
    if len(reason) > LONGEST_REASON:
        raise InvalidFieldError(f"has {len(reason)} characters; expected at most {LONGEST_REASON}", "reason")
    return reason
