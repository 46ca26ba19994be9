"""What /docs of the admin port shows: each operation with its schemas, examples and the errors it can end with."""

import re
from typing import Any

import msgspec
from fastapi import FastAPI

from rankhouse.serving import errors
from rankhouse.serving.admin import bodies
from rankhouse.serving.admin.operations import OPERATIONS, Operation, Query
from rankhouse.serving.gateway.problems import Problem
from rankhouse.serving.gateway.schemas import REFERENCES, content_of, problem_responses

ABOUT = """Rollouts, versions and keys of a served model.

Every call needs a key: `Authorization: Bearer <key>`. A viewer may read, an operator may move rollouts, versions and
replicas, an admin may make keys. Commands take a `reason`, which history keeps with the key's name. A command that is
sent twice does nothing the second time; with a header `Idempotency-Key` it gives the first answer again."""

_EVERYWHERE = (
    errors.UnauthenticatedError,
    errors.ForbiddenError,
    errors.TooManyFailuresError,
    errors.HeadersTooLargeError,
    errors.NoSuchModelStateError,
    errors.StoreUnavailableError,
)
_WITH_BODY = (errors.BodyTooLargeError, errors.MalformedBodyError, errors.InvalidFieldError, errors.IdempotencyError)
_PARAMETERS = {
    "rollout": ("A rollout's id; `latest` is the one that was started last.", "latest"),
    "version": ("A version's name.", "000012-c873e97f"),
    "gate": ("`advance`, `promote` or `rollback`.", "advance"),
    "key": ("A key's name.", "ann"),
}
_ROLLOUT_EXAMPLE = {
    "candidate": "latest",
    "steps": [{"weight": 5, "pause": "10m"}, {"weight": 25, "analysis": {"max": "1h"}}, {"weight": 100}],
    "analysis": {"metrics": [{"name": "error_rate", "max_increase": 0.001}, {"name": "ctr", "max_loss": 0.01}]},
}
_EXAMPLES: dict[type, dict[str, Any]] = {
    bodies.Why: {"reason": "CTR looks odd on Android"},
    bodies.StartRollout: {"spec": _ROLLOUT_EXAMPLE, "reason": "first model with the new features"},
    bodies.CheckRollout: {"yaml": "candidate: latest\nsteps: [{weight: 5, pause: 10m}, {weight: 100}]\n"},
    bodies.Promote: {"reason": "good enough"},
    bodies.SkipStep: {"step": 0, "reason": "night traffic is over"},
    bodies.SetWeight: {"weight": 10, "reason": "less, while the database is slow"},
    bodies.Rollback: {"reason": "complaints from support"},
    bodies.SetPolicy: {"policy": {"admit": "direct"}, "reason": "nightly full exports"},
    bodies.SetHoldout: {"percent": 1, "reason": "long-term comparison"},
    bodies.AddKey: {"name": "ann", "role": "operator"},
    bodies.FlaggerWebhook: {"name": "ranker", "namespace": "prod", "phase": "Progressing", "metadata": {}},
}


def describe_operation(operation: Operation) -> dict[str, Any]:
    """The arguments of FastAPI's `add_api_route` for one operation."""
    schema, _ = msgspec.json.schema_components([operation.answer], ref_template=REFERENCES)
    answer = {"description": "OK", "content": {"application/json": {"schema": schema[0]}}}
    return {
        "methods": [operation.method],
        "tags": [operation.tag],
        "name": operation.run.__name__,
        "summary": operation.run.__name__.replace("_", " ").capitalize(),
        "description": f"{operation.run.__doc__}\n\nNeeds the role {operation.role}.",
        "operation_id": f"{operation.run.__name__}",
        "response_model": None,
        "responses": {200: answer, **problem_responses(*_problems(operation))},
        "openapi_extra": _extra(operation),
    }


def describe(app: FastAPI) -> None:
    """Adds the messages' schemas and the ways to authenticate to the application's OpenAPI document."""
    document = app.openapi()  # FastAPI keeps this object and serves it.
    types = [each.answer for each in OPERATIONS] + [each.body for each in OPERATIONS if each.body is not None]
    _, schemas = msgspec.json.schema_components([*types, Problem], ref_template=REFERENCES)
    components = document.setdefault("components", {})
    components.setdefault("schemas", {}).update(schemas)
    components["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "The key."},
        "password": {"type": "http", "scheme": "basic", "description": "Any user; the key is the password."},
    }


def _problems(operation: Operation) -> tuple[type[Exception], ...]:
    more = () if operation.body is None else _WITH_BODY
    return tuple(dict.fromkeys((*operation.problems, *more, *_EVERYWHERE)))


def _extra(operation: Operation) -> dict[str, Any]:
    extra: dict[str, Any] = {"security": [{"key": []}, {"password": []}]}
    parameters = [_path_parameter(name) for name in re.findall(r"{(\w+)}", operation.path)]
    parameters += [_query_parameter(each) for each in operation.query]
    if operation.body is not None:
        example = _EXAMPLES[operation.body]
        required = any(each.required for each in msgspec.structs.fields(operation.body))
        extra["requestBody"] = {"required": required, "content": content_of(operation.body, example=example)}
        parameters.append(
            {
                "name": "Idempotency-Key",
                "in": "header",
                "required": False,
                "description": "Sent again with the same key, the command is not done again.",
                "schema": {"type": "string", "maxLength": 255},
            }
        )
    return extra | ({"parameters": parameters} if parameters else {})


def _path_parameter(name: str) -> dict[str, Any]:
    description, example = _PARAMETERS[name]
    schema = {"type": "string"}
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": schema,
        "example": example,
    }


def _query_parameter(query: Query) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "default": query.default}
    if query.bounds is not None:
        schema = {"type": "integer", "minimum": query.bounds[0], "maximum": query.bounds[1], "default": query.default}
    return {"name": query.name, "in": "query", "required": False, "description": query.description, "schema": schema}
