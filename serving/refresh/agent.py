"""The refresh agent of a replica: has its Triton hold the versions that the shared state names, and new ones.

It decides nothing about traffic. New versions are found, verified, loaded and proven here, and then reported as loaded;
who gets requests is the shared state's business. Three things go on side by side: looking at the store, asking Triton
what it has, and the work that follows of both, which is at most one version to prepare, one to load again, and one to
unload at a time. What requests need comes first: preparing anything else is given up for it.

Everything but the reading of files happens in the event loop's thread, in steps that do not block.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from rankhouse.embedding_cache.format.errors import (
    ContentError,
    CorruptFileError,
    FormatError,
    ManifestError,
    NotServableError,
    TransformError,
)
from rankhouse.embedding_cache.format.version import VersionStore
from rankhouse.embedding_cache.format.version_record import sequence_of
from rankhouse.serving.control.model_state import ModelState
from rankhouse.serving.errors import (
    DegradedGoldenError,
    GoldenMismatchError,
    NotCompleteError,
    ServingError,
    TritonError,
    TritonTimeoutError,
    TritonUnavailableError,
)
from rankhouse.serving.model_repository import ensemble_name, remove_models, write_models, written_versions
from rankhouse.serving.refresh.attempts import Attempts
from rankhouse.serving.refresh.demand import Demand
from rankhouse.serving.refresh.freshness import Freshness
from rankhouse.serving.refresh.preparation import Preparation, Prepared
from rankhouse.serving.refresh.quarantine import Announce, Quarantine
from rankhouse.serving.refresh.report import AgentReport, write_report
from rankhouse.serving.refresh.residency import surplus
from rankhouse.serving.refresh.store_watch import StoreWatch
from rankhouse.serving.refresh.triton_watch import TritonWatch
from rankhouse.serving.refresh.verifier import Verifier
from rankhouse.serving.refresh.watcher import Suspicions
from rankhouse.serving.triton_client import TritonClient

_TICK_SECONDS = 0.2
_DRAIN_SECONDS = 60.0
# Versions that were prepared and not admitted yet: replicas that are not equally fast must have one in common.
_MOST_CANDIDATES = 4
_DAMAGED = (CorruptFileError, ManifestError, TransformError, ContentError, NotServableError)
_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class AgentOptions:
    """What an agent is told.

    Attributes:
        store: The version store: a folder or a URL.
        model: The model's name.
        repository: Triton's model repository.
        backends: Triton's folder of backends; None: see `model_repository.write_models`.
        device: The GPU that embeddings are looked up on; None: the CPU. See there, too.
        cache: The folder below which a URL is mirrored.
        watch_seconds: Time between two looks at the store.
        settle_seconds: What looks damaged is believed after this time.
        waiting_limit_seconds: A version that is not complete for so long is reported as failed.
        is_shared: Others use the same Triton: what they loaded is left alone, and what was loaded here goes at the end.
        report_path: A file that always says what the agent knows, for `rankhouse serve`.
    """

    store: str
    model: str
    repository: Path
    backends: Path | None = None
    device: int | None = None
    cache: Path | None = None
    watch_seconds: float = 0.5
    settle_seconds: float = 2.0
    waiting_limit_seconds: float = 300.0
    is_shared: bool = False
    report_path: Path | None = None


@dataclass(frozen=True)
class _Job:
    name: str
    task: "asyncio.Task[None]"


class RefreshAgent:
    """Keeps one replica's Triton up to date. Make it and use it in the event loop's thread.

    Args:
        options: See AgentOptions.
        client: The way to Triton.
        on_change: Called when `loaded` or `is_ready` may have changed. A version leaves `loaded` before it is unloaded.
        drained: Waits until no request is under way on a version; None where nobody knows.
        quarantine: Has the shared state quarantine a version: version, reason. None: there is no such state.
        release: Has the shared state release a version whose files changed.
        registry: Gets the metrics.
    """

    def __init__(
        self,
        options: AgentOptions,
        client: TritonClient,
        *,
        on_change: Callable[[], None] = lambda: None,
        drained: Callable[[str], Awaitable[None]] | None = None,
        quarantine: Announce | None = None,
        release: Announce | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._options = options
        self._client = client
        self._on_change = on_change
        self._drained = drained
        store = VersionStore(options.store, cache=options.cache)
        self._suspicions = Suspicions(settle_seconds=options.settle_seconds)
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="refresh")
        self._verifier = Verifier(options.store, cache=options.cache)
        self._preparation = Preparation(
            store,
            options.model,
            client,
            verifier=self._verifier,
            threads=self._threads,
            write=partial(
                write_models, repository=options.repository, backends=options.backends, device=options.device
            ),
        )
        self._triton = TritonWatch(
            client, ensembles=self._loaded_ensembles, on_lost=self._lose, on_turn=self._triton_turned
        )
        self._quarantine = Quarantine(announce=quarantine, release=release)
        self._watch = StoreWatch(
            store,
            options.model,
            threads=self._threads,
            verifier=self._verifier,
            quarantine=self._quarantine,
            suspicions=self._suspicions,
            on_view=self._wake_up,
        )
        self._watch.watch_seconds = options.watch_seconds
        self._watch.waiting_limit_seconds = options.waiting_limit_seconds
        self._attempts = Attempts()
        self._demand: Demand | None = None
        self._prepared: dict[str, Prepared] = {}
        self._loaded: frozenset[str] = frozenset()
        self._leftovers: set[str] = set()
        self._phases: dict[str, str] = {}
        self._jobs: dict[str, _Job] = {}
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._freshness = Freshness(registry or CollectorRegistry(), options.model, age=self._served_age)

    @property
    def loaded(self) -> frozenset[str]:
        """The versions that requests may be answered by."""
        return self._loaded

    @property
    def prepared(self) -> Mapping[str, Prepared]:
        """What is known of the loaded versions; also of those that Triton lost or is about to unload."""
        return MappingProxyType(self._prepared)

    @property
    def is_ready(self) -> bool:
        """Whether requests can be answered: Triton answers, and has the stable version."""
        stable = None if self._demand is None else self._demand.stable
        return self._triton.is_answering and stable in self._loaded

    def follow(self, state: ModelState) -> None:
        """Takes over a new state; call it with each."""
        demand = Demand.of(state)
        if demand == self._demand:
            return
        self._demand = demand
        released = self._quarantine.follow(demand.quarantined, stable=demand.stable)
        for name in released:
            self._attempts.forget(name)
        self._watch.begin_anew(released)
        self._wake.set()

    def look_now(self) -> None:
        """Asks Triton at once what it has; for when a request has just failed."""
        self._triton.look_now()

    def refresh_now(self) -> None:
        """Looks at the store at once."""
        self._watch.look_now()

    async def run(self) -> None:
        """Works until it is cancelled; does nothing before the first `follow`."""
        if not self._options.is_shared:
            found = await self._in_thread(written_versions, self._options.model, self._options.repository)
            self._leftovers = set(found)
        parts = (self._watch.run(self._where_to_look), self._triton.run(), self._work())
        self._tasks = [asyncio.create_task(part) for part in parts]
        try:
            await asyncio.gather(*self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()

    async def stop(self) -> None:
        """Ends all work. A Triton that others use gets rid of what was loaded here."""
        tasks = [*self._tasks, *(job.task for job in self._jobs.values())]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._quarantine.close()
        self._verifier.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._options.is_shared:
            for prepared in self._prepared.values():
                if prepared.was_loaded_here:
                    with suppress(TritonError):
                        await self._client.unload(prepared.ensemble)

    def report(self) -> AgentReport:
        """What is going on."""
        waiting, overdue = self._watch.waiting(now=time.monotonic())
        stable = None if self._demand is None else self._demand.stable
        served = self._prepared.get(stable) if stable in self._loaded and stable is not None else None
        return AgentReport(
            is_ready=self.is_ready,
            is_triton_answering=self._triton.is_answering,
            served=None if served is None else served.version.name,
            golden=None if served is None else served.report,
            loaded=tuple(sorted(self._loaded)),
            preparing={name: f"waiting for {reason}" for name, reason in waiting.items()} | self._phases,
            failed={name: f"waits for {reason}" for name, reason in overdue.items()} | self._attempts.reasons(),
            attempts=self._attempts.numbers(),
            store_problem=self._watch.problem,
            quarantined=self._quarantine.reasons,
            alone_bytes=self._alone_bytes(),
        )

    def freshness(self) -> dict[str, float]:
        """How old what is served is, and how long the last new version was under way; in seconds."""
        return self._freshness.figures()

    def _where_to_look(self) -> tuple[int, int, frozenset[str]]:
        """The floor, where to look from, and what to pass over."""
        known = frozenset((*self._watch.view.names, *(self._demand or Demand()).routed, *self._prepared))
        self._attempts.keep_only(known)
        floor = 0 if self._demand is None else self._demand.floor
        above = max([floor, *map(sequence_of, self._candidates_here())])
        return floor, above, frozenset(self._quarantine.reasons) | self._attempts.passed_over(now=time.monotonic())

    def _loaded_ensembles(self) -> dict[str, str]:
        return {name: self._prepared[name].ensemble for name in self._loaded}

    def _lose(self, names: frozenset[str]) -> None:
        self._set_loaded(self._loaded - names)

    def _triton_turned(self) -> None:
        if self._triton.is_answering:
            self._attempts.triton_is_back()
        self._on_change()
        self._wake.set()

    def _set_loaded(self, loaded: frozenset[str]) -> None:
        if loaded != self._loaded:
            self._loaded = loaded
            self._on_change()
            self._wake.set()

    def _wake_up(self) -> None:
        self._wake.set()

    async def _work(self) -> None:
        written = None
        while True:
            self._wake.clear()
            if self._demand is not None:
                self._begin_what_is_due(self._demand)
            if self._options.report_path is not None and (report := self.report()) != written:
                try:
                    await self._in_thread(write_report, self._options.report_path, report)
                except OSError as exc:  # The disk is full, say. Versions are served without it.
                    _log.warning("%s cannot be written: %s", self._options.report_path, exc.strerror)
                    await asyncio.sleep(_TICK_SECONDS)
                else:
                    written = report
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), _TICK_SECONDS)

    def _begin_what_is_due(self, demand: Demand) -> None:
        now = time.monotonic()  # Waits must not end early, or never, where the clock is set.
        leaving = self._leaving(demand)
        lost = [name for name in (*demand.routed, *demand.earlier, *self._prepared) if self._is_lost(name, leaving)]
        self._begin("load again", [name for name in lost if self._attempts.is_due(name, now=now)], self._bring)
        urgent = [name for name in demand.routed if self._is_missing(name) and self._attempts.is_due(name, now=now)]
        running = self._jobs.get("prepare")
        if running is not None and urgent and running.name not in demand.routed:
            running.task.cancel()
        self._begin("prepare", urgent or self._candidate(demand, now) or self._left_behind(demand, now), self._bring)
        self._begin("unload", [*leaving, *self._old_leftovers(demand)], self._unload)

    def _candidate(self, demand: Demand, now: float) -> list[str]:
        """The new version to prepare, if there is one."""
        newest = self._watch.view.newest
        if newest is None or not demand.is_admitting or sequence_of(newest.name) <= demand.floor:
            return []
        if demand.stable is not None and self._is_at_work_on(demand.stable):
            return []  # Where Triton lost everything, what answers comes back first.
        is_due = self._is_missing(newest.name) and self._attempts.is_due(newest.name, now=now)
        return [newest.name] if is_due else []

    def _left_behind(self, demand: Demand, now: float) -> list[str]:
        """Earlier versions that an earlier gateway left in Triton: proven again, they are an instant rollback again."""
        names = (name for name in demand.earlier if name in self._leftovers and name in self._watch.view.names)
        return [name for name in names if self._is_missing(name) and self._attempts.is_due(name, now=now)]

    def _is_missing(self, name: str) -> bool:
        return name not in self._prepared and name not in self._quarantine and not self._is_at_work_on(name)

    def _is_lost(self, name: str, leaving: tuple[str, ...]) -> bool:
        is_held = name in self._prepared and name not in self._loaded and name not in leaving
        return is_held and not self._is_at_work_on(name)

    def _is_at_work_on(self, name: str) -> bool:
        return any(job.name == name for job in self._jobs.values())

    def _begin(self, slot: str, names: list[str], work: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        """Begins with the first of the names, unless the slot is taken."""
        if slot in self._jobs or not names:
            return

        def end(task: "asyncio.Task[None]") -> None:
            del self._jobs[slot]
            self._wake.set()
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.error("could not %s version %s", slot, names[0], exc_info=error)

        task = asyncio.create_task(work(names[0]))
        self._jobs[slot] = _Job(names[0], task)
        task.add_done_callback(end)

    async def _bring(self, name: str) -> None:
        """Gets a version into Triton, or takes note of what hinders it."""
        began = time.monotonic()
        known = self._prepared.get(name)
        on_phase = partial(self._phases.__setitem__, name)
        try:
            if known is None:
                prepared = await self._preparation.prepare(name, on_phase=on_phase)
            else:
                prepared = await self._preparation.load_again(known, on_phase=on_phase)
        except Exception as exc:
            await self._fail(name, exc, was_proven=known is not None)
            return
        finally:
            self._phases.pop(name, None)
        self._attempts.forget(name)
        self._suspicions.clear(name)
        self._leftovers.discard(name)
        self._prepared[name] = prepared
        if known is None and name not in (self._watch.first_names or {name}):
            self._freshness.observe(prepared.version, now=prepared.loaded_at)
        _log.info("version %s is loaded and proven (%.2f s)", name, time.monotonic() - began)
        self._set_loaded(self._loaded | {name})

    async def _fail(self, name: str, error: Exception, *, was_proven: bool) -> None:
        now = time.monotonic()
        is_versions_fault = isinstance(error, (GoldenMismatchError, *_DAMAGED)) and not was_proven
        if is_versions_fault and not isinstance(error, DegradedGoldenError):
            signature = await self._watch.signature(name)
            is_sure = isinstance(error, GoldenMismatchError | NotServableError)
            is_believed = is_sure or self._suspicions.is_confirmed(name, signature, now=now)
            if is_believed and self._quarantine.take_in(name, str(error), signature):
                self._attempts.forget(name)
                return
        if isinstance(error, GoldenMismatchError) and not isinstance(error, DegradedGoldenError):
            await self._drop(name)
        if isinstance(error, NotCompleteError):
            self._watch.begin_anew([name])
        is_tritons = isinstance(error, TritonUnavailableError | TritonTimeoutError)
        attempt = self._attempts.failed(name, str(error), now=now, is_tritons=is_tritons)
        is_known = isinstance(error, ServingError | FormatError | OSError)
        _log.warning(
            "version %s is not loaded, attempt %d: %s",
            name,
            attempt.number,
            error,
            exc_info=None if is_known else error,
        )

    async def _drop(self, name: str) -> None:
        """Has Triton forget a version that it scores wrongly: the next attempt reads its files anew.

        It answers nobody, as it was not proven. In a Triton that others use, what they loaded is theirs.
        """
        if not self._options.is_shared or name in self._preparation.unproven:
            with suppress(TritonError):
                await self._client.unload(ensemble_name(self._options.model, name))

    def _candidates_here(self) -> list[str]:
        """The prepared versions that nobody admitted yet, oldest first."""
        floor = self._demand.floor if self._demand else 0
        here = [name for name in self._prepared if sequence_of(name) > floor and name not in self._quarantine]
        return sorted(here, key=sequence_of)

    def _leaving(self, demand: Demand) -> tuple[str, ...]:
        """What is to be unloaded, in this order."""
        candidates = self._candidates_here() if demand.is_admitting else []
        # The oldest is what the slowest replica has, the newest what the next one will have.
        waiting = {*candidates[:1], *candidates[1 - _MOST_CANDIDATES :]}
        needed = {*demand.routed, *waiting}
        if demand.stable is not None and demand.stable not in self._loaded:
            return ()  # Until stable is there, what answers now must stay.
        return surplus(
            {name: prepared.footprint for name, prepared in self._prepared.items()},
            needed=needed,
            earlier=[name for name in demand.earlier if name not in demand.quarantined],
            keep_loaded_bytes=demand.keep_loaded_bytes,
        )

    def _old_leftovers(self, demand: Demand) -> list[str]:
        """What an earlier gateway left in Triton, once this one is ready."""
        if not self.is_ready:
            return []
        unneeded = self._leftovers - {*demand.routed, *demand.earlier} - self._prepared.keys()
        # What was loaded and not proven makes room, too; it is loaded anew when it is tried again.
        unproven = self._preparation.unproven - {*demand.routed} - self._prepared.keys()
        return sorted((name for name in unneeded | unproven if not self._is_at_work_on(name)), key=sequence_of)

    async def _unload(self, name: str) -> None:
        """Unloads a version when its last request is answered, unless it is needed again by then."""
        self._set_loaded(self._loaded - {name})
        if self._drained is not None and name in self._prepared:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._drained(name), _DRAIN_SECONDS)
        demand = self._demand
        if demand is not None and name in self._prepared and name not in self._leaving(demand):
            self._set_loaded(self._loaded | {name})
            return
        prepared = self._prepared.get(name)
        if self._options.is_shared and prepared is not None and not prepared.was_loaded_here:
            del self._prepared[name]
            return
        try:
            await self._client.unload(ensemble_name(self._options.model, name))
        except TritonError as exc:
            if not isinstance(exc, TritonUnavailableError):
                _log.warning("version %s could not be unloaded: %s", name, exc)
                await asyncio.sleep(1.0)
                return
        self._prepared.pop(name, None)
        self._leftovers.discard(name)
        self._preparation.unproven.discard(name)
        await self._in_thread(remove_models, self._options.model, name, self._options.repository)
        _log.info("version %s is unloaded", name)

    def _alone_bytes(self) -> dict[str, int]:
        footprints = {name: prepared.footprint for name, prepared in self._prepared.items()}
        return {
            name: footprint.alone(other for key, other in footprints.items() if key != name)
            for name, footprint in footprints.items()
        }

    def _served_age(self) -> float:
        stable = None if self._demand is None else self._demand.stable
        prepared = None if stable is None else self._prepared.get(stable)
        return float("nan") if prepared is None else time.time() - prepared.version.created_at.timestamp()

    def _in_thread(self, function: Callable[..., _Result], *arguments: object) -> "asyncio.Future[_Result]":
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
