"""The state of a model when serving begins: a new one, or what is there with what the operator asks for."""

import time
from dataclasses import dataclass
from typing import Literal

import msgspec

from rankhouse.embedding_cache.format.version_record import sequence_of
from rankhouse.serving.control import transitions
from rankhouse.serving.control.model_state import Change, ModelState, RefreshPolicy
from rankhouse.serving.control.rollout_spec import RolloutSpec
from rankhouse.serving.control.state_store import StateStore, change_state

ACTOR = "serve"

KEEP_LOADED_BYTES = 4 << 30

Refresh = Literal["direct", "rollout", "manual"]


@dataclass(frozen=True)
class Wish:
    """What the operator asks for.

    Attributes:
        version: The version that is to be served, and no other; None: what the policy brings.
        refresh: What happens with new versions; None: what the state says, `direct` where there is none.
        rollout: The steps of `rollout`.
        keep_loaded_bytes: What earlier versions may take; None: what the state says, 4 GiB where there is none.
    """

    version: str | None = None
    refresh: Refresh | None = None
    rollout: RolloutSpec | None = None
    keep_loaded_bytes: int | None = None


def settle_state(store: StateStore, model: str, wish: Wish) -> ModelState:
    """Has a store hold a state of the model that is as wished; what it holds already stays otherwise.

    Raises:
        AdmissionError: The version cannot be made stable: it is older than what was, or a rollout is active.
        TransitionError: `rollout` has no steps.
        StateStoreError: The store cannot be used.
    """
    admit: Refresh = "manual" if wish.version else "direct"
    store.create(ModelState(model=model, policy=RefreshPolicy(admit=admit, keep_loaded_bytes=KEEP_LOADED_BYTES)))
    now = time.time()
    state = change_state(store, model, lambda state: _with_policy(state, wish, now)).state
    if wish.version is not None:
        state = change_state(store, model, lambda state: _with_version(state, str(wish.version), now)).state
    return state


def _with_policy(state: ModelState, wish: Wish, now: float) -> Change | None:
    policy = state.policy
    refresh = "manual" if wish.version else wish.refresh
    if refresh is not None:
        rollout = wish.rollout if refresh == "rollout" else None
        policy = msgspec.structs.replace(policy, admit=refresh, rollout=rollout or policy.rollout)
        if refresh != "rollout":
            policy = msgspec.structs.replace(policy, rollout=None)
    if wish.keep_loaded_bytes is not None:
        policy = msgspec.structs.replace(policy, keep_loaded_bytes=wish.keep_loaded_bytes)
    return None if policy == state.policy else transitions.set_policy(state, policy, actor=ACTOR, now=now)


def _with_version(state: ModelState, version: str, now: float) -> Change | None:
    if state.stable == version:
        return None
    if sequence_of(version) > state.floor:
        return transitions.admit(state, version, actor=ACTOR, now=now, reason="--version", by_operator=True)
    return transitions.rollback_to(state, version, replicas=(), actor=ACTOR, now=now, reason="--version")
