"""gRPC: the service `rankhouse.v1.Ranking`, the twin of REST's scoring and feedback."""

from collections.abc import Mapping
from typing import Any, NoReturn

import grpc
import msgspec
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2

from rankhouse.serving.errors import RequestError
from rankhouse.serving.gateway.call import REQUEST_ID, Head, request_id_of
from rankhouse.serving.gateway.feedback import Feedback
from rankhouse.serving.gateway.messages import Features, OutcomeReport, ScoreAnswer, ScoreRequest, checked_reports
from rankhouse.serving.gateway.problems import kind_of, problem_of
from rankhouse.serving.gateway.scorer import Scorer
from rankhouse.serving.gateway.served_model import check_finite
from rankhouse.serving.ranking_pb2 import DESCRIPTOR, FeedbackResponse, Ranked, ScoreResponse
from rankhouse.serving.ranking_pb2_grpc import RankingServicer

SERVICE = DESCRIPTOR.services_by_name["Ranking"].full_name

_STATUS_DETAILS = "grpc-status-details-bin"


class RankingService(RankingServicer):  # type: ignore[misc]
    """Answers gRPC's requests. For the event loop's thread only."""

    def __init__(self, scorer: Scorer, feedback: Feedback) -> None:
        self._scorer = scorer
        self._feedback = feedback

    async def Score(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: N802  (gRPC's name)
        """Scores all candidates of one request with one version of the model."""
        request_id, call = request_id_of(None), None
        try:
            with self._scorer.request("grpc", timeout_seconds=context.time_remaining()) as call:
                metadata = dict(context.invocation_metadata() or ())
                request_id = request_id_of(metadata.get(REQUEST_ID))
                self._scorer.check_model(request.model)
                answer = await self._scorer.score(_request_of(request), call, Head.of(metadata, request_id))
                context.set_trailing_metadata(tuple(call.route_headers().items()))
                return _reply_of(answer)
        except Exception as exc:
            await _abort(context, exc, request_id, call.route_headers() if call else {})

    async def Feedback(self, request: Any, context: grpc.aio.ServicerContext) -> Any:  # noqa: N802  (gRPC's name)
        """Takes what became of candidates."""
        request_id = request_id_of(None)
        try:
            with self._feedback.admission.enter():
                answer = await self._feedback.take(_reports_of(request))
                return FeedbackResponse(**msgspec.structs.asdict(answer))
        except Exception as exc:
            await _abort(context, exc, request_id, {})


async def _abort(
    context: grpc.aio.ServicerContext, error: Exception, request_id: str, headers: Mapping[str, str]
) -> NoReturn:
    """Answers with an error's status; the field and the kind travel as google.rpc details."""
    problem, kind = problem_of(error, request_id), kind_of(error)
    details = [error_details_pb2.ErrorInfo(reason=kind.slug, domain="rankhouse")]
    if isinstance(error, RequestError) and error.path:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.path, description=problem.detail)
        details.append(error_details_pb2.BadRequest(field_violations=[violation]))
    status = status_pb2.Status(
        code=kind.code.value[0], message=problem.detail, details=[_packed(detail) for detail in details]
    )
    trailing = ((REQUEST_ID, request_id), (_STATUS_DETAILS, status.SerializeToString()), *headers.items())
    await context.abort(kind.code, problem.detail, trailing)
    raise AssertionError("abort raises")


def _packed(detail: Any) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(detail)
    return packed


def _request_of(request: Any) -> ScoreRequest:
    return ScoreRequest(
        candidates=[
            _features_of(candidate.features, f"candidates[{index}]")
            for index, candidate in enumerate(request.candidates)
        ],
        context=_features_of(request.context, "context"),
        top_k=request.top_k if request.HasField("top_k") else None,
        key=request.key,
        min_version=request.min_version,
    )


def _reports_of(request: Any) -> list[OutcomeReport]:
    return checked_reports(
        [
            {
                "request_id": report.request_id,
                "outcomes": [{"index": outcome.index, "label": outcome.label} for outcome in report.outcomes],
                **({"event": report.event} if report.event else {}),
            }
            for report in request.feedback
        ]
    )


def _features_of(features: Mapping[str, Any], place: str) -> Features:
    values: Features = {}
    for name in features:
        value = features[name]
        kind = value.WhichOneof("kind")
        if kind is None:
            values[name] = None
        elif kind in ("int64_list", "text_list"):
            values[name] = list(getattr(value, kind).values)
        else:
            values[name] = getattr(value, kind)
            if kind == "double_value":
                check_finite(values[name], f"{place}.{name}")
    return values


def _reply_of(answer: ScoreAnswer) -> Any:
    return ScoreResponse(
        model=answer.model,
        version=answer.version,
        scores=answer.scores,
        ranking=[Ranked(index=place.index, score=place.score) for place in answer.ranking],
        request_id=answer.request_id,
        degraded=answer.degraded,
    )
