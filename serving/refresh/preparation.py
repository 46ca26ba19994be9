"""The way of one version from the store into Triton: each phase has a bounded time and a name to report."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

from rankhouse.embedding_cache.format.feature import Feature
from rankhouse.embedding_cache.format.golden import GoldenRequest
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.serving.errors import NotCompleteError, PreparationTimeoutError
from rankhouse.serving.golden import GoldenReport, replay_requests
from rankhouse.serving.model_repository import ensemble_name
from rankhouse.serving.refresh.residency import Footprint, footprint_of
from rankhouse.serving.refresh.verifier import Contents, Verifier
from rankhouse.serving.refresh.watcher import what_is_missing
from rankhouse.serving.triton_client import TritonClient

# As many as a model has instances, twice: each instance has answered before a user asks it.
_NUM_PROBES = 8

OnPhase = Callable[[str], None]
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Limits:
    """How long each phase may take; reading files has its time by their size (verifier.py)."""

    manifest_seconds: float = 30.0
    load_seconds: float = 120.0
    probe_seconds: float = 30.0
    replay_seconds: float = 60.0


@dataclass(frozen=True)
class Prepared:
    """A version that was proven to score as the trainer did.

    Attributes:
        version: The version.
        ensemble: Its ensemble in Triton.
        features: What a row may hold.
        golden: Its golden requests.
        report: What their replay found.
        footprint: What it takes.
        loaded_at: When it could be served, in unix seconds.
        was_loaded_here: Triton did not have it before.
    """

    version: Version
    ensemble: str
    features: tuple[Feature, ...]
    golden: tuple[GoldenRequest, ...]
    report: GoldenReport
    footprint: Footprint
    loaded_at: float
    was_loaded_here: bool


class Preparation:
    """Prepares versions of one model. For the event loop's thread.

    Args:
        store: The version store.
        model: The model's name.
        client: The way to this replica's Triton.
        verifier: Verifies files.
        threads: Where blocking calls of the store run.
        write: Writes a version's models into Triton's repository.

    Attributes:
        unproven: Versions that were loaded here, or may have been, and then not proven.
    """

    def __init__(
        self,
        store: VersionStore,
        model: str,
        client: TritonClient,
        *,
        verifier: Verifier,
        threads: Executor,
        write: Callable[[Version], object],
    ) -> None:
        self.limits = Limits()
        self.unproven: set[str] = set()
        self._store = store
        self._model = model
        self._client = client
        self._verifier = verifier
        self._threads = threads
        self._write = write

    async def prepare(self, name: str, *, on_phase: OnPhase) -> Prepared:
        """Verifies a version, loads it and proves it.

        Raises:
            NotCompleteError: Files are missing.
            FormatError: It is damaged, was collected, or the store cannot be reached.
            GoldenMismatchError: Its scores are not the trainer's.
            ModelLoadError: Triton refused it.
            TritonError: Triton gives no answer.
            PreparationTimeoutError: A phase took too long.
            ProcessFailedError: The process that verifies files died.
        """
        on_phase("reading its manifest")
        seconds = self.limits.manifest_seconds
        version = await _limited(self._in_thread(self._read, name), seconds, f"reading the manifest of {name}")

        def tell(done: int, whole: int) -> None:
            on_phase(f"verifying: {done / 1e6:,.1f} of {whole / 1e6:,.1f} MB read")

        contents = await self._verifier.verify(version, on_bytes=tell)
        return await self._prove(version, contents, on_phase)

    async def load_again(self, prepared: Prepared, *, on_phase: OnPhase) -> Prepared:
        """Loads a version that was proven before into a Triton that lost it, and proves it again.

        Raises:
            GoldenMismatchError, ModelLoadError, TritonError, PreparationTimeoutError: See `prepare`.
        """
        if prepared.was_loaded_here:
            self.unproven.add(prepared.version.name)
        return await self._prove(prepared.version, Contents(prepared.features, prepared.golden), on_phase)

    async def _prove(self, version: Version, contents: Contents, on_phase: OnPhase) -> Prepared:
        ensemble = ensemble_name(self._model, version.name)
        on_phase("loading")
        # To load what is loaded would load it anew.
        is_there = await self._client.says_ready(ensemble, timeout_seconds=self.limits.probe_seconds)
        if not is_there:
            self.unproven.add(version.name)
            await self._in_thread(self._write, version)
            await self._client.load(ensemble, timeout_seconds=self.limits.load_seconds)
        if contents.golden:
            on_phase("warming up")
            await self._probe(ensemble, contents)
        on_phase("replaying golden requests")
        replay = replay_requests(
            self._client, ensemble, contents.golden, features=contents.features, version=version.name
        )
        report = await _limited(replay, self.limits.replay_seconds, f"replaying the golden requests of {version.name}")
        was_loaded_here = version.name in self.unproven
        self.unproven.discard(version.name)
        return Prepared(
            version=version,
            ensemble=ensemble,
            features=contents.features,
            golden=contents.golden,
            report=report,
            footprint=footprint_of(version),
            loaded_at=time.time(),
            was_loaded_here=was_loaded_here,
        )

    async def _probe(self, ensemble: str, contents: Contents) -> None:
        raw = RawBatch.from_rows(contents.features, contents.golden[0].rows())
        seconds = self.limits.probe_seconds
        probes = [self._client.score(ensemble, raw, timeout_seconds=seconds) for _ in range(_NUM_PROBES)]
        await asyncio.gather(*probes)

    def _read(self, name: str) -> Version:
        version = self._store.read(name, model=self._model)
        if reason := what_is_missing(self._store, version):
            raise NotCompleteError(reason)
        return version

    async def _in_thread(self, function: Callable[..., _Result], *arguments: object) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)


async def _limited(work: Awaitable[_Result], seconds: float, what: str) -> _Result:
    try:
        return await asyncio.wait_for(work, seconds)
    except asyncio.TimeoutError as exc:
        raise PreparationTimeoutError(f"{what} took longer than {seconds:g} s") from exc
