"""The statuses of a rollout and the commands that move it: one table, as docs/rollout.md shows it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

from rankhouse.serving.errors import TransitionError

RolloutStatus: TypeAlias = Literal["pending", "progressing", "paused", "promoted", "rolled_back"]
Command: TypeAlias = Literal["advance", "pause", "resume", "promote", "abort", "skip_step", "set_weight"]

STATUSES: tuple[RolloutStatus, ...] = ("pending", "progressing", "paused", "promoted", "rolled_back")
FINISHED: tuple[RolloutStatus, ...] = ("promoted", "rolled_back")

# What each command may make of each status; a status that is missing refuses the command. `advance` is the conductor's:
# it follows the steps, and ends or pauses a rollout that fails its analysis. Finished rollouts take no command.
TRANSITIONS: Mapping[Command, Mapping[RolloutStatus, tuple[RolloutStatus, ...]]] = MappingProxyType(
    {
        "advance": {
            "pending": ("progressing", "paused", "rolled_back"),
            "progressing": ("progressing", "paused", "promoted", "rolled_back"),
            "paused": ("paused", "rolled_back"),
        },
        "pause": {"pending": ("paused",), "progressing": ("paused",)},
        "resume": {"paused": ("pending", "progressing")},
        "promote": {"progressing": ("promoted",), "paused": ("promoted",)},
        "abort": {"pending": ("rolled_back",), "progressing": ("rolled_back",), "paused": ("rolled_back",)},
        "skip_step": {
            "progressing": ("progressing", "paused", "promoted"),
            "paused": ("progressing", "paused", "promoted"),
        },
        "set_weight": {"progressing": ("progressing",), "paused": ("paused",)},
    }
)

# What an event of the history may be; webhooks choose among them.
EVENT_KINDS = (
    *("started", "stepped", "paused", "resumed", "weighted", "dropped", "promoted", "rolled_back"),
    *("admitted", "reverted", "quarantined", "released", "policy_changed", "holdout_changed", "drifted"),
)


def check_allowed(command: Command, status: RolloutStatus, *, rollout: str) -> None:
    """Refuses a command that the rollout's status does not take.

    Raises:
        TransitionError: The table has no such transition.
    """
    allowed = TRANSITIONS[command]
    if status not in allowed:
        raise TransitionError(
            f"rollout {rollout} is {status}, which does not take the command {command}; "
            f"{command} needs a rollout that is {' or '.join(allowed)}"
        )
