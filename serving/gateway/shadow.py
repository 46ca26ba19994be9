"""Candidates score, off the callers' path, what the stable version has answered, so that the two can be compared.

Which requests: the routing table draws `shadow` percent of the stable arm's, by a hash of the request id. What it may
cost is bounded: so many at a time, so many that wait, and a time limit each; what does not fit is dropped and counted.
It begins when the answer has been sent, and nothing of it comes back to a caller. (Triton's priorities need its
batcher, which our models do without; each version has model instances of its own, so no request waits for a shadow's.)
"""

import asyncio
import logging
import time
from collections import deque

from rankhouse.serving.errors import ServingError, TritonTimeoutError
from rankhouse.serving.gateway.call import Answered, Result
from rankhouse.serving.gateway.observations import Observations
from rankhouse.serving.gateway.problems import kind_of
from rankhouse.serving.gateway.scorer import Scorer

# A request that waited longer than its time limit would be told of a candidate that is busy, not of one that is worse.
_QUEUED_FOR_EACH_IN_FLIGHT = 4
_log = logging.getLogger(__name__)


class Shadows:
    """Scores requests again with candidates. For the event loop's thread only.

    Args:
        scorer: Whose versions and metrics these are.
        observations: Get the pairs of scores.
        max_in_flight: How many are scored at a time; four times as many wait.
        timeout_seconds: How long one may take, waiting included.
    """

    def __init__(
        self,
        scorer: Scorer,
        observations: Observations,
        *,
        max_in_flight: int,
        timeout_seconds: float,
    ) -> None:
        self._scorer = scorer
        self._observations = observations
        self._max_in_flight = max_in_flight
        self._timeout_seconds = timeout_seconds
        self._waiting: deque[tuple[Result, str, float]] = deque()
        self._workers: set[asyncio.Task[None]] = set()

    def observe(self, answered: Answered) -> None:
        """Takes an answered request, if candidates are to score it as well and there is room."""
        if answered.result is None:
            return
        for version in answered.route.shadows:
            if len(self._waiting) >= self._max_in_flight * _QUEUED_FOR_EACH_IN_FLIGHT:
                self._count(version, "dropped")
                continue
            self._waiting.append((answered.result, version, time.monotonic() + self._timeout_seconds))
            if len(self._workers) < self._max_in_flight:
                worker = asyncio.create_task(self._work())
                self._workers.add(worker)
                worker.add_done_callback(self._workers.discard)

    async def stop(self) -> None:
        """Ends what is under way; answers that have not come are not waited for."""
        self._waiting.clear()
        workers = list(self._workers)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self) -> None:
        """Scores what waits, one after the other, until nothing does."""
        while self._waiting:
            stable, version, until = self._waiting.popleft()
            outcome = await self._shadow(stable, version, until)
            self._count(version, outcome)

    def _count(self, version: str, outcome: str) -> None:
        """Counts what became of a shadow, unless its version is gone: its time series ended, and must not come back."""
        if version in self._scorer.routes.models:
            self._scorer.metrics.observe_shadow(version, outcome)

    async def _shadow(self, stable: Result, version: str, until: float) -> str:
        routes, remaining = self._scorer.routes, until - time.monotonic()
        model, rollout = routes.models.get(version), routes.table.rollout_of.get(version)
        if model is None or rollout is None or remaining <= 0:
            return "dropped"
        start, status, outcome, is_degraded, ids = time.perf_counter(), 200, "scored", False, (0, 0)
        try:
            # Rows are laid out by a version's features, so they can be shared where these are the same.
            same = model.features == stable.model.features
            raw = stable.raw if same else model.raw_batch(stable.request, max_candidates=len(stable.scores))
            result = await self._scorer.score_raw(model, raw, timeout_seconds=remaining)
            is_degraded, ids = result.is_degraded, (result.num_unknown, model.num_ids(raw))
        except TritonTimeoutError:
            status, outcome = 504, "late"
        except ServingError as exc:
            _log.debug("a shadow of %s failed: %s", version, exc)
            status, outcome = int(kind_of(exc).status), "failed"
        else:
            # Default rows would make a difference that is not the candidate's.
            if not is_degraded and not stable.is_degraded:
                top_k = stable.request.top_k or len(stable.scores)
                scores = result.scores
                self._observations.observe_pair(rollout, version, stable=stable.scores, candidate=scores, top_k=top_k)
        seconds = time.perf_counter() - start
        self._observations.observe_shadow(
            rollout, version, status=status, seconds=seconds, is_degraded=is_degraded, ids=ids
        )
        return outcome
