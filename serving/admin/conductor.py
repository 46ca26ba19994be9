"""What happens by itself: rollouts go on or back, new versions are let in, drift is looked for, receivers are told.

Every replica runs a conductor; the one that holds the lease in the state store acts. The lease only saves work: each
change is a compare-and-set, so of two that think they hold it one fails and reads again. What is decided is a function
of what the store holds and of the time, and nothing that matters is kept here: another replica goes on where this one
died.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from rankhouse.embedding_cache.format.statistics import TrainingStatistics
from rankhouse.serving.admin.admission import Waiting, next_admission
from rankhouse.serving.admin.drifting import Drifting
from rankhouse.serving.admin.judging import Judge
from rankhouse.serving.admin.traffic import note_traffic
from rankhouse.serving.admin.webhooks import Backoff, Deliveries
from rankhouse.serving.analysis.spec import Verdict
from rankhouse.serving.control import transitions
from rankhouse.serving.control.model_state import Change, ModelState, ReplicaReport
from rankhouse.serving.control.state_store import StateStore, Stored
from rankhouse.serving.errors import ConflictError, ControlError

_MAX_CHANGES = 16  # in one round
_log = logging.getLogger(__name__)


def _no_baseline(version: str) -> TrainingStatistics | None:
    return None


@dataclass(frozen=True)
class ConductorOptions:
    """How the conductor works.

    Attributes:
        interval_seconds: Between rounds.
        lease_seconds: How long after the last round of a dead conductor another one takes over.
        analysis_seconds: Between two looks of the analysis.
        convergence_seconds: How long a new version waits for slower replicas.
        webhook_secret: Signs what goes to webhooks that name no secret of their own.
        webhook_hosts: The hosts that webhooks may post to; empty: any.
        retraining_command: A program with its arguments, run when a drift monitor fires; empty is none.
        backoff: When receivers that did not take an event are tried again.
    """

    interval_seconds: float = 0.5
    lease_seconds: float = 3.0
    analysis_seconds: float = 1.0
    convergence_seconds: float = 120.0
    webhook_secret: bytes | None = None
    webhook_hosts: Sequence[str] = ()
    retraining_command: Sequence[str] = ()
    backoff: Backoff = field(default_factory=Backoff)


class Conductor:
    """Conducts one model. `run` in an event loop; the rounds run in threads, one at a time.

    Args:
        store: The state store that replicas share.
        model: The model's name.
        replica: The name of this replica, new at each start of its process.
        options: How it works; None is as it works by default.
        baseline: Reads a version's training statistics, which drift is measured against; may raise FormatError.
    """

    def __init__(
        self,
        store: StateStore,
        model: str,
        *,
        replica: str,
        options: ConductorOptions | None = None,
        baseline: Callable[[str], TrainingStatistics | None] = _no_baseline,
    ) -> None:
        self._store = store
        self._model = model
        self._replica = replica
        self._options = options or ConductorOptions()
        self._judge = Judge(store, model, interval_seconds=self._options.analysis_seconds)
        self._drifting = Drifting(store, model, baseline)
        self._lease = f"conductor/{model}"
        self._waiting: Waiting | None = None
        self._deliveries: asyncio.Task[None] | None = None
        self._woken = asyncio.Event()
        self.is_conducting = False

    @property
    def is_judging(self) -> bool:
        """Whether a judgement is under way, which a later round will take."""
        return self._judge.is_busy

    def wake(self) -> None:
        """Has it look now, as there is news; called in the event loop."""
        self._woken.set()

    def close(self) -> None:
        """Ends the process that judges; for those who call `round` themselves."""
        self._judge.close()

    async def run(self) -> None:
        """Conducts whenever this replica holds the lease, until it is cancelled; then the lease is given back."""
        was_away = False
        try:
            while True:
                try:
                    self.is_conducting = await asyncio.to_thread(self.round, time.time())
                    was_away = False
                except ControlError as error:
                    # Whoever can reach the store may have the lease by now.
                    self.is_conducting = False
                    if not was_away:
                        _log.warning("nothing is conducted: %s", error)
                    was_away = True
                except Exception:
                    # Whatever nobody foresaw: a conductor that ends would leave all rollouts as they are, for ever.
                    self.is_conducting = False
                    _log.exception("a round failed; the next one begins anew")
                await self._deliver()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._woken.wait(), self._options.interval_seconds)
                self._woken.clear()
        finally:
            self.is_conducting = False
            await self._deliver()
            self.close()
            with contextlib.suppress(ControlError):
                await asyncio.to_thread(self._store.release_lease, self._lease, self._replica)

    def round(self, now: float) -> bool:
        """Does what is due, if this replica holds the lease. Blocks.

        Returns:
            Whether it holds it.

        Raises:
            ControlError: The store is away, or the model has no state yet.
        """
        if not self._store.take_lease(self._lease, self._replica, ttl_seconds=self._options.lease_seconds):
            return False
        stored = self._store.read(self._model)
        replicas = self._store.replicas(self._model)
        verdicts = self._judge.verdicts(stored.state, now)
        for _ in range(_MAX_CHANGES):
            change = self._decide(stored.state, replicas, verdicts, now)
            if change is None:
                break
            stored = self._commit(stored, change)
        note_traffic(self._store, stored.state, now)
        self._watch(stored, now)
        return True

    def _watch(self, stored: Stored, now: float) -> None:
        """Commits that traffic has drifted, if it has and something is to be done about it."""
        change = self._drifting.look(stored.state, now)
        if change is not None and self._commit(stored, change).state is change.state:
            self._drifting.done()

    def _decide(
        self, state: ModelState, replicas: Sequence[ReplicaReport], verdicts: Mapping[str, Verdict], now: float
    ) -> Change | None:
        """The next change that is due. Pure, but for what is waited for."""
        change = transitions.advance(state, now=now, replicas=replicas, verdicts=verdicts)
        if change is not None:
            return change
        admission = next_admission(
            state, replicas, self._waiting, now=now, convergence_seconds=self._options.convergence_seconds
        )
        self._waiting = admission.waiting
        if admission.version is None:
            return None
        try:
            return transitions.admit(state, admission.version, now=now, reason=admission.reason)
        except ControlError as error:
            _log.warning("version %s is not let in: %s", admission.version, error)
            return None

    def _commit(self, stored: Stored, change: Change) -> Stored:
        """Commits a change; where another writer was faster, the next decision is made on what that one wrote."""
        try:
            revision = self._store.commit(
                change.state, expected=stored.revision, events=change.events, finished=change.finished
            )
        except ConflictError:
            return self._store.read(self._model)
        for event in change.events:
            what = event.rollout or event.version or self._model
            _log.info("%s %s: %s -> %s (%s)", what, event.kind, event.before, event.after, event.reason)
        return Stored(change.state, revision)

    async def _deliver(self) -> None:
        """Runs the streams to receivers while this replica conducts, and only then."""
        if self.is_conducting and (self._deliveries is None or self._deliveries.done()):
            deliveries = Deliveries(
                self._store,
                self._model,
                secret=self._options.webhook_secret,
                hosts=self._options.webhook_hosts,
                command=self._options.retraining_command,
                backoff=self._options.backoff,
            )
            self._deliveries = asyncio.create_task(deliveries.run())
        elif not self.is_conducting and self._deliveries is not None:
            self._deliveries.cancel()
            await asyncio.gather(self._deliveries, return_exceptions=True)
            self._deliveries = None
