import re

import pytest

from rankhouse.serving.errors import InvalidFieldError, MalformedBodyError, RequestError, WrongValueError
from rankhouse.serving.gateway.messages import decode_request


def test_a_request_is_decoded() -> None:
    request = decode_request(b'{"context": {"a": 1}, "candidates": [{"b": [2.5, null]}], "top_k": 3}')
    assert (request.context, request.candidates, request.top_k) == ({"a": 1}, [{"b": [2.5, None]}], 3)


def test_context_and_top_k_may_be_left_out() -> None:
    request = decode_request(b'{"candidates": [{}]}')
    assert (request.context, request.top_k) == ({}, None)


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (b"", MalformedBodyError, "the body is not JSON"),
        (b"candidates=1", MalformedBodyError, "the body is not JSON"),
        (b'{"candidates": [{"a": "\xff"}]}', MalformedBodyError, "the body is not JSON"),
        (b"[" * 100_000, InvalidFieldError, "expected object, got array"),
        (b"{}", InvalidFieldError, "candidates: is missing"),
        (b'{"candidates": {}}', InvalidFieldError, "candidates: expected array, got object"),
        (b'{"candidates": [{}, 3]}', InvalidFieldError, "candidates[1]: expected object, got int"),
        (b'{"candidates": [], "context": []}', InvalidFieldError, "context: expected object, got array"),
        (b'{"candidates": [], "top_k": 2.5}', InvalidFieldError, "top_k: expected int"),
        (
            b'{"candidates": [], "topk": 2}',
            InvalidFieldError,
            "topk: is not a field of a request; did you mean 'top_k'?",
        ),
        (b'{"candidates": [], "x": 2}', InvalidFieldError, "known are candidates, context, key, min_version, top_k"),
        (b'{"' + b"x" * 10**6 + b'": 2}', InvalidFieldError, "known are candidates, context, key, min_version, top_k"),
        (b'{"candidates": [{"a": NaN' + b" " * 2**20 + b"}]}", MalformedBodyError, "the body is not JSON"),
        (b'{"candidates": [{"a": [1, NaN]}]}', WrongValueError, "candidates[0].a[1]: is NaN or infinite"),
        (b'{"candidates": [{"a": 1e400}]}', WrongValueError, "candidates[0].a: is NaN or infinite"),
        (b'{"candidates": [{}], "context": {"b": -Infinity}}', WrongValueError, "context.b: is NaN or infinite"),
    ],
)
def test_a_wrong_body_is_refused(body: bytes, kind: type[RequestError], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)) as caught:
        decode_request(body)
    assert len(str(caught.value)) < 500
