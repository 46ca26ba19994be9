"""Calling a gateway, over REST or gRPC: what a user's service would do, and what `rankhouse score` does."""

from collections.abc import Sequence
from types import TracebackType
from typing import Any, TypeVar

import grpc
import httpx
import msgspec

from rankhouse.serving.errors import GatewayError
from rankhouse.serving.gateway.messages import (
    Features,
    FeedbackAnswer,
    OutcomeReport,
    Ranked,
    ScoreAnswer,
    ScoreRequest,
)
from rankhouse.serving.gateway.problems import Problem
from rankhouse.serving.gateway.served_model import ModelDescription, ModelList
from rankhouse.serving.ranking_pb2 import FeedbackRequest, Outcome
from rankhouse.serving.ranking_pb2 import ScoreRequest as ScoreRequestMessage
from rankhouse.serving.ranking_pb2_grpc import RankingStub

_Message = TypeVar("_Message")


class RestClient:
    """Calls a gateway's REST side. Use as a context manager, from one thread.

    Args:
        url: Where it is, like http://127.0.0.1:8080.
        timeout_seconds: How long an answer may take.
    """

    def __init__(self, url: str, *, timeout_seconds: float = 10.0) -> None:
        self._client = httpx.Client(base_url=url, timeout=timeout_seconds)

    def __enter__(self) -> "RestClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def models(self) -> ModelList:
        """Asks which models are served."""
        return self._call("GET", "/v1/models", ModelList)

    def model(self, name: str) -> ModelDescription:
        """Asks what a model expects.

        Raises:
            GatewayError: It is not served there, or nobody answers.
        """
        return self._call("GET", f"/v1/models/{name}", ModelDescription)

    def score(self, model: str, request: ScoreRequest) -> ScoreAnswer:
        """Scores a request's candidates.

        Raises:
            GatewayError: The gateway refused the request, or nobody answers.
        """
        return self._call("POST", f"/v1/models/{model}/score", ScoreAnswer, msgspec.json.encode(request))

    def feedback(self, reports: Sequence[OutcomeReport]) -> FeedbackAnswer:
        """Tells what became of candidates.

        Raises:
            GatewayError: The gateway refused the reports, or nobody answers.
        """
        return self._call("POST", "/v1/feedback", FeedbackAnswer, msgspec.json.encode(reports))

    def _call(self, method: str, path: str, answer: type[_Message], body: bytes | None = None) -> _Message:
        try:
            response = self._client.request(method, path, content=body, headers={"content-type": "application/json"})
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise GatewayError(f"no answer from a gateway at {self._client.base_url}: {exc}") from exc
        try:
            if response.is_success:
                return msgspec.json.decode(response.content, type=answer)
            problem = msgspec.json.decode(response.content, type=Problem)
        except msgspec.DecodeError as exc:
            raise GatewayError(f"{response.url} answered {response.status_code}, and not as a gateway does") from exc
        raise GatewayError(f"{problem.title}: {problem.detail} (request {problem.request_id})")


class GrpcClient:
    """Calls a gateway's gRPC side. Use as a context manager, from any thread.

    Args:
        address: Where it is, host:port.
        timeout_seconds: How long an answer may take.
    """

    def __init__(self, address: str, *, timeout_seconds: float = 10.0) -> None:
        self._address = address
        self._timeout_seconds = timeout_seconds
        self._channel = grpc.insecure_channel(address)
        self._stub: Any = RankingStub(self._channel)

    def __enter__(self) -> "GrpcClient":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def score(self, model: str, request: ScoreRequest) -> ScoreAnswer:
        """Scores a request's candidates.

        Raises:
            GatewayError: The gateway refused the request, or nobody answers.
        """
        reply = self._call(self._stub.Score, request_message(model, request))
        return ScoreAnswer(
            model=reply.model,
            version=reply.version,
            scores=list(reply.scores),
            ranking=[Ranked(place.index, place.score) for place in reply.ranking],
            request_id=reply.request_id,
            degraded=reply.degraded,
        )

    def feedback(self, reports: Sequence[OutcomeReport]) -> FeedbackAnswer:
        """Tells what became of candidates.

        Raises:
            GatewayError: The gateway refused the reports, or nobody answers.
        """
        message = FeedbackRequest()
        for report in reports:
            outcomes = [Outcome(index=outcome.index, label=bool(outcome.label)) for outcome in report.outcomes]
            message.feedback.add(request_id=report.request_id, outcomes=outcomes, event=report.event)
        reply = self._call(self._stub.Feedback, message)
        return FeedbackAnswer(**{name: getattr(reply, name) for name in FeedbackAnswer.__struct_fields__})

    def _call(self, method: Any, message: Any) -> Any:
        try:
            return method(message, timeout=self._timeout_seconds)
        except grpc.RpcError as exc:
            raise GatewayError(f"gRPC at {self._address} answered {exc.code().name}: {exc.details()}") from exc


def request_message(model: str, request: ScoreRequest) -> Any:
    """Makes gRPC's message of a request.

    Raises:
        GatewayError: A value is of a type that no feature has.
    """
    message = ScoreRequestMessage(model=model, top_k=request.top_k)
    message.key = "" if request.key is None else str(request.key)
    message.min_version = "" if request.min_version is None else str(request.min_version)
    _fill(message.context, request.context)
    for candidate in request.candidates:
        _fill(message.candidates.add().features, candidate)
    return message


def _fill(features: Any, values: Features) -> None:
    """Writes values into a message's map in place: to make each a message first takes many times as long."""
    for name, value in values.items():
        target = features[name]  # Reading it puts it there, as a missing value.
        if isinstance(value, int):
            target.int64_value = _checked(name, value)
        elif isinstance(value, float):
            target.double_value = value
        elif isinstance(value, str):
            target.text_value = value
        elif value is not None:
            _fill_list(target, name, value)


def _fill_list(target: Any, name: str, value: Any) -> None:
    # A list in gRPC has no missing values.
    elements = [element for element in value if element is not None] if isinstance(value, Sequence) else [value]
    if all(isinstance(element, str) for element in elements):
        target.text_list.SetInParent()
        target.text_list.values[:] = elements
    elif all(isinstance(element, int) for element in elements):
        target.int64_list.values[:] = [_checked(name, element) for element in elements]
    else:
        raise GatewayError(
            f"feature {name!r} is a {type(value).__name__}; expected a number, a text or a list of integers or of texts"
        )


def _checked(name: str, value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise GatewayError(f"feature {name!r} is {value}; expected a 64-bit integer")
    return value
