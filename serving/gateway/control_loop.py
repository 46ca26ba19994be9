"""What ties a replica to the others: it follows the state that they share, and tells what it does."""

import asyncio
import contextlib
import logging
import socket
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timezone

from rankhouse.serving.control.last_known_state import LastKnownState
from rankhouse.serving.control.model_state import ModelState, ReplicaReport
from rankhouse.serving.control.state_store import StateStore, Stored, SummaryKey
from rankhouse.serving.errors import CorruptStateError, StateStoreError
from rankhouse.serving.gateway.cache_tiers import CacheTiers
from rankhouse.serving.gateway.feedback import Feedback
from rankhouse.serving.gateway.loaded_versions import LoadedVersions
from rankhouse.serving.gateway.observations import Observations
from rankhouse.serving.gateway.routes import Routes
from rankhouse.serving.gateway.scorer import Scorer
from rankhouse.serving.gateway.settings import Settings
from rankhouse.serving.gateway.state_watcher import StateWatcher

_SECONDS = 1.0
# Without a report for so long, a replica counts as gone.
_REPORT_TTL_SECONDS = 5.0
_log = logging.getLogger(__name__)


class ControlLoop:
    """Keeps a scorer's routes as the shared state and the loaded versions say. For the event loop's thread only.

    Where the store cannot be read, the last known state holds, and the scorer says since when.

    Args:
        store: The store that replicas share.
        first_state: What to begin with where the model has no state.
        scorer: Gets the routes.
        versions: What can answer here.
        observations: Are published.
        feedback: Its answers are written.
        settings: What this replica is called, to which a part is added that is new with each start; and the file that
            keeps the last known state; one that cannot be read is ignored, and replaced once the store was read.

    Attributes:
        name: The replica's full name.
        on_news: Called when the others were told that other versions are loaded here.
        urls: Where this replica is found; part of its report.
    """

    def __init__(
        self,
        store: StateStore,
        first_state: ModelState,
        *,
        scorer: Scorer,
        versions: LoadedVersions,
        observations: Observations,
        feedback: Feedback,
        settings: Settings,
    ) -> None:
        self.name = f"{settings.replica or socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        self.on_news: Callable[[], None] = lambda: None
        self.urls: Mapping[str, str] = {}
        self._store = store
        self._model = first_state.model
        self._first_state = first_state
        self._scorer = scorer
        self._versions = versions
        self._observations = observations
        self._feedback = feedback
        url = settings.triton_metrics_url
        self._tiers = CacheTiers(url, self._model) if url else None
        self._file = LastKnownState(settings.state_file) if settings.state_file else None
        self._stored = self._kept = _read(self._file, self._model) if self._file else None
        self._is_settled = False  # What stands in the file counts only once the store is known to be out of reach.
        self._stale_since: float | None = None
        self._published: dict[SummaryKey, bytes] = {}
        self._troubles: dict[str, str] = {}
        self._is_due = asyncio.Event()  # Something is to be told at once.
        self._is_news = False  # And it is that other versions are loaded.
        self._tasks: list[asyncio.Task[None]] = []
        self._creating: asyncio.Task[None] | None = None
        self._watcher = StateWatcher(store, self._model, on_state=self._on_state, on_lost=self._on_lost)

    async def start(self) -> None:
        """Begins; the first routes come when the state was read, or is known to be out of reach."""
        self._watcher.start()
        parts = [lambda: self._versions.run(self._versions_changed), self._keep_telling]
        parts += [self._tiers.run] if self._tiers else []
        self._tasks = [asyncio.create_task(_kept_going(part)) for part in parts]

    async def stop(self) -> None:
        """Ends, after it has published what there is to publish."""
        tasks = [*self._tasks, *([self._creating] if self._creating else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._watcher.stop()
        await self._publish()
        await self._try("feedback", self._feedback.write)
        self._feedback.close()
        await self._try("its end", lambda: asyncio.to_thread(self._store.retire, self._model, self.name))
        await asyncio.to_thread(self._store.close)

    @property
    def is_draining(self) -> bool:
        """Whether balancers are told to look elsewhere."""
        return self._scorer.is_draining

    def drain(self) -> None:
        """Becomes not ready, and answers what still comes."""
        self._scorer.is_draining = True

    def undrain(self) -> None:
        """Becomes ready again."""
        self._scorer.is_draining = False

    def refresh_now(self) -> None:
        """Looks for versions now."""
        self._versions.refresh_now()

    def _versions_changed(self) -> None:
        self.update()
        self._is_news = True  # A new version may wait for nothing but this replica's word.
        self._is_due.set()

    def update(self) -> None:
        """Makes the routes anew, of the state as it is known and of what is loaded."""
        if self._stored is None or not self._is_settled:
            return
        models, is_stale = self._versions.models, self._stale_since is not None
        stored = self._stored
        routes = Routes.of(stored.state, models, revision=stored.revision, is_stale=is_stale)
        self._observations.follow(models, routes.table.rollouts)
        self._scorer.switch(routes)
        self._scorer.metrics.show_control(revision=stored.revision, is_stale=is_stale)

    def _on_state(self, stored: Stored | None) -> None:
        if stored is None:
            # An emptied store gets back what was in it last; a new one gets the first state.
            state = self._stored.state if self._stored else self._first_state
            if self._creating is None or self._creating.done():
                self._creating = asyncio.create_task(self._create(state))
            return
        if self._stale_since is not None:
            _log.info("the state store is back, at revision %d", stored.revision)
        self._stored, self._stale_since, self._scorer.control, self._is_settled = stored, None, "", True
        self._versions.follow(stored.state)
        self.update()
        self._is_due.set()  # Nobody should have to wonder for a second whether this replica follows.

    async def _create(self, state: ModelState) -> None:
        """Writes a state, as often as it takes: a store that can be read may be full."""
        what = "the first state"
        while True:
            await self._try(what, lambda: asyncio.to_thread(self._store.create, state))
            if not self._troubles[what]:
                return
            await asyncio.sleep(_SECONDS)

    def _on_lost(self, reason: str) -> None:
        _log.error("the state store cannot be read, so the last known state holds: %s", reason)
        self._is_settled = True
        if self._stale_since is None:
            if self._stored is not None:
                self._versions.follow(self._stored.state)
            self._stale_since = time.time()
            since = datetime.fromtimestamp(self._stale_since, timezone.utc).isoformat(timespec="seconds")
            self._scorer.control = f"stale since {since}"
        self._scorer.metrics.show_control(revision=self._stored.revision if self._stored else 0, is_stale=True)
        self.update()

    async def _keep_telling(self) -> None:
        while True:
            is_news, self._is_news = self._is_news, False
            self._is_due.clear()
            await self._try("its report", self._report)
            if is_news:
                self.on_news()
            await self._try("its last known state", self._keep)
            await self._publish()
            await self._try("feedback", self._feedback.write)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._is_due.wait(), _SECONDS)

    async def _report(self) -> None:
        more = self._versions.report()
        report = ReplicaReport(
            replica=self.name,
            model=self._model,
            at=time.time(),
            loaded=tuple(sorted(self._versions.models)),
            preparing=dict(more.preparing),
            failed=dict(more.failed),
            routing_revision=self._stored.revision if self._stored else 0,
            urls=dict(self.urls),
            is_draining=self._scorer.is_draining,
            details=dict(more.details) | ({"tiers": self._tiers.counts} if self._tiers else {}),
        )
        await asyncio.to_thread(self._store.report, report, ttl_seconds=_REPORT_TTL_SECONDS)

    async def _keep(self) -> None:
        stored = self._stored
        if self._file is not None and stored is not None and stored != self._kept:
            await asyncio.to_thread(self._file.write, stored)
            self._kept = stored

    async def _publish(self) -> None:
        content = self._observations.content()
        if content != self._published:
            await self._try("summaries", lambda: self._publish_content(content))

    async def _publish_content(self, content: dict[SummaryKey, bytes]) -> None:
        await asyncio.to_thread(self._store.publish_summaries, self.name, self._model, content)
        self._published = content

    async def _try(self, what: str, write: Callable[[], Awaitable[object]]) -> None:
        """Writes something for others or for later, if that is possible; says once what is not."""
        trouble = ""
        try:
            await write()
        except StateStoreError as exc:
            trouble = str(exc)
        if trouble and self._troubles.get(what) != trouble:
            _log.warning("replica %s cannot write %s: %s", self.name, what, trouble)
        self._troubles[what] = trouble


def _read(file: LastKnownState, model: str) -> Stored | None:
    try:
        return file.read(model)
    except CorruptStateError as exc:
        _log.error("%s, or leave it: it is ignored, and written anew once the state store was read", exc)
        return None


async def _kept_going(part: Callable[[], Awaitable[None]]) -> None:
    """Runs a part until it is cancelled, and anew after an error that nobody foresaw: replicas must not fall silent."""
    while True:
        try:
            await part()
        except Exception:
            _log.exception("a part of the control loop failed; it begins anew")
        await asyncio.sleep(_SECONDS)
