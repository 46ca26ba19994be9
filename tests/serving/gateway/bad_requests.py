"""Requests that must be refused, for REST and gRPC alike: the kind, the field and a part of the message."""

from typing import Any, NamedTuple


class BadRequest(NamedTuple):
    request: dict[str, Any]
    kind: str
    path: str
    message: str


NAN, INFINITE = float("nan"), float("inf")

BAD_REQUESTS = {
    "no candidates": BadRequest({"candidates": []}, "no-candidates", "candidates", "expected at least one candidate"),
    "too many": BadRequest(
        {"candidates": [{}] * 51}, "too-many-candidates", "candidates", "holds 51; expected at most 50"
    ),
    "top_k of 0": BadRequest({"candidates": [{}], "top_k": 0}, "invalid-field", "top_k", "is 0; expected 1 or more"),
    "top_k below 0": BadRequest({"candidates": [{}], "top_k": -1}, "invalid-field", "top_k", "expected 1 or more"),
    "unknown feature": BadRequest(
        {"candidates": [{}, {"agee": 1}]}, "unknown-feature", "candidates[1].agee", "did you mean 'age'?"
    ),
    "unknown feature with a long name": BadRequest(
        {"candidates": [{"x" * 10_000: 1}]}, "unknown-feature", f"candidates[0].{'x' * 186}...", "is not a feature"
    ),
    "unknown in context": BadRequest(
        {"context": {"town": "oslo"}, "candidates": [{}]}, "unknown-feature", "context.town", "is not a feature"
    ),
    "given twice": BadRequest(
        {"context": {"city": "oslo"}, "candidates": [{}, {}, {"city": "rome"}]},
        "feature-twice",
        "candidates[2].city",
        "give it in one of the two places",
    ),
    "text for int64": BadRequest(
        {"candidates": [{"age": "41"}]}, "wrong-value", "candidates[0].age", "expects a 64-bit integer, got str '41'"
    ),
    "fraction for int64": BadRequest(
        {"candidates": [{"item": 7.5}]}, "wrong-value", "candidates[0].item", "expects a 64-bit integer, got float 7.5"
    ),
    "int64 for text": BadRequest(
        {"context": {"city": 3}, "candidates": [{}]}, "wrong-value", "context.city", "expects a text, got int 3"
    ),
    "list for one value": BadRequest(
        {"candidates": [{"city": ["oslo"]}]}, "wrong-value", "candidates[0].city", "this is no list feature"
    ),
    "one value for a list": BadRequest(
        {"candidates": [{"tags": "a"}]}, "wrong-value", "candidates[0].tags", "expects a list"
    ),
    "wrong element": BadRequest(
        {"candidates": [{}, {"clicked": ["x"]}]}, "wrong-value", "candidates[1].clicked[0]", "got str 'x'"
    ),
    "not a number": BadRequest(
        {"candidates": [{"price": 1.5}, {"price": NAN}]},
        "wrong-value",
        "candidates[1].price",
        "expected a finite number",
    ),
    "infinite": BadRequest(
        {"context": {"price": INFINITE}, "candidates": [{}]}, "wrong-value", "context.price", "expected a finite number"
    ),
}
