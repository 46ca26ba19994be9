"""What is the same for all REST requests: an id, a limit for headers, and errors as problems (RFC 9457)."""

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rankhouse.serving.errors import HeadersTooLargeError
from rankhouse.serving.gateway.call import request_id_of
from rankhouse.serving.gateway.problems import Problem, problem_of

_RETRY_AFTER_SECONDS = "1"


class Envelope:
    """Wraps the application: every answer carries X-Request-Id, and no error leaves it as anything but a problem.

    Args:
        app: The application.
        max_header_bytes: The limit of a request's headers, names and values together.
    """

    def __init__(self, app: ASGIApp, *, max_header_bytes: int) -> None:
        self._app = app
        self._max_header_bytes = max_header_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request (ASGI)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["request_id"] = request_id_of(None)
        more: dict[str, str] = {}
        scope["more_headers"] = more
        is_started = False

        async def send_with_id(message: Message) -> None:
            nonlocal is_started
            if message["type"] == "http.response.start":
                is_started = True
                message["headers"].append((b"x-request-id", scope["request_id"].encode()))
                message["headers"] += [(name.encode(), value.encode()) for name, value in more.items()]
            await send(message)

        try:
            self._check_headers(scope)
            await self._app(scope, receive, send_with_id)
        except Exception as exc:
            if is_started:
                raise
            await problem_response(problem_of(exc, scope["request_id"]))(scope, receive, send_with_id)

    def _check_headers(self, scope: Scope) -> None:
        size, given = 0, None
        for name, value in scope["headers"]:
            size += len(name) + len(value)
            if name == b"x-request-id":
                given = value.decode("latin-1")
        if size > self._max_header_bytes:
            raise HeadersTooLargeError(f"the headers have {size} bytes; expected at most {self._max_header_bytes}")
        if given is not None:
            scope["request_id"] = request_id_of(given)


def request_id_in(request: Request) -> str:
    """The id that the envelope gave a request."""
    return str(request.scope["request_id"])


def add_headers(request: Request, headers: Mapping[str, str]) -> None:
    """Adds headers to a request's answer, also where that will be a problem."""
    request.scope["more_headers"].update(headers)


async def answer_error(request: Request, error: Exception) -> Response:
    """Turns an error that we foresaw into its problem; the application's exception handler."""
    request_id = request_id_in(request)
    if not isinstance(error, HTTPException):
        return problem_response(problem_of(error, request_id))
    detail = f"{request.method} {request.url.path}: {error.detail.lower()}; /docs shows what there is"
    return problem_response(Problem("about:blank", error.detail, error.status_code, detail, request_id))


def problem_response(problem: Problem) -> Response:
    """Makes the answer that tells of a problem."""
    headers: dict[str, Any] = {"retry-after": _RETRY_AFTER_SECONDS} if problem.status == 503 else {}
    return Response(
        msgspec.json.encode(problem),
        status_code=problem.status,
        media_type="application/problem+json",
        headers=headers,
    )
