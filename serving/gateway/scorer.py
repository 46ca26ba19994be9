"""The one way from a request to its answer, behind REST and gRPC."""

import asyncio
import contextlib
import re
import time
import uuid
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rankhouse.serving.errors import (
    DeadlineError,
    InvalidFieldError,
    NonFiniteScoreError,
    NoSuchModelError,
    NotReadyError,
    TritonError,
    TritonTimeoutError,
)
from rankhouse.serving.gateway.admission import Admission
from rankhouse.serving.gateway.messages import Ranked, ScoreAnswer, ScoreRequest
from rankhouse.serving.gateway.metrics import Metrics
from rankhouse.serving.gateway.problems import kind_of
from rankhouse.serving.gateway.served_model import ServedModel
from rankhouse.serving.triton_client import TritonClient

_READY_TIMEOUT_SECONDS = 1.0
# Triton's Python backend waits up to 2 seconds for a sign of life before it says that a model's process is dead.
_PROBE_TIMEOUT_SECONDS = 3.0
_LONGEST_NAME = 100
_REQUEST_ID = re.compile(r"[!-~]{1,128}")


class Deadline:
    """When an answer must be there, by the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at = time.monotonic() + seconds

    def remaining(self) -> float:
        """The seconds that are left.

        Raises:
            DeadlineError: None are.
        """
        remaining = self._at - time.monotonic()
        if remaining <= 0:
            raise self.error()
        return remaining

    def error(self) -> DeadlineError:
        """What a caller is told when it has passed."""
        return DeadlineError(f"no answer within {self._seconds:.3g} s; send fewer candidates or allow more time")


class Scorer:
    """Scores requests with one version of one model. Made in and used from the event loop's thread.

    Args:
        model: The version that is served.
        client: The way to Triton, whose ensemble scores.
        max_candidates: The limit of a request.
        max_in_flight: The limit of requests at a time.
        timeout_seconds: The longest time that a request may take.
    """

    def __init__(
        self,
        model: ServedModel,
        client: TritonClient,
        *,
        max_candidates: int,
        max_in_flight: int,
        timeout_seconds: float,
    ) -> None:
        self.model = model
        self.description = model.description(max_candidates=max_candidates)
        self.admission = Admission(max_in_flight)
        self.metrics = Metrics(model.name, model.version, lambda: self.admission.num_in_flight)
        self.is_draining = False
        self._client = client
        self._num_scored = 0  # requests
        self._probe = model.raw_batch(ScoreRequest([{}]), max_candidates=1)
        self._max_candidates = max_candidates
        self._timeout_seconds = timeout_seconds

    @contextlib.contextmanager
    def request(self, protocol: str, *, timeout_seconds: float | None = None) -> Iterator[Deadline]:
        """Admits a request, counts it and starts its clock; the body of the `with` answers it.

        Args:
            protocol: "rest" or "grpc", for the metrics.
            timeout_seconds: The caller's own limit, if it is shorter than ours.

        Raises:
            OverloadedError: Too many requests are in flight.
        """
        start = time.perf_counter()
        status = 200
        try:
            with self.admission.enter():
                own = self._timeout_seconds
                yield Deadline(own if timeout_seconds is None else min(timeout_seconds, own))
        except asyncio.CancelledError:
            status = 499
            raise
        except Exception as exc:
            status = int(kind_of(exc).status)
            raise
        finally:
            self.metrics.observe_request(protocol, status=status, seconds=time.perf_counter() - start)

    def check_model(self, name: str) -> None:
        """Refuses a model that is not served here.

        Raises:
            NoSuchModelError: It is not.
        """
        if name != self.model.name:
            raise NoSuchModelError(
                f"{name[:_LONGEST_NAME]!r} is not served here; served is {self.model.name!r}", "model"
            )

    async def score(self, request: ScoreRequest, *, deadline: Deadline, request_id: str) -> ScoreAnswer:
        """Scores a request's candidates.

        Raises:
            RequestError: The request is wrong, or its time is over.
            TritonError: Triton gave no answer.
            NonFiniteScoreError: The model gave a score that is not a number.
        """
        raw = self.model.raw_batch(request, max_candidates=self._max_candidates)
        result = await self._client.score(self.model.ensemble, raw, timeout_seconds=deadline.remaining())
        scores = result.scores
        self._num_scored += 1
        if not np.isfinite(scores).all():
            index = int(np.flatnonzero(~np.isfinite(scores))[0])
            raise NonFiniteScoreError(
                f"the score of candidates[{index}] is {scores[index]}; an extreme value can do this"
            )
        self.metrics.observe_answer(raw.num_rows, is_degraded=result.is_degraded)
        return ScoreAnswer(
            model=self.model.name,
            version=self.model.version,
            scores=scores.tolist(),
            ranking=ranking(scores, request.top_k),
            request_id=request_id,
            degraded=result.is_degraded,
        )

    async def check_ready(self) -> None:
        """Returns when a request sent now would be scored.

        Raises:
            NotReadyError: It would not.
        """
        if self.is_draining:
            raise NotReadyError("the gateway is stopping")
        try:
            is_ready = await asyncio.wait_for(self._client.is_ready(self.model.ensemble), _READY_TIMEOUT_SECONDS)
            # Triton goes on calling a model ready whose Python process has died.
            is_ready = is_ready and await self._is_scoring()
        except (asyncio.TimeoutError, TritonError):
            is_ready = False
        if not is_ready:
            raise NotReadyError(f"Triton at {self._client.url} does not serve {self.model.ensemble!r}")

    async def _is_scoring(self) -> bool:
        """Says whether Triton scores a probe or, while that waits for its turn, anything else: busy is not broken."""
        num_scored = self._num_scored
        try:
            await self._client.score(self.model.ensemble, self._probe, timeout_seconds=_PROBE_TIMEOUT_SECONDS)
        except TritonTimeoutError:
            return self._num_scored > num_scored
        return True


def ranking(scores: npt.NDArray[np.float32], top_k: int | None) -> list[Ranked]:
    """Ranks scores [B]: highest first, equal ones in their order."""
    order = np.argsort(-scores, kind="stable")[:top_k]
    return [Ranked(index, score) for index, score in zip(order.tolist(), scores[order].tolist(), strict=True)]


def request_id_of(given: str | None) -> str:
    """The id of a request: the caller's, or a new one.

    Raises:
        InvalidFieldError: The caller's is not 1 to 128 visible ASCII characters.
    """
    if given is None:
        return uuid.uuid4().hex
    if not _REQUEST_ID.fullmatch(given):
        raise InvalidFieldError(f"is {given[:40]!a}; expected 1 to 128 visible ASCII characters", "X-Request-Id")
    return given
