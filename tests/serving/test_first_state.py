from collections.abc import Iterator
from pathlib import Path

import pytest

from rankhouse.serving.control import transitions
from rankhouse.serving.control.model_state import RefreshPolicy
from rankhouse.serving.control.rollout_spec import parse_rollout
from rankhouse.serving.control.state_store import StateStore, change_state
from rankhouse.serving.control.state_stores import open_state_store
from rankhouse.serving.errors import AdmissionError, TransitionError
from rankhouse.serving.first_state import KEEP_LOADED_BYTES, Wish, settle_state

MODEL = "small"
FIRST, SECOND, THIRD = "000001-aaaaaaaa", "000002-bbbbbbbb", "000003-cccccccc"
STEPS = parse_rollout({"steps": [{"weight": 5, "pause": "1m"}, {"weight": 100}]}, is_template=True)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[StateStore]:
    store = open_state_store(f"sqlite://{tmp_path / 'state.db'}")
    yield store
    store.close()


def admit(store: StateStore, *versions: str) -> None:
    for version in versions:
        change_state(store, MODEL, lambda state, version=version: transitions.admit(state, version, now=0.0))  # type: ignore[misc]


def test_a_new_state_admits_what_comes(store: StateStore) -> None:
    state = settle_state(store, MODEL, Wish())
    assert (state.stable, state.policy) == (None, RefreshPolicy(admit="direct", keep_loaded_bytes=KEEP_LOADED_BYTES))
    assert store.revision(MODEL) == 1


def test_a_version_is_served_and_no_other(store: StateStore) -> None:
    state = settle_state(store, MODEL, Wish(version=SECOND, keep_loaded_bytes=7))
    assert (state.stable, state.policy) == (SECOND, RefreshPolicy(admit="manual", keep_loaded_bytes=7))
    assert store.history(MODEL)[0].kind == "admitted"


def test_what_is_there_stays(store: StateStore) -> None:
    settle_state(store, MODEL, Wish(refresh="rollout", rollout=STEPS))
    admit(store, FIRST)
    before = store.read(MODEL)
    assert settle_state(store, MODEL, Wish()) == before.state
    assert store.revision(MODEL) == before.revision
    state = settle_state(store, MODEL, Wish(refresh="manual"))
    assert (state.stable, state.policy) == (FIRST, RefreshPolicy(admit="manual", keep_loaded_bytes=KEEP_LOADED_BYTES))


def test_a_version_takes_the_place_of_what_was_served(store: StateStore) -> None:
    settle_state(store, MODEL, Wish())
    admit(store, FIRST, SECOND)
    assert settle_state(store, MODEL, Wish(version=SECOND)).stable == SECOND
    assert settle_state(store, MODEL, Wish(version=THIRD)).stable == THIRD
    state = settle_state(store, MODEL, Wish(version=FIRST))
    assert [rollout.candidates for rollout in state.rollouts] == [(FIRST,)], "it comes back when it is loaded"


def test_an_older_version_that_was_never_served_is_refused(store: StateStore) -> None:
    settle_state(store, MODEL, Wish())
    admit(store, THIRD)
    with pytest.raises(AdmissionError, match=r"000001-aaaaaaaa.* is no earlier stable version of small"):
        settle_state(store, MODEL, Wish(version=FIRST))


def test_a_rollout_needs_steps(store: StateStore) -> None:
    with pytest.raises(TransitionError, match="has none"):
        settle_state(store, MODEL, Wish(refresh="rollout"))
