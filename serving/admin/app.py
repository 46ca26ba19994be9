"""The admin port's application: what each operation of operations.py has in common."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from rankhouse.embedding_cache.format.errors import FormatError
from rankhouse.serving.admin import openapi
from rankhouse.serving.admin.bodies import decode_body
from rankhouse.serving.admin.guard import Guard
from rankhouse.serving.admin.idempotency import HEADER, Answers
from rankhouse.serving.admin.operations import OPERATIONS, Admin, Call, Operation, Query
from rankhouse.serving.admin.operations_page import serve_page
from rankhouse.serving.errors import (
    BodyTooLargeError,
    InvalidFieldError,
    MalformedBodyError,
    ServingError,
    TooManyFailuresError,
    UnauthenticatedError,
)
from rankhouse.serving.gateway.envelope import Envelope, answer_error

_BODY_SECONDS = 10.0
# Answers that hold a key are not kept for a second time.
_SECRET = ("add_key",)
_HEADERS: dict[type[Exception], dict[str, str]] = {
    UnauthenticatedError: {"www-authenticate": 'Bearer realm="rankhouse"'},
    TooManyFailuresError: {"retry-after": "60"},
}

_Endpoint = Callable[[Request], Awaitable[Response]]


def create_admin_app(
    admin: Admin, *, max_body_bytes: int = 1 << 20, max_header_bytes: int = 16 << 10, page: Path | None = None
) -> FastAPI:
    """Makes the admin port's application. Call it in the event loop that will serve it.

    Args:
        admin: What the operations work on.
        max_body_bytes: The limit of a request's body.
        max_header_bytes: The limit of a request's headers, names and values together.
        page: The folder of the operations page (operations_page.PAGE); None serves none.
    """
    app: FastAPI = FastAPIOffline(title="Rankhouse admin", description=openapi.ABOUT, redoc_url=None)
    app.add_middleware(Envelope, max_header_bytes=max_header_bytes)
    for kind in (ServingError, FormatError, HTTPException):
        app.add_exception_handler(kind, _answer_error)
    guard, answers = Guard(admin.keys), Answers(admin.store, admin.model)
    for operation in OPERATIONS:
        endpoint = _endpoint(operation, admin, guard, answers, max_body_bytes)
        app.add_api_route(operation.path, endpoint, **openapi.describe_operation(operation))
    openapi.describe(app)
    if page is not None:
        serve_page(app, page)
    return app


def _endpoint(operation: Operation, admin: Admin, guard: Guard, answers: Answers, max_body_bytes: int) -> _Endpoint:
    async def endpoint(request: Request) -> Response:
        caller = await guard.check(request, operation.role)
        content = b"" if operation.body is None else await _read_body(request, max_body_bytes)
        body = None if operation.body is None else decode_body(content, operation.body)
        query = {each.name: _query_value(each, request.query_params.get(each.name)) for each in operation.query}
        call = Call(caller, request.path_params, query, body)
        if operation.in_loop:
            return _json(msgspec.json.encode(operation.run(admin, call)))
        key = None if operation.method == "GET" or operation.run.__name__ in _SECRET else request.headers.get(HEADER)
        command = b"\0".join((request.method.encode(), request.url.path.encode(), content))
        return _json(await asyncio.to_thread(_run, operation, admin, call, answers, key, command))

    return endpoint


def _run(operation: Operation, admin: Admin, call: Call, answers: Answers, key: str | None, command: bytes) -> bytes:
    """Does what was asked, unless it was asked with the same key before. Blocks."""
    now = time.time()
    if key is not None and (before := answers.recall(key, call.caller, command, now)) is not None:
        return before
    content = msgspec.json.encode(operation.run(admin, call))
    if key is not None:
        answers.remember(key, call.caller, command, content, now)
    return content


async def _answer_error(request: Request, error: Exception) -> Response:
    response = await answer_error(request, error)
    response.headers.update(_HEADERS.get(type(error), {}))
    return response


async def _read_body(request: Request, max_body_bytes: int) -> bytes:
    """Reads a body, but no more of it than it may have, and not for ever."""
    try:
        return await asyncio.wait_for(_read_limited(request, max_body_bytes), _BODY_SECONDS)
    except asyncio.TimeoutError as exc:
        raise MalformedBodyError(f"the body was not complete within {_BODY_SECONDS:g} s") from exc
    except ClientDisconnect as exc:
        raise MalformedBodyError("the connection was closed before the body was complete") from exc


async def _read_limited(request: Request, max_body_bytes: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_body_bytes:
            raise BodyTooLargeError(f"the body has more than {max_body_bytes} bytes")
    return bytes(body)


def _query_value(query: Query, given: str | None) -> Any:
    if given is None or query.bounds is None:
        return query.default if given is None else given
    low, high = query.bounds
    try:
        value = int(given)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise InvalidFieldError(f"is {given[:40]!r}; expected a whole number from {low} to {high}", query.name)
    return value


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")
