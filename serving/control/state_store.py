"""The store that replicas share: what it can do, and how a change is made.

A state changes only by a compare-and-set of the whole document, together with its history, in one transaction. So a
crash leaves the old state or the new one, and two writers cannot both win. Leases say who should decide, to save work;
they guard nothing: a holder that lost its lease without knowing can only commit what it decided on the state as it is.
"""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import msgspec

from rankhouse.serving.control.model_state import (
    AnsweredRequest,
    ApiKey,
    Change,
    Event,
    ModelState,
    ReplicaReport,
    Rollout,
)
from rankhouse.serving.errors import ConflictError

# Bounds of what a store keeps, events and rollouts for each model, answers for all together; the oldest go first.
MAX_EVENTS = 20_000
MAX_FINISHED = 500
MAX_ANSWERS = 200_000
# How long summaries stay that nobody publishes anew.
SUMMARY_SECONDS = 7 * 86400.0

_PAUSE_SECONDS = 0.01
_log = logging.getLogger(__name__)

SummaryKey: TypeAlias = str  # "rollout/version/arm", by `summary_key`.


def summary_key(rollout: str, version: str, arm: str) -> SummaryKey:
    """The name of a summary: whose answers it sums up.

    Args:
        rollout: The rollout's id; empty outside of rollouts.
        version: The version that answered.
        arm: `stable`, `candidate` or `shadow`.
    """
    return f"{rollout}/{version}/{arm}"


def answer_name(model: str, request_id: str) -> str:
    """The name of an answer in a store; request ids are visible ASCII, so no two answers share one."""
    return f"{model} {request_id}"


@dataclass(frozen=True)
class Stored:
    """A state and its revision, which each commit makes larger."""

    state: ModelState
    revision: int


@dataclass(frozen=True)
class PublishedSummary:
    """A summary that a replica published: all that it has seen since its start.

    Attributes:
        replica: Whose it is.
        key: Whose answers it sums up, see `summary_key`.
        content: Its bytes.
        at: When it was published, in unix seconds.
    """

    replica: str
    key: SummaryKey
    content: bytes
    at: float


class StateStore(Protocol):
    """A store of states. Methods block for milliseconds, and any thread may call them.

    Every method raises StateStoreError where the store cannot be used.
    """

    def read(self, model: str) -> Stored:
        """Reads a model's state.

        Raises:
            NoSuchModelStateError: There is none.
        """

    def revision(self, model: str) -> int:
        """The revision of a model's state, 0 where there is none; cheap."""

    def models(self) -> list[str]:
        """The models that have a state, by name."""

    def create(self, state: ModelState, events: Sequence[Event] = ()) -> Stored:
        """Stores a model's first state, unless it has one. Returns what is there then."""

    def commit(
        self, state: ModelState, *, expected: int, events: Sequence[Event], finished: Sequence[Rollout] = ()
    ) -> int:
        """Replaces a model's state, writes its history and archives finished rollouts: all or nothing.

        The summaries of finished rollouts are removed.

        Returns:
            The new revision.

        Raises:
            ConflictError: The state's revision is not `expected`; nothing was written.
            NoSuchModelStateError: The model has no state.
        """

    def history(
        self, model: str, *, before: int | None = None, after: int | None = None, limit: int = 100
    ) -> list[Event]:
        """Events of a model, newest first; with `after`, those that follow that number, oldest first."""

    def finished(self, model: str, *, limit: int = 50) -> list[Rollout]:
        """Finished rollouts of a model, newest first."""

    def report(self, report: ReplicaReport, *, ttl_seconds: float) -> None:
        """Publishes what a replica says of itself; without another report it counts as gone after the time."""

    def replicas(self, model: str) -> list[ReplicaReport]:
        """What the living replicas of a model said last, by name."""

    def retire(self, model: str, replica: str) -> None:
        """Removes a replica that stops, so that nobody waits for it."""

    def take_lease(self, name: str, holder: str, *, ttl_seconds: float) -> bool:
        """Takes a lease, or prolongs the holder's own. False: another one holds it."""

    def release_lease(self, name: str, holder: str) -> None:
        """Gives a lease back, if it is the holder's."""

    def publish_summaries(self, replica: str, model: str, summaries: Mapping[SummaryKey, bytes]) -> None:
        """Publishes a replica's cumulative summaries in place of all that it published before.

        Summaries of finished rollouts are left out.
        """

    def summaries(self, model: str) -> list[PublishedSummary]:
        """All summaries of a model, also of replicas that are gone."""

    def remember_answers(self, answers: Sequence[AnsweredRequest], *, ttl_seconds: float) -> None:
        """Keeps answers for feedback, for a time and MAX_ANSWERS at most; the oldest go first."""

    def recall_answer(self, model: str, request_id: str) -> AnsweredRequest | None:
        """The answer that a request got of a model, if it is still kept."""

    def claim_feedback(self, model: str, claims: Sequence[tuple[str, str]], *, ttl_seconds: float) -> list[bool]:
        """Claims feedback, so that it counts once whoever gets it twice.

        Args:
            model: The model that answered: one request id may come to several.
            claims: Pairs of a request's id and the event's name.
            ttl_seconds: How long a claim is remembered.

        Returns:
            For each claim whether it is the first of its kind.
        """

    def keys(self) -> list[ApiKey]:
        """The admin API's keys, by name."""

    def put_key(self, key: ApiKey) -> None:
        """Adds a key of the admin API, or replaces the one of its name."""

    def remove_key(self, name: str) -> bool:
        """Removes a key of the admin API. False: there is none of that name."""

    def get_value(self, name: str) -> bytes | None:
        """A small value by name, such as a webhook's cursor."""

    def put_value(self, name: str, content: bytes) -> None:
        """Keeps a small value by name."""

    def close(self) -> None:
        """Closes connections. The store cannot be used after it."""


class ReportReader:
    """Reads what replicas said last. Any thread may use it.

    What cannot be read is passed over, as one replica must not blind all others. The log says it once, not each time
    that it is read, and again when it was gone meanwhile.
    """

    def __init__(self) -> None:
        self._faults: frozenset[str] = frozenset()

    def read(self, contents: Iterable[bytes]) -> list[ReplicaReport]:
        """Returns the reports that can be read."""
        reports, faults = [], {}
        for content in contents:
            try:
                reports.append(msgspec.json.decode(content, type=ReplicaReport))
            except msgspec.MsgspecError as exc:
                faults[str(exc)] = content
        for fault in faults.keys() - self._faults:
            _log.warning("a replica's report is passed over, as it cannot be read: %s: %.200r", fault, faults[fault])
        self._faults = frozenset(faults)
        return reports


def change_state(
    store: StateStore, model: str, command: Callable[[ModelState], Change | None], *, wait_seconds: float = 2.0
) -> Stored:
    """Makes a change: reads the state, decides, commits; and again where another writer was faster.

    Args:
        store: The store. Blocks: call it from a thread.
        model: The model's name.
        command: A pure function of the state, as those of transitions.py; None changes nothing.
        wait_seconds: For how long it tries.

    Returns:
        The state that is stored after it.

    Raises:
        ConflictError: Others were faster all the time.
        ControlError: Whatever the command raises.
    """
    end = time.monotonic() + wait_seconds
    while True:
        stored = store.read(model)
        change = command(stored.state)
        if change is None:
            return stored
        try:
            revision = store.commit(
                change.state, expected=stored.revision, events=change.events, finished=change.finished
            )
        except ConflictError:
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE_SECONDS)
            continue
        return Stored(change.state, revision)
