"""The one way from a request to its answer, behind REST and gRPC."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.serving.errors import (
    InvalidFieldError,
    NonFiniteScoreError,
    NoSuchModelError,
    NotReadyError,
    TritonError,
    TritonTimeoutError,
)
from rankhouse.serving.gateway.admission import Admission
from rankhouse.serving.gateway.call import Answered, Call, Deadline, Head, Result
from rankhouse.serving.gateway.messages import Ranked, ScoreAnswer, ScoreRequest, Status
from rankhouse.serving.gateway.metrics import Metrics
from rankhouse.serving.gateway.problems import kind_of
from rankhouse.serving.gateway.routes import Routes, key_of
from rankhouse.serving.gateway.served_model import ModelDescription, ServedModel
from rankhouse.serving.gateway.settings import Settings
from rankhouse.serving.triton_client import ScoreResult, TritonClient

_READY_TIMEOUT_SECONDS = 1.0
# Triton's Python backend waits up to 2 seconds for a sign of life before it says that a model's process is dead.
_PROBE_TIMEOUT_SECONDS = 3.0
_LONGEST_NAME = 100


class Scorer:
    """Scores requests with the versions of one model. Made in and used from the event loop's thread.

    A request takes the routes once, at its start: rows, ensemble, answer and metrics are all of the version that it
    got.

    Args:
        settings: The limits, and how a request's key is found.
        client: The way to Triton, whose ensembles score.
        routes: Which versions answer; None while none is loaded.

    Attributes:
        admission: The requests in flight.
        metrics: What Prometheus reads.
        observers: Are told of each request that had a route, after its answer was sent.
        is_draining: The gateway is about to stop, or an operator takes it out of service.
        control: Where the state of rollouts cannot be read: since when; else empty.
    """

    def __init__(self, settings: Settings, client: TritonClient, routes: Routes | None = None) -> None:
        self.admission = Admission(settings.max_in_flight)
        self.metrics = Metrics(settings.model, lambda: self.admission.num_in_flight)
        self.observers: list[Callable[[Answered], None]] = []
        self.is_draining = False
        self.control = ""
        self._settings = settings
        self._client = client
        self._routes = routes
        self._in_flight: Counter[str] = Counter()  # by version
        self._num_scored = 0  # requests

    @property
    def routes(self) -> Routes:
        """Which versions answer now.

        Raises:
            NotReadyError: None is loaded yet.
        """
        if self._routes is None:
            raise NotReadyError(f"no version of {self._settings.model!r} is loaded yet; try again later")
        return self._routes

    def switch(self, routes: Routes) -> None:
        """Routes the requests that come from now on; those in flight go on as they began."""
        before = self._routes.models if self._routes else {}
        self._routes = routes
        for version in before.keys() - routes.models.keys():
            self._forget_if_gone(version)

    def num_in_flight(self, version: str) -> int:
        """How many requests a version is answering; 0, once it has no route, means that it may be unloaded."""
        return self._in_flight[version]

    def _release(self, version: str) -> None:
        self._in_flight[version] -= 1
        if not self._in_flight[version]:
            del self._in_flight[version]
            self._forget_if_gone(version)

    def _forget_if_gone(self, version: str) -> None:
        is_served = self._routes is not None and version in self._routes.models
        if not is_served and version not in self._in_flight:
            self.metrics.forget(version)

    @contextlib.contextmanager
    def request(self, protocol: str, *, timeout_seconds: float | None = None) -> Iterator[Call]:
        """Admits a request, counts it and starts its clock; the body of the `with` answers it.

        Args:
            protocol: "rest" or "grpc", for the metrics.
            timeout_seconds: The caller's own limit, if it is shorter than ours.

        Raises:
            OverloadedError: Too many requests are in flight.
        """
        own = self._settings.request_timeout_seconds
        deadline = Deadline(own if timeout_seconds is None else min(timeout_seconds, own))
        call = Call(protocol, deadline, time.perf_counter())
        status = 200
        try:
            with self.admission.enter():
                yield call
        except asyncio.CancelledError:
            status = 499
            raise
        except Exception as exc:
            status = int(kind_of(exc).status)
            raise
        finally:
            self._finish(call, status)

    def _finish(self, call: Call, status: int) -> None:
        route, seconds = call.route, time.perf_counter() - call.started
        version, arm = ("", "") if route is None else (route.version, route.arm)
        self.metrics.observe_request(call.protocol, version=version, arm=arm, status=status, seconds=seconds)
        if route is None:
            return
        self._release(route.version)
        if self.observers:
            answered = Answered(call.request_id, route, call.rollouts, status, seconds, time.time(), call.result)
            # The loop's next turn: by then the answer is on its way.
            asyncio.get_running_loop().call_soon(self._tell, answered)

    def _tell(self, answered: Answered) -> None:
        for observe in self.observers:
            observe(answered)

    def check_model(self, name: str) -> None:
        """Refuses a model that is not served here.

        Raises:
            NoSuchModelError: It is not.
        """
        served = self._settings.model
        if name != served:
            raise NoSuchModelError(f"{name[:_LONGEST_NAME]!r} is not served here; served is {served!r}", "model")

    def description(self) -> ModelDescription:
        """What callers need to know of the model now.

        Raises:
            NotReadyError: No version is loaded yet.
        """
        routes = self.routes
        main = routes.main
        if main is None:
            raise NotReadyError(f"no stable version of {self._settings.model!r} is loaded yet; try again later")
        return main.description(sorted(routes.models), max_candidates=self._settings.max_candidates)

    async def score(self, request: ScoreRequest, call: Call, head: Head) -> ScoreAnswer:
        """Scores a request's candidates, all with one version.

        Args:
            request: The request.
            call: What `request` gave; gets the route and the scores.
            head: What the request's headers say.

        Raises:
            RequestError: The request is wrong, or its time is over.
            NotReadyError: No version is loaded yet.
            NoVersionError: No version that is loaded may answer.
            TritonError: Triton gave no answer.
            NonFiniteScoreError: The model gave a score that is not a number.
        """
        model = self._begin(request, call, head)
        raw = model.raw_batch(request, max_candidates=self._settings.max_candidates)
        result = await self._score(model, raw, timeout_seconds=call.deadline.remaining())
        scores = result.scores
        order = best_first(scores)
        num_ids = model.num_ids(raw)
        call.result = Result(model, request, raw, scores, order, result.is_degraded, result.num_unknown, num_ids)
        self.metrics.observe_answer(model.version, raw.num_rows, is_degraded=result.is_degraded)
        self.metrics.observe_ids(model.version, result.num_unknown, num_ids)
        return ScoreAnswer(
            model=model.name,
            version=model.version,
            scores=scores.tolist(),
            ranking=ranking(scores, order[: request.top_k]),
            request_id=head.request_id,
            degraded=result.is_degraded,
        )

    async def score_raw(self, model: ServedModel, raw: RawBatch, *, timeout_seconds: float) -> ScoreResult:
        """Scores rows with a version for ourselves: this is no request, but it is in flight.

        Raises:
            TritonError: Triton gave no answer.
            NonFiniteScoreError: The model gave a score that is not a number.
        """
        self._in_flight[model.version] += 1
        try:
            return await self._score(model, raw, timeout_seconds=timeout_seconds)
        finally:
            self._release(model.version)

    async def _score(self, model: ServedModel, raw: RawBatch, *, timeout_seconds: float) -> ScoreResult:
        result = await self._client.score(model.ensemble, raw, timeout_seconds=timeout_seconds)
        self._num_scored += 1
        if not np.isfinite(result.scores).all():
            index = int(np.flatnonzero(~np.isfinite(result.scores))[0])
            raise NonFiniteScoreError(
                f"the score of candidates[{index}] is {result.scores[index]}; an extreme value can do this"
            )
        return result

    def _begin(self, request: ScoreRequest, call: Call, head: Head) -> ServedModel:
        """Chooses the version that answers, and holds it until the call is over."""
        if head.version and not self._settings.allow_version_override:
            raise InvalidFieldError(
                "versions are not chosen by callers here; leave it out, or set RANKHOUSE_ALLOW_VERSION_OVERRIDE",
                "X-Rankhouse-Version",
            )
        routes = self.routes
        key = key_of(request, head, feature=self._settings.request_key_feature)
        if not key:
            self.metrics.observe_without_key()
        route = routes.route(key or head.request_id, request, head)
        model = routes.models[route.version]
        self._in_flight[route.version] += 1
        call.request_id, call.route = head.request_id, route
        call.rollouts = (route.rollout,) if route.rollout else routes.table.rollouts
        return model

    async def check_ready(self) -> Status:
        """Returns how the gateway is, if a request sent now would be scored.

        Raises:
            NotReadyError: It would not.
        """
        if self.is_draining:
            raise NotReadyError("the gateway drains: it is stopping, or an operator takes it out of service")
        model = self.routes.main
        if model is None:
            raise NotReadyError(f"no stable version of {self._settings.model!r} is loaded yet")
        try:
            is_ready = await asyncio.wait_for(self._client.is_ready(model.ensemble), _READY_TIMEOUT_SECONDS)
            # Triton goes on calling a model ready whose Python process has died.
            is_ready = is_ready and await self._is_scoring(model)
        except (asyncio.TimeoutError, TritonError):
            is_ready = False
        if not is_ready:
            raise NotReadyError(f"Triton at {self._client.url} does not serve {model.ensemble!r}")
        return Status("ready", self.control)

    async def _is_scoring(self, model: ServedModel) -> bool:
        """Says whether Triton scores a probe or, while that waits for its turn, anything else: busy is not broken."""
        num_scored = self._num_scored
        probe = model.raw_batch(ScoreRequest([{}]), max_candidates=1)
        try:
            await self.score_raw(model, probe, timeout_seconds=_PROBE_TIMEOUT_SECONDS)
        except TritonTimeoutError:
            return self._num_scored > num_scored
        return True


def best_first(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.intp]:
    """Orders scores [B]: the index of the highest first, equal ones in their order."""
    return np.argsort(-scores, kind="stable")


def ranking(scores: npt.NDArray[np.float32], order: npt.NDArray[np.intp]) -> list[Ranked]:
    """Puts indexes and their scores side by side."""
    return [Ranked(index, score) for index, score in zip(order.tolist(), scores[order].tolist(), strict=True)]
