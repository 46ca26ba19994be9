"""An agent with a shared state of its own: what a control loop and a conductor do, in memory."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from rankhouse.embedding_cache.format.version_record import sequence_of
from rankhouse.serving.control import transitions
from rankhouse.serving.control.model_state import ModelState, RefreshPolicy, ReplicaReport
from rankhouse.serving.errors import AdmissionError
from rankhouse.serving.model_repository import ensemble_name
from rankhouse.serving.refresh.agent import AgentOptions, RefreshAgent
from rankhouse.serving.triton_client import TritonClient
from tests.serving.small_version import MODEL, ROWS, Weights, raw_batch

SECONDS = 300.0
ENOUGH = 1 << 40


class Replica:
    """Admits what is loaded, as policy says, and quarantines what the agent asks for."""

    def __init__(self, options: AgentOptions, client: TritonClient, policy: RefreshPolicy) -> None:
        self.client = client
        self.state = ModelState(model=MODEL, policy=policy)
        self.drained: list[str] = []
        self.history: list[frozenset[str]] = []
        self.agent = RefreshAgent(
            options,
            client,
            on_change=self._on_change,
            drained=self._drained,
            quarantine=self._quarantine,
            release=self._release,
        )

    def set(self, state: ModelState) -> None:
        self.state = state
        self.agent.follow(state)

    def reported(self) -> ReplicaReport:
        return ReplicaReport("one", MODEL, time.time(), loaded=tuple(self.agent.loaded))

    async def eventually(self, is_so: Callable[[], Any]) -> None:
        deadline = time.monotonic() + SECONDS
        while not is_so():
            assert time.monotonic() < deadline, (self.state, self.agent.report())
            await asyncio.sleep(0.01)

    async def serves(self, version: str) -> None:
        await self.eventually(lambda: self.state.stable == version and self.agent.is_ready)

    async def check_scores(self, version: str, seed: int) -> None:
        result = await self.client.score(ensemble_name(MODEL, version), raw_batch(ROWS), timeout_seconds=SECONDS)
        np.testing.assert_allclose(result.scores, Weights(seed).scores(ROWS), rtol=0, atol=1e-6)

    def _on_change(self) -> None:
        self.history.append(self.agent.loaded)
        for version in sorted(self.agent.loaded, key=sequence_of, reverse=True):
            with suppress(AdmissionError):
                self.set(transitions.admit(self.state, version, now=time.time()).state)
                return

    async def _drained(self, version: str) -> None:
        assert version not in self.agent.loaded
        self.drained.append(version)

    async def _quarantine(self, version: str, reason: str) -> None:
        change = transitions.quarantine(self.state, version, actor="refresh", now=time.time(), reason=reason)
        assert change is not None
        self.set(change.state)

    async def _release(self, version: str, reason: str) -> None:
        self.set(transitions.release(self.state, version, actor="refresh", now=time.time(), reason=reason).state)


@asynccontextmanager
async def replica(
    store: Path | str, triton_url: str, repository: Path, *, keep_loaded_bytes: int = ENOUGH, **options: Any
) -> AsyncIterator[Replica]:
    """Runs an agent for the time of a `with`."""
    settings = {"watch_seconds": 0.05, "settle_seconds": 0.3, **options}
    async with TritonClient(triton_url) as client:
        running = Replica(
            AgentOptions(str(store), MODEL, repository, **settings),
            client,
            RefreshPolicy(keep_loaded_bytes=keep_loaded_bytes),
        )
        running.agent.follow(running.state)
        task = asyncio.create_task(running.agent.run())
        try:
            yield running
            assert not task.done() or task.result() is None
        finally:
            task.cancel()
            await running.agent.stop()
            await asyncio.gather(task, return_exceptions=True)
