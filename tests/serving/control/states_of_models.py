"""States, specs and reports to try things on."""

from collections.abc import Sequence

from rankhouse.serving.analysis.spec import Verdict
from rankhouse.serving.control import transitions
from rankhouse.serving.control.model_state import ModelState, ReplicaReport, Rollout, verdict_key
from rankhouse.serving.control.moves import Draft, enter_step
from rankhouse.serving.control.rollout_spec import RolloutSpec, parse_rollout

ANALYSIS = {"alpha": 0.05, "min_requests": 100, "metrics": [{"name": "error_rate", "max_increase": 0.001}]}


def name(number: int) -> str:
    """A version's name."""
    return f"{number:06d}-c873e97f"


def spec(*candidates: int, **keys: object) -> RolloutSpec:
    """A rollout of versions, of one step of 10 percent unless told otherwise."""
    document: dict[str, object] = {"candidates": [name(number) for number in candidates], "steps": [{"weight": 10}]}
    return parse_rollout(document | keys)


def stable_at(number: int, **fields: object) -> ModelState:
    """A model whose stable version has a number."""
    state = ModelState("m", stable=name(number), floor=number, salt="salt")
    return type(state)(**({key: getattr(state, key) for key in state.__struct_fields__} | fields))  # type: ignore[arg-type]


def replica(*numbers: int, replica_id: str = "a", **fields: object) -> ReplicaReport:
    """A report of a replica that has loaded versions."""
    return ReplicaReport(replica_id, "m", 0.0, loaded=tuple(name(each) for each in numbers), **fields)  # type: ignore[arg-type]


def started(state: ModelState, wanted: RolloutSpec, *, now: float = 10.0) -> ModelState:
    """The state with one more rollout, pending."""
    return transitions.start_rollout(state, wanted, actor="ann", now=now, reason="try it").state


def begun(state: ModelState, wanted: RolloutSpec, *, now: float = 10.0) -> ModelState:
    """The state with one more rollout, in its first step."""
    draft = Draft(started(state, wanted, now=now), actor="conductor", now=now, reason="")
    enter_step(draft, draft.state.rollouts[-1], 0, "advance")
    return draft.state


def verdicts(rollout: Rollout, outcomes: Sequence[str]) -> dict[str, Verdict]:
    """Verdicts for a rollout's candidates, in order, for its step of now."""
    keys = [verdict_key(rollout.id, rollout.step, version) for version in rollout.candidates]
    return {key: Verdict(outcome) for key, outcome in zip(keys, outcomes, strict=True)}  # type: ignore[arg-type]
