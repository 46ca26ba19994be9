"""What the shared state asks of one replica."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rankhouse.embedding_cache.format.version_record import sequence_of
from rankhouse.serving.control.model_state import ModelState


@dataclass(frozen=True)
class Demand:
    """Which versions a replica must have, and which it may look for.

    Attributes:
        stable: The version that answers by default; None before there is one.
        candidates: Versions of rollouts under way, whether they get requests yet or not.
        earlier: Earlier stable versions, newest first.
        floor: Only versions above this number may be admitted.
        is_admitting: Whether new versions are to be looked for.
        quarantined: Versions that must not be tried, and why.
        keep_loaded_bytes: What earlier versions may take.
    """

    stable: str | None = None
    candidates: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()
    floor: int = 0
    is_admitting: bool = True
    quarantined: Mapping[str, str] = field(default_factory=dict)
    keep_loaded_bytes: int = 0

    @classmethod
    def of(cls, state: ModelState) -> "Demand":
        """Reads it off a state."""
        candidates = dict.fromkeys(name for rollout in state.rollouts for name in rollout.candidates)
        policy = state.policy
        # The first version comes in by itself, whatever the policy says of new ones.
        admits = policy.admit != "manual" or state.stable is None
        return cls(
            stable=state.stable,
            candidates=tuple(name for name in candidates if name != state.stable),
            earlier=state.previous,
            floor=max(state.floor, 0 if state.stable is None else sequence_of(state.stable)),
            is_admitting=admits and not policy.is_held and not state.rollouts,
            quarantined=dict(state.quarantined),
            keep_loaded_bytes=policy.keep_loaded_bytes,
        )

    @property
    def routed(self) -> tuple[str, ...]:
        """What requests may be answered by, stable first."""
        return self.candidates if self.stable is None else (self.stable, *self.candidates)
