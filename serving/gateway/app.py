"""REST: the gateway's paths. What happens between a request and its scores stands in `score` below and in scorer.py."""

import asyncio
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from rankhouse.embedding_cache.format.errors import FormatError
from rankhouse.serving.errors import BodyTooLargeError, MalformedBodyError, ServingError
from rankhouse.serving.gateway import openapi
from rankhouse.serving.gateway.call import Deadline, Head
from rankhouse.serving.gateway.envelope import Envelope, add_headers, answer_error, request_id_in
from rankhouse.serving.gateway.feedback import Feedback
from rankhouse.serving.gateway.messages import Status, decode_feedback, decode_request
from rankhouse.serving.gateway.metrics import CONTENT_TYPE
from rankhouse.serving.gateway.scorer import Scorer
from rankhouse.serving.gateway.served_model import ModelEntry, ModelList, ServedModel
from rankhouse.serving.gateway.settings import Settings


def create_app(scorer: Scorer, feedback: Feedback, settings: Settings, *, example: ServedModel) -> FastAPI:
    """Makes the REST side of the gateway. Call it in the event loop that will serve it.

    Args:
        scorer: What answers; the gRPC side shares it.
        feedback: What takes feedback; the gRPC side shares it.
        settings: The limits of requests.
        example: The version whose request is the example in the page of the interface.
    """
    # This FastAPI brings its own copy of Swagger UI, so that /docs works where there is no internet.
    app: FastAPI = FastAPIOffline(title="Rankhouse", description=openapi.ABOUT, redoc_url=None)
    app.add_middleware(Envelope, max_header_bytes=settings.max_header_bytes)
    for kind in (ServingError, FormatError, HTTPException):
        app.add_exception_handler(kind, answer_error)
    _add_scoring(app, scorer, settings, example)
    _add_feedback(app, feedback, settings)
    _add_models(app, scorer, example)
    _add_health(app, scorer)
    openapi.describe(app)
    return app


def _add_scoring(app: FastAPI, scorer: Scorer, settings: Settings, example: ServedModel) -> None:
    @app.post("/v1/models/{model}/score", **openapi.scoring(example))
    async def score(request: Request, model: str = openapi.model_name(example)) -> Response:
        """Scores the candidates of one request, all with the same version of the model."""
        with scorer.request("rest") as call:
            try:
                scorer.check_model(model)
                body = await _read_body(request, settings.max_body_bytes, call.deadline)
                head = Head.of(request.headers, request_id_in(request))
                return _json(await scorer.score(decode_request(body), call, head))
            finally:
                add_headers(request, call.route_headers())


def _add_feedback(app: FastAPI, feedback: Feedback, settings: Settings) -> None:
    @app.post("/v1/feedback", **openapi.FEEDBACK)
    async def take(request: Request) -> Response:
        """Takes what became of candidates: one report, or a list of them."""
        with feedback.admission.enter():
            deadline = Deadline(settings.request_timeout_seconds)
            body = await _read_body(request, settings.max_body_bytes, deadline)
            return _json(await feedback.take(decode_feedback(body)))


def _add_models(app: FastAPI, scorer: Scorer, example: ServedModel) -> None:
    @app.get("/v1/models", **openapi.MODELS)
    async def models() -> Response:
        """Lists the models that are served."""
        return _json(ModelList([ModelEntry(example.name, sorted(scorer.routes.models))]))

    @app.get("/v1/models/{model}", **openapi.MODEL)
    async def model(model: str = openapi.model_name(example)) -> Response:
        """Describes a model: its versions, the features that it takes, and a request that works."""
        scorer.check_model(model)
        return _json(scorer.description())


def _add_health(app: FastAPI, scorer: Scorer) -> None:
    @app.get("/healthz", **openapi.HEALTH)
    async def healthz() -> Response:
        """Answers while the process lives."""
        return _json(Status("alive"))

    @app.get("/readyz", **openapi.READINESS)
    async def readyz() -> Response:
        """Answers 200 while Triton serves the stable version; 503 while it does not, or when the gateway stops."""
        return _json(await scorer.check_ready())

    @app.get("/metrics", **openapi.METRICS)
    async def metrics() -> Response:
        """Counters and histograms for Prometheus."""
        return Response(scorer.metrics.text(), media_type=CONTENT_TYPE)


def _json(answer: Any) -> Response:
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def _read_body(request: Request, max_body_bytes: int, deadline: Deadline) -> bytes:
    """Reads a body, but no more of it than it may have, and for no longer than there is time."""
    timeout = deadline.remaining()
    try:
        return await asyncio.wait_for(_read_limited(request, max_body_bytes), timeout)
    except asyncio.TimeoutError as exc:
        raise deadline.error() from exc
    except ClientDisconnect as exc:
        raise MalformedBodyError("the connection was closed before the body was complete") from exc


async def _read_limited(request: Request, max_body_bytes: int) -> bytes:
    size = int(request.headers.get("content-length", 0))
    body = bytearray()
    if size <= max_body_bytes:
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_body_bytes:
                size = len(body)
                break
    if size > max_body_bytes:
        raise BodyTooLargeError(
            f"the body has more than {max_body_bytes} bytes; send several requests of fewer candidates"
        )
    return bytes(body)
