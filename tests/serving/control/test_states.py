"""Each command from each status: what the table allows happens, all else is refused, and the documentation agrees."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rankhouse.serving.control import transitions
from rankhouse.serving.control.model_state import Change, ModelState
from rankhouse.serving.control.states import EVENT_KINDS, FINISHED, STATUSES, TRANSITIONS, Command, RolloutStatus
from rankhouse.serving.errors import NoSuchRolloutError, TransitionError
from tests.serving.control.states_of_models import begun, name, spec, stable_at, started

DOCUMENT = Path(__file__).parents[3] / "docs" / "rollout.md"
ROLLOUT = "r000001"
BY: dict[str, object] = {"actor": "ann", "now": 50.0, "reason": "because"}
COMMANDS: dict[Command, Callable[[ModelState], Change]] = {
    "pause": lambda state: transitions.pause(state, ROLLOUT, **BY),  # type: ignore[arg-type]
    "resume": lambda state: transitions.resume(state, ROLLOUT, **BY),  # type: ignore[arg-type]
    "promote": lambda state: transitions.promote(state, ROLLOUT, **BY),  # type: ignore[arg-type]
    "abort": lambda state: transitions.abort(state, ROLLOUT, **BY),  # type: ignore[arg-type]
    "skip_step": lambda state: transitions.skip_step(state, ROLLOUT, **BY),  # type: ignore[arg-type]
    "set_weight": lambda state: transitions.set_weight(state, ROLLOUT, 20.0, **BY),  # type: ignore[arg-type]
}
WANTED = spec(2, steps=[{"weight": 10, "pause": "1h"}, {"weight": 20, "pause": "1h"}])


def in_status(status: RolloutStatus) -> ModelState:
    """A model with a rollout in a status; finished ones are gone from the state."""
    if status == "pending":
        return started(stable_at(1), WANTED)
    state = begun(stable_at(1), WANTED)
    made = {"paused": "pause", "promoted": "promote", "rolled_back": "abort"}
    return COMMANDS[made[status]](state).state if status in made else state  # type: ignore[index]


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_from_each_status(command: Command, status: RolloutStatus) -> None:
    state = in_status(status)
    if status in FINISHED:
        with pytest.raises(NoSuchRolloutError, match=r"'r000001'; active are: none\. Finished ones take no commands"):
            COMMANDS[command](state)
    elif status in TRANSITIONS[command]:
        change = COMMANDS[command](state)
        [after] = change.finished or change.state.rollouts
        assert after.status in TRANSITIONS[command][status]
        assert {event.kind for event in change.events} <= set(EVENT_KINDS)
        assert all((event.actor, event.at, event.model) == ("ann", 50.0, "m") for event in change.events)
        assert change.events[0].rollout == ROLLOUT
        assert change.events[0].version == name(2)
        assert change.events[0].reason == "because"
    else:
        with pytest.raises(TransitionError, match=f"rollout r000001 is {status}, which does not take .* {command}"):
            COMMANDS[command](state)


@pytest.mark.parametrize("command", ["promote", "skip_step", "set_weight"])
def test_a_rollout_that_was_paused_before_it_began_needs_its_replicas(command: Command) -> None:
    state = COMMANDS["pause"](in_status("pending")).state
    with pytest.raises(TransitionError, match=f"is paused and has not begun.*{command} needs that"):
        COMMANDS[command](state)
    assert COMMANDS["resume"](state).state.rollouts[0].status == "pending"


def test_every_status_but_the_finished_ones_can_be_left() -> None:
    for status in STATUSES:
        leaving = {to for table in TRANSITIONS.values() for to in table.get(status, ())} - {status}
        assert bool(leaving) == (status not in FINISHED)


def test_the_documentation_shows_the_same_table() -> None:
    rows = [line.strip("| ").split("|") for line in DOCUMENT.read_text().splitlines() if line.startswith("|")]
    shown = {row[0].strip().strip("`"): [cell.strip() for cell in row[1:]] for row in rows}
    active = [status for status in STATUSES if status not in FINISHED]
    assert shown["command"] == active
    for command, table in TRANSITIONS.items():
        assert shown[command] == [", ".join(table.get(status, ())) or "refused" for status in active], command


@pytest.mark.parametrize("kind", EVENT_KINDS)
def test_the_documentation_names_every_kind_of_event(kind: str) -> None:
    assert f"`{kind}`" in DOCUMENT.read_text()
