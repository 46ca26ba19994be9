"""Which versions this replica can answer with."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rankhouse.embedding_cache.format.errors import FormatError
from rankhouse.serving.control.model_state import ModelState
from rankhouse.serving.errors import TritonError
from rankhouse.serving.gateway.served_model import ServedModel
from rankhouse.serving.model_repository import ensemble_name
from rankhouse.serving.triton_client import TritonClient

_SECONDS = 1.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class VersionsReport:
    """What a replica tells the others of its versions, beside those that are loaded.

    Attributes:
        preparing: Versions on their way, and how far they are.
        failed: Versions that could not be loaded, and why.
        details: More for operators.
    """

    preparing: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


class LoadedVersions(Protocol):
    """Knows the versions that Triton has loaded, and may load more. For the event loop's thread only."""

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """The versions that can answer, by name; a new mapping after each change."""

    def follow(self, state: ModelState) -> None:
        """Takes note of the versions that are wanted now."""

    def report(self) -> VersionsReport:
        """What else is to be said of versions."""

    def refresh_now(self) -> None:
        """Looks for versions now, not only when it is time to."""

    async def run(self, on_change: Callable[[], None]) -> None:
        """Keeps itself up to date until it is cancelled; `on_change` is called after each change."""


class FoundVersions:
    """The versions that somebody else has loaded into Triton: those of the state are looked for, nothing is loaded.

    Args:
        client: The way to Triton.
        model: A version that is looked for whatever the state wants.
        store: The version store.
        cache: The folder below which a URL is mirrored.
    """

    def __init__(self, client: TritonClient, model: ServedModel, *, store: Path | str, cache: Path | None) -> None:
        self._client = client
        self._model = model
        self._store = store
        self._cache = cache
        self._opened: dict[str, ServedModel] = {model.version: model}
        self._models: Mapping[str, ServedModel] = {}
        self._failed: dict[str, str] = {}
        self._wanted: set[str] = set()
        self._is_asked = asyncio.Event()

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """The versions that can answer, by name."""
        return self._models

    def follow(self, state: ModelState) -> None:
        """Takes note of the versions that are wanted now, and looks for them."""
        wanted = {state.stable, *state.previous, *(name for rollout in state.rollouts for name in rollout.candidates)}
        self._wanted = {name for name in wanted if name is not None}
        self.refresh_now()

    def refresh_now(self) -> None:
        """Looks for versions now."""
        self._is_asked.set()

    def report(self) -> VersionsReport:
        """Says which versions could not be read."""
        return VersionsReport(failed=dict(self._failed))

    async def run(self, on_change: Callable[[], None]) -> None:
        """Looks for the versions that are wanted, each second and when they change."""
        while True:
            self._is_asked.clear()
            if await self._look():
                on_change()
            try:
                await asyncio.wait_for(self._is_asked.wait(), _SECONDS)
            except asyncio.TimeoutError:
                continue

    async def _look(self) -> bool:
        """Looks once; says whether something changed."""
        names = sorted(self._wanted | {self._model.version})
        for known in (self._opened, self._failed):
            for gone in known.keys() - set(names):
                del known[gone]
        found = {name: model for name in names if (model := await self._found(name)) is not None}
        # A Triton that gives no answer at all takes no version away: its requests fail by themselves, and come back.
        if found.keys() != self._models.keys() and (found or await self._client.is_ready()):
            self._models = found
            return True
        return False

    async def _found(self, name: str) -> ServedModel | None:
        try:
            if not await self._client.is_ready(ensemble_name(self._model.name, name)):
                return None
        except TritonError as exc:
            _log.warning("whether version %s is loaded is not known: %s", name, exc)
            return self._models.get(name)
        if name not in self._opened:
            try:
                self._opened[name] = await asyncio.to_thread(
                    ServedModel.open, self._store, self._model.name, name, cache=self._cache
                )
                self._failed.pop(name, None)
            except FormatError as exc:
                if name not in self._failed:
                    _log.error("version %s is loaded but cannot be served: %s", name, exc)
                self._failed[name] = str(exc)
                return None
        return self._opened[name]
