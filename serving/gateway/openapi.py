"""What /docs shows: the messages' schemas, examples that run, and the problems of each path."""

from typing import Any

import msgspec
from fastapi import FastAPI, Path

from rankhouse.serving import errors
from rankhouse.serving.gateway.call import ARM, KEY, ROLLOUT, VERSION
from rankhouse.serving.gateway.messages import FeedbackAnswer, OutcomeReport, ScoreAnswer, ScoreRequest, Status
from rankhouse.serving.gateway.problems import Problem
from rankhouse.serving.gateway.schemas import REFERENCES, content_of, problem_responses
from rankhouse.serving.gateway.served_model import ModelDescription, ModelList, ServedModel

ABOUT = """Scores candidates with a ranking model. Feature values are raw, as in the logs.

What became of candidates is told with `/v1/feedback`, so that versions can be compared by it.

The same over gRPC: `rankhouse.v1.Ranking`, with reflection and `grpc.health.v1`."""

_MESSAGES = (ScoreRequest, ScoreAnswer, OutcomeReport, FeedbackAnswer, Problem, ModelList, ModelDescription, Status)

_SCORING_PROBLEMS = (
    errors.MalformedBodyError,
    errors.NoSuchModelError,
    errors.UnknownVersionError,
    errors.BodyTooLargeError,
    errors.InvalidFieldError,
    errors.NoCandidatesError,
    errors.TooManyCandidatesError,
    errors.UnknownFeatureError,
    errors.FeatureTwiceError,
    errors.WrongValueError,
    errors.HeadersTooLargeError,
    errors.OverloadedError,
    errors.NotReadyError,
    errors.VersionNotThereYetError,
    errors.DeadlineError,
)
_FEEDBACK_PROBLEMS = (
    errors.MalformedBodyError,
    errors.BodyTooLargeError,
    errors.InvalidFieldError,
    errors.HeadersTooLargeError,
    errors.OverloadedError,
    errors.DeadlineError,
)
_SCORING_HEADERS = {
    KEY: "Who asks, where the body has no `key`.",
    VERSION: "The version that must answer: for tests, as what it answers counts in no comparison.",
}
_ANSWER_HEADERS = {
    VERSION: "The version that answered.",
    ARM: "`stable`, `candidate`, or `override` for a version that the request asked for.",
    ROLLOUT: "The rollout whose candidate answered.",
}


def _operation(
    tag: str,
    message: type | None,
    *,
    problems: tuple[type[Exception], ...] = (),
    extra: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The arguments of FastAPI's decorators for one path."""
    content = content_of(message) if message else {"text/plain": {"schema": {"type": "string"}}}
    return {
        "tags": [tag],
        "response_model": None,
        "responses": {200: {"description": "OK", "content": content}, **problem_responses(*problems)},
        "openapi_extra": extra,
    }


def scoring(model: ServedModel) -> dict[str, Any]:
    """The path that scores, with a request that works as its example."""
    body = {"required": True, "content": content_of(ScoreRequest, example=model.example)}
    parameters = [
        {"in": "header", "name": name, "description": text, "schema": {"type": "string"}}
        for name, text in _SCORING_HEADERS.items()
    ]
    extra = {"requestBody": body, "parameters": parameters}
    operation = _operation("scoring", ScoreAnswer, problems=_SCORING_PROBLEMS, extra=extra)
    operation["responses"][200]["headers"] = {
        name: {"description": text, "schema": {"type": "string"}} for name, text in _ANSWER_HEADERS.items()
    }
    return operation


def _feedback() -> dict[str, Any]:
    report = {"$ref": REFERENCES.format(name=OutcomeReport.__name__)}
    schema = {"anyOf": [report, {"type": "array", "items": report}]}
    example = [{"request_id": "f3a9", "outcomes": [{"index": 0, "label": 1}, {"index": 1, "label": 0}]}]
    body = {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}
    return _operation("feedback", FeedbackAnswer, problems=_FEEDBACK_PROBLEMS, extra={"requestBody": body})


def model_name(model: ServedModel) -> Any:
    """The parameter that names a model in a path."""
    return Path(description="The model's name.", openapi_examples={"served": {"value": model.name}})


FEEDBACK = _feedback()
MODELS = _operation("models", ModelList, problems=(errors.NotReadyError,))
MODEL = _operation("models", ModelDescription, problems=(errors.NoSuchModelError, errors.NotReadyError))
HEALTH = _operation("health", Status)
READINESS = _operation("health", Status, problems=(errors.NotReadyError,))
METRICS = _operation("health", None)


def describe(app: FastAPI) -> None:
    """Adds the messages' schemas to the application's OpenAPI document."""
    document = app.openapi()  # FastAPI keeps this object and serves it.
    _, schemas = msgspec.json.schema_components(_MESSAGES, ref_template=REFERENCES)
    document.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
