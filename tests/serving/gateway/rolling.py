"""Two versions of one model in Triton, and states in which one of them is rolled out."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.control.model_state import Change, ModelState, RefreshPolicy, ReplicaReport
from rankhouse.serving.control.progress import advance
from rankhouse.serving.control.rollout_spec import read_rollout
from rankhouse.serving.control.state_store import StateStore, change_state
from rankhouse.serving.control.state_stores import open_state_store
from rankhouse.serving.control.transitions import start_rollout
from rankhouse.serving.gateway.served_model import ServedModel
from rankhouse.serving.model_repository import write_models
from rankhouse.serving.triton_client import TritonClient
from rankhouse.serving.triton_server import TritonServer
from tests.serving.small_version import MODEL, Weights, write_version

SECONDS = 300.0


@dataclass(frozen=True)
class TwoVersions:
    """A store with two versions, and the truth about each."""

    store: Path
    stable: Version
    candidate: Version
    weights: dict[str, Weights]

    @property
    def models(self) -> dict[str, ServedModel]:
        return {name: ServedModel.open(self.store, MODEL, name) for name in self.weights}

    def state(self, *, stable: Version | None = None) -> ModelState:
        """The state in which one of them, or `stable`, answers everything, and nothing changes by itself."""
        stable, policy = stable or self.stable, RefreshPolicy(is_held=True)
        previous = tuple(version.name for version in (self.stable, self.candidate) if version is not stable)
        return ModelState(model=MODEL, stable=stable.name, previous=previous, policy=policy)

    def rolling(self, *, weight: float, shadow: float = 0.0) -> ModelState:
        """The state in which the candidate has `weight` percent, and shadows `shadow` percent of the others."""
        return rolled_out(self.state(), [self.candidate.name], weight=weight, shadow=shadow)


def two_versions(store: Path, *seeds: int) -> TwoVersions:
    versions = [write_version(store, seed=seed) for seed in seeds]
    weights = {version.name: Weights(seed) for version, seed in zip(versions, seeds, strict=True)}
    return TwoVersions(store, versions[0], versions[1], weights)


def load(triton: TritonServer, *versions: Version) -> None:
    async def load_all() -> None:
        async with TritonClient(triton.grpc_url) as client:
            for version in versions:
                await client.load(write_models(version, repository=triton.repository))

    asyncio.run(load_all())


def rolled_out(state: ModelState, candidates: Sequence[str], *, weight: float, shadow: float = 0.0) -> ModelState:
    """A state in which a rollout of these has begun, and stays where it is."""
    step = f"{{weight: {weight}, pause: manual}}"
    spec = read_rollout(f"{{candidates: [{', '.join(candidates)}], steps: [{step}], shadow: {shadow}}}")
    now = time.time()
    pending = start_rollout(state, spec, actor="test", now=now).state
    change = advance(pending, now=now, replicas=[_having(*candidates)], verdicts={})
    assert change is not None
    return change.state


def patient_store(url: str) -> StateStore:
    """The store of a test, which waits for a gateway that writes, however long its disk takes."""
    return open_state_store(url, timeout_seconds=SECONDS)


def put(store: StateStore, state: ModelState) -> int:
    """Makes a state the stored one, whatever is there; returns its revision."""
    store.create(state)
    return change_state(store, state.model, lambda _: Change(state, ())).revision


def _having(*versions: str) -> ReplicaReport:
    return ReplicaReport(replica="test", model=MODEL, at=time.time(), loaded=versions)


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)
