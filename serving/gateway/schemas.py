"""Pieces of OpenAPI documents that both ports are described with: messages by reference, and the answers to errors."""

from typing import Any

import msgspec

from rankhouse.serving.gateway.problems import Problem, kind_of

REFERENCES = "#/components/schemas/{name}"


def content_of(message: type, media_type: str = "application/json", **more: Any) -> dict[str, Any]:
    """What a body holds: a message's schema, by reference."""
    return {media_type: {"schema": {"$ref": REFERENCES.format(name=message.__name__)}, **more}}


def problem_responses(*errors: type[Exception]) -> dict[int | str, dict[str, Any]]:
    """The answers that tell of errors: by status, with an example of each kind."""
    responses: dict[int | str, dict[str, Any]] = {}
    for cls in errors:
        kind = kind_of(cls(""))
        content = content_of(Problem, "application/problem+json", examples={})
        response = responses.setdefault(int(kind.status), {"description": kind.status.phrase, "content": content})
        problem = Problem(kind.type, kind.title, int(kind.status), str(cls.__doc__), "f3a9...")
        examples = response["content"]["application/problem+json"]["examples"]
        examples[kind.slug] = {"summary": kind.title, "value": msgspec.to_builtins(problem)}
    return responses
