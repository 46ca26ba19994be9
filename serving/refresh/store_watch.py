"""Looking at the version store again and again, without ever waiting for it in the event loop."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from rankhouse.embedding_cache.format.errors import FormatError
from rankhouse.embedding_cache.format.store_layout import VERSIONS
from rankhouse.embedding_cache.format.version import VersionStore
from rankhouse.embedding_cache.format.version_record import sequence_of
from rankhouse.serving.refresh.notification import FolderNotification
from rankhouse.serving.refresh.quarantine import Quarantine
from rankhouse.serving.refresh.verifier import Verifier
from rankhouse.serving.refresh.watcher import Signature, Suspicions, View, Waiting, Watcher, signature_of

_SLOW_SECONDS, _LONGEST_PAUSE_SECONDS = 30.0, 60.0
_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


class StoreWatch:
    """Keeps a view of the store, and takes what is damaged there into quarantine. For the event loop's thread.

    Args:
        store: The store.
        model: The model whose versions are looked for.
        threads: Where the store's calls block.
        verifier: Forgets what it knew of versions that begin anew.
        quarantine: Takes in versions whose manifest cannot be read.
        suspicions: What looked wrong before.
        on_view: Called after each look.

    Attributes:
        view: What the last look found.
        first_names: The versions that the first look found; None before it.
        problem: Why the store cannot be looked at; empty if it can.
        watch_seconds: Time between two looks.
        waiting_limit_seconds: After this time, a version that is not complete counts as failed.
    """

    def __init__(
        self,
        store: VersionStore,
        model: str,
        *,
        threads: Executor,
        verifier: Verifier,
        quarantine: Quarantine,
        suspicions: Suspicions,
        on_view: Callable[[], None],
    ) -> None:
        self.view = View()
        self.first_names: frozenset[str] | None = None
        self.problem = ""
        self.watch_seconds = 0.5
        self.waiting_limit_seconds = 300.0
        self._store = store
        self._watcher = Watcher(store, model, suspicions)
        self._threads = threads
        self._verifier = verifier
        self._quarantine = quarantine
        self._on_view = on_view
        self._anew: set[str] = set()
        self._now = asyncio.Event()

    def look_now(self) -> None:
        """Looks at once."""
        self._now.set()

    def begin_anew(self, names: Iterable[str]) -> None:
        """Forgets what was found out about versions, their verified files included, before the next look."""
        self._anew.update(names)
        self._now.set()

    async def run(self, where: Callable[[], tuple[int, int, Collection[str]]]) -> None:
        """Looks until it is cancelled.

        Args:
            where: Gives the floor, the number above which versions are looked for, and the versions to pass over.
        """
        # A mirror's folder changes when this machine fetches, so it tells nothing.
        is_local = self._store.storage.ranges is None
        notification = FolderNotification(self._store.path / VERSIONS, self.look_now) if is_local else None
        try:
            while True:
                self._now.clear()
                began = time.monotonic()
                floor, above, passed_over = where()
                await self._look(above, passed_over)
                if notification is not None:
                    await self._in_thread(notification.find)
                    notification.keep()
                await self._look_at_quarantined(floor)
                # Where a look is slow, as over a network, it must not go on all the time.
                pause = min(max(self.watch_seconds, 10 * (time.monotonic() - began)), _LONGEST_PAUSE_SECONDS)
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._now.wait(), pause)
        finally:
            if notification is not None:
                notification.close()

    async def signature(self, name: str) -> Signature:
        """What tells whether a version's files change."""

        def read() -> Signature:
            files = None
            with suppress(FormatError):
                files = self._store.read(name).files()
            return signature_of(self._store, name, files)

        return await self._in_thread(read)

    def waiting(self, *, now: float) -> tuple[dict[str, str], dict[str, str]]:
        """What versions wait for: all of them, and those that have waited too long."""
        waits = self.view.waiting
        overdue = {name: waits[name].reason for name in waits if self._is_overdue(waits[name], now)}
        return {name: waits[name].reason for name in waits}, overdue

    async def _look(self, above: int, passed_over: Collection[str]) -> None:
        await self._forget()
        now = time.monotonic()
        looking = self._in_thread(partial(self._watcher.look, above=above, skipped=passed_over, now=now))
        try:
            # The thread cannot be stopped where a network disk hangs, and nobody else may use the watcher meanwhile.
            while not (await asyncio.wait({looking}, timeout=_SLOW_SECONDS))[0]:
                self._note_problem(f"{self._store.location} has not answered for {time.monotonic() - now:.0f} s")
            view = looking.result()
        except (FormatError, OSError) as exc:
            self._note_problem(str(exc))
            return
        self._note_problem("")
        if self.first_names is None:
            self.first_names = frozenset(view.names)
        for name, waits in view.waiting.items():
            before = self.view.waiting.get(name)
            if before is None or self._is_overdue(waits, now) > self._is_overdue(before, now):
                _log.warning("version %s waits for %s", name, waits.reason)
        self.view = view
        for name, reason in view.damaged.items():
            if name not in self._quarantine:
                self._quarantine.take_in(name, reason, await self.signature(name))
        self._on_view()

    async def _forget(self) -> None:
        for name in self._anew.copy():
            self._anew.discard(name)
            self._watcher.forget(name)
            with suppress(FormatError):
                self._verifier.forget(await self._in_thread(self._store.read, name))

    async def _look_at_quarantined(self, floor: int) -> None:
        for name in list(self._quarantine.reasons):
            if name in self.view.names and sequence_of(name) > floor:
                signature = await self.signature(name)
                if name in self._quarantine and self._quarantine.note_signature(name, signature):
                    self.begin_anew([name])

    def _note_problem(self, problem: str) -> None:
        if problem and problem != self.problem:
            _log.warning("new versions cannot be looked for: %s", problem)
        self.problem = problem

    def _is_overdue(self, waits: Waiting, now: float) -> bool:
        return now - waits.since > self.waiting_limit_seconds

    def _in_thread(self, function: Callable[..., _Result], *arguments: object) -> "asyncio.Future[_Result]":
        return asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
