"""The versions that this replica's own refresh agent brings into Triton."""

import asyncio
import time
from collections.abc import Callable, Mapping

from rankhouse.serving.control import transitions
from rankhouse.serving.control.model_state import Change, ModelState
from rankhouse.serving.control.state_store import StateStore, change_state
from rankhouse.serving.errors import SettingsError
from rankhouse.serving.gateway.call import Answered
from rankhouse.serving.gateway.loaded_versions import VersionsReport
from rankhouse.serving.gateway.scorer import Scorer
from rankhouse.serving.gateway.served_model import ServedModel
from rankhouse.serving.gateway.settings import Settings
from rankhouse.serving.refresh.agent import AgentOptions, RefreshAgent
from rankhouse.serving.triton_client import TritonClient

_ACTOR = "refresh"
_DRAIN_SECONDS = 0.01
_UNAVAILABLE = 503


class RefreshedVersions:
    """What a gateway that owns its model repository can answer with. For the event loop's thread only.

    Args:
        settings: Where the store, Triton and its repository are.
        client: The way to Triton.
        scorer: Says what is in flight on a version, and has the registry of metrics.
        store: The store of the shared state, which is told of what must not be tried again.

    Raises:
        SettingsError: There is no repository.
    """

    def __init__(self, settings: Settings, client: TritonClient, *, scorer: Scorer, store: StateStore) -> None:
        if settings.triton_repository is None:
            raise SettingsError("RANKHOUSE_TRITON_REPOSITORY is not set: the folder that Triton loads models from")
        self._model = settings.model
        self._scorer = scorer
        self._store = store
        self._models: dict[str, ServedModel] = {}
        self._on_change: Callable[[], None] = lambda: None
        options = AgentOptions(
            store=settings.store,
            model=settings.model,
            repository=settings.triton_repository,
            backends=settings.triton_backends,
            device=settings.triton_device,
            cache=settings.cache,
            watch_seconds=settings.watch_seconds,
            is_shared=settings.triton_shared,
            report_path=settings.refresh_file,
        )
        self._agent = RefreshAgent(
            options,
            client,
            on_change=self._changed,
            drained=self._drained,
            quarantine=self._quarantine,
            release=self._release,
            registry=scorer.metrics.registry,
        )
        scorer.observers.append(self._observe)

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """The versions that can answer, by name."""
        return self._models

    def follow(self, state: ModelState) -> None:
        """Takes note of the versions that are wanted now."""
        self._agent.follow(state)

    def refresh_now(self) -> None:
        """Looks for new versions at once."""
        self._agent.refresh_now()

    def report(self) -> VersionsReport:
        """What else is to be said of versions."""
        found = self._agent.report()
        details = {
            "alone_bytes": dict(found.alone_bytes),
            "quarantined": dict(found.quarantined),
            "store_problem": found.store_problem,
            "freshness": self._agent.freshness(),
            "is_triton_answering": found.is_triton_answering,
        }
        return VersionsReport(preparing=found.preparing, failed=found.failed, details=details)

    async def run(self, on_change: Callable[[], None]) -> None:
        """Keeps itself up to date until it is cancelled; `on_change` is called after each change."""
        self._on_change = on_change
        try:
            await self._agent.run()
        except asyncio.CancelledError:
            await self._agent.stop()
            raise

    def _changed(self) -> None:
        loaded, prepared = self._agent.loaded, self._agent.prepared
        if loaded == self._models.keys():
            return
        self._models = {
            name: self._models.get(name)
            or ServedModel.of(self._model, name, prepared[name].features, prepared[name].golden)
            for name in sorted(loaded)
        }
        self._on_change()

    def _observe(self, answered: Answered) -> None:
        if answered.status == _UNAVAILABLE:
            self._agent.look_now()

    async def _drained(self, version: str) -> None:
        while self._scorer.num_in_flight(version):
            await asyncio.sleep(_DRAIN_SECONDS)

    async def _quarantine(self, version: str, reason: str) -> None:
        now = time.time()
        await self._change(lambda state: transitions.quarantine(state, version, actor=_ACTOR, now=now, reason=reason))

    async def _release(self, version: str, reason: str) -> None:
        now = time.time()
        await self._change(lambda state: transitions.release(state, version, actor=_ACTOR, now=now, reason=reason))

    async def _change(self, command: Callable[[ModelState], Change]) -> None:
        await asyncio.to_thread(change_state, self._store, self._model, command)
