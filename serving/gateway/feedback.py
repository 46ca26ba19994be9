"""What became of candidates: outcomes that callers report, joined with the answers that they are about.

An answer is kept here, in memory, and a second later in the state store too, so that another replica, or this one after
a restart, can join it. A request's first report of an event counts; the store sees to that for all replicas.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from rankhouse.serving.control.model_state import AnsweredRequest
from rankhouse.serving.control.state_store import StateStore
from rankhouse.serving.errors import InvalidFieldError, StateStoreError
from rankhouse.serving.gateway.admission import Admission
from rankhouse.serving.gateway.call import Answered
from rankhouse.serving.gateway.messages import FeedbackAnswer, OutcomeReport
from rankhouse.serving.gateway.metrics import Metrics
from rankhouse.serving.gateway.observations import Observations
from rankhouse.serving.gateway.settings import Settings

# Requests with feedback: they wait for the state store, of which scoring must see nothing.
_MAX_IN_FLIGHT = 32
# Of these, so many ask it at a time.
_NUM_THREADS = 4
# In one request: each that is not known here is a question to the state store.
_MAX_REPORTS = 1000
# Answers that wait to be written. More come in a second only where the store is away.
_MAX_UNWRITTEN = 20_000
# Answers outlive the time in which feedback is taken, so that a late report is told from one of an unknown request.
_KEPT_FOR = 1.5
_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)


class Answer(msgspec.Struct, frozen=True, gc=False):
    """An answer as feedback needs it.

    Attributes:
        rollouts: The rollouts that count it.
        version: The version that answered.
        arm: `stable` or `candidate`; `override` counts nowhere.
        at: When, in seconds since 1970.
        scores: float32 [B], by candidate.
    """

    rollouts: tuple[str, ...]
    version: str
    arm: str
    at: float
    scores: npt.NDArray[np.float32]


class Feedback:
    """Keeps answers and takes what became of them. For the event loop's thread only.

    Args:
        settings: How many answers are kept here, for how long feedback is taken, and of which events.
        observations: Get the outcomes.
        metrics: Count the reports.
        store: What all replicas share; None: what is kept is kept here only.

    Attributes:
        admission: The requests with feedback in flight.
    """

    def __init__(
        self,
        settings: Settings,
        observations: Observations,
        metrics: Metrics,
        *,
        store: StateStore | None,
    ) -> None:
        self.admission = Admission(_MAX_IN_FLIGHT)
        self._model = settings.model
        self._events = frozenset(settings.feedback_events.split(","))
        self._observations = observations
        self._metrics = metrics
        self._store = store
        self._max_answers = settings.feedback_max_answers
        self._ttl_seconds = settings.feedback_ttl_seconds
        self._answers: OrderedDict[str, Answer] = OrderedDict()
        self._claims: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._unwritten: list[tuple[str, Answer]] = []
        # Apart from asyncio's own threads: many reports to a slow store must not keep this replica from telling that it
        # lives, or from conducting.
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="feedback")

    def close(self) -> None:
        """Ends the threads; harmless when repeated."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def observe(self, answered: Answered) -> None:
        """Keeps an answer."""
        result = answered.result
        if result is None:
            return
        route = answered.route
        arm = "override" if route.is_fallback else route.arm
        answer = Answer(answered.rollouts, route.version, arm, answered.at, result.scores)
        self._answers.pop(answered.request_id, None)  # A request id that comes again means its last answer.
        self._answers[answered.request_id] = answer
        if len(self._answers) > self._max_answers:
            self._answers.popitem(last=False)
        if self._store is None:
            return
        if len(self._unwritten) < _MAX_UNWRITTEN:
            self._unwritten.append((answered.request_id, answer))
        else:
            self._metrics.observe_lost("answers", 1)

    async def take(self, reports: Sequence[OutcomeReport]) -> FeedbackAnswer:
        """Takes reports of outcomes; what is wrong with one does not touch the others.

        Raises:
            InvalidFieldError: There are too many.
        """
        if len(reports) > _MAX_REPORTS:
            raise InvalidFieldError(
                f"the request holds {len(reports)} reports; expected at most {_MAX_REPORTS}, so send several requests",
                "",
            )
        found = await self._found({report.request_id for report in reports})
        now = time.time()
        counts = dict.fromkeys(FeedbackAnswer.__struct_fields__, 0)
        good: dict[tuple[str, str], OutcomeReport] = {}
        for report in reports:
            claim = (report.request_id, report.event)
            answer = found.get(report.request_id)
            if answer is None:
                counts["unknown"] += 1
            elif now - answer.at > self._ttl_seconds:
                counts["late"] += 1
            elif not self._is_valid(report, answer):
                counts["invalid"] += 1
            elif claim in good or claim in self._claims:
                counts["duplicate"] += 1
            else:
                good[claim] = report
        for claim, is_first in (await self._claimed(list(good))).items():
            counts["accepted" if is_first else "duplicate"] += 1
            if is_first:
                self._count(good[claim], found[claim[0]])
        for outcome, number in counts.items():
            if number:
                self._metrics.observe_feedback(outcome, number)
        return FeedbackAnswer(**counts)

    def _is_valid(self, report: OutcomeReport, answer: Answer) -> bool:
        indexes = [outcome.index for outcome in report.outcomes]
        return bool(indexes) and max(indexes) < len(answer.scores) and report.event in self._events

    def _count(self, report: OutcomeReport, answer: Answer) -> None:
        if answer.arm == "override":
            return
        # The last word on a candidate holds.
        labels = {outcome.index: bool(outcome.label) for outcome in report.outcomes}
        self._observations.observe_outcomes(
            answer.rollouts,
            answer.version,
            answer.arm,
            scores=answer.scores[list(labels)],
            labels=np.array(list(labels.values()), dtype=np.bool_),
            event=report.event,
        )

    async def _found(self, request_ids: set[str]) -> dict[str, Answer]:
        found = {name: self._answers[name] for name in request_ids if name in self._answers}
        missing = request_ids - found.keys()
        if missing and self._store is not None:
            found |= await self._in_thread(partial(self._recalled, self._store, missing))
        return found

    def _recalled(self, store: StateStore, request_ids: set[str]) -> dict[str, Answer]:
        recalled = {}
        try:
            for request_id in request_ids:
                answer = store.recall_answer(self._model, request_id)
                if answer is not None:
                    recalled[request_id] = _of_stored(answer)
        except StateStoreError as exc:
            _log.warning("feedback on answers that are not kept here counts as unknown: %s", exc)
        return recalled

    async def _claimed(self, claims: list[tuple[str, str]]) -> dict[tuple[str, str], bool]:
        """Says of each claim whether it is the first."""
        now = time.time()
        for claim in claims:  # At once, so that the same report does not pass while the store is asked.
            self._claims[claim] = now
        while self._claims and next(iter(self._claims.values())) < now - self._ttl_seconds:
            self._claims.popitem(last=False)
        while len(self._claims) > self._max_answers:
            self._claims.popitem(last=False)
        if self._store is None or not claims:
            return dict.fromkeys(claims, True)
        try:
            kept = _KEPT_FOR * self._ttl_seconds
            first = await self._in_thread(partial(self._store.claim_feedback, self._model, claims, ttl_seconds=kept))
        except StateStoreError as exc:
            _log.warning("feedback is told from its duplicates by this replica alone: %s", exc)
            return dict.fromkeys(claims, True)
        return dict(zip(claims, first, strict=True))

    async def _in_thread(self, call: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def write(self) -> None:
        """Writes the answers of the last moments into the store.

        Raises:
            StateStoreError: It cannot be used; they are written the next time.
        """
        unwritten, self._unwritten = self._unwritten, []
        if not unwritten or self._store is None:
            return
        try:
            await asyncio.to_thread(self._write, self._store, unwritten)
        except StateStoreError:
            room = max(0, _MAX_UNWRITTEN - len(self._unwritten))
            self._metrics.observe_lost("answers", max(0, len(unwritten) - room))
            self._unwritten = unwritten[len(unwritten) - min(room, len(unwritten)) :] + self._unwritten
            raise

    def _write(self, store: StateStore, answers: Sequence[tuple[str, Answer]]) -> None:
        stored = [_to_stored(request_id, self._model, answer) for request_id, answer in answers]
        store.remember_answers(stored, ttl_seconds=_KEPT_FOR * self._ttl_seconds)


def _to_stored(request_id: str, model: str, answer: Answer) -> AnsweredRequest:
    return AnsweredRequest(
        request_id=request_id,
        model=model,
        rollouts=answer.rollouts,
        version=answer.version,
        arm=answer.arm,
        at=answer.at,
        scores=answer.scores.astype("<f4").tobytes(),
    )


def _of_stored(stored: AnsweredRequest) -> Answer:
    scores = np.frombuffer(stored.scores, dtype="<f4")
    return Answer(stored.rollouts, stored.version, stored.arm, stored.at, scores)
