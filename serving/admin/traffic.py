"""How the request keys were shared among versions over time, for readers: the state store has a point per change."""

import msgspec

from rankhouse.serving.control.model_state import ModelState
from rankhouse.serving.control.state_store import StateStore

_MAX_POINTS = 500


class TrafficPoint(msgspec.Struct, frozen=True):
    """Which version answered how many percent of the keys from a time on."""

    at: float
    weights: dict[str, float]


def traffic_weights(state: ModelState) -> dict[str, float]:
    """Percent of the request keys by version; empty before the first version."""
    weights: dict[str, float] = {}
    for rollout in state.rollouts:
        for arm in rollout.arms:
            if arm.weight:
                weights[arm.version] = round(weights.get(arm.version, 0.0) + arm.weight, 2)
    if state.stable is not None:
        weights[state.stable] = round(100.0 - sum(weights.values()), 2)
    return weights


def read_traffic(store: StateStore, model: str) -> list[TrafficPoint]:
    """All points, the oldest first. Blocks."""
    content = store.get_value(_name(model))
    return [] if content is None else msgspec.json.decode(content, type=list[TrafficPoint])


def note_traffic(store: StateStore, state: ModelState, now: float) -> None:
    """Adds a point if the shares are others than at the last one. Blocks."""
    weights = traffic_weights(state)
    points = read_traffic(store, state.model)
    if weights and (not points or points[-1].weights != weights):
        kept = [*points, TrafficPoint(now, weights)][-_MAX_POINTS:]
        store.put_value(_name(state.model), msgspec.json.encode(kept))


def _name(model: str) -> str:
    return f"traffic/{model}"
