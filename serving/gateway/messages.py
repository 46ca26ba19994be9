"""A scoring request and its answer, as JSON carries them."""

import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rankhouse.serving.errors import MalformedBodyError, RequestError, WrongValueError
from rankhouse.serving.gateway.json_bodies import invalid_field

Features = dict[str, Any]


class ScoreRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Candidates to be scored. Values are raw, as in the logs; a feature that is left out, null or "" is missing."""

    candidates: Annotated[list[Features], Meta(description="The features of each candidate.")]
    context: Annotated[
        Features, Meta(description="Features shared by all candidates. A feature stands here or there, not in both.")
    ] = {}
    top_k: Annotated[
        int | None, Meta(description="How many candidates the ranking lists, 1 or more; all of them if left out.")
    ] = None
    key: Annotated[
        str | int | None,
        Meta(
            description="Who asks, like a user's id: while a rollout goes on, the same key gets the same version. Left "
            "out: the header X-Rankhouse-Key, or what the gateway's settings name, or else the request id."
        ),
    ] = None
    min_version: Annotated[
        str | int | None,
        Meta(description="The oldest version that may answer: its name or its number. Not there yet: 503."),
    ] = None


class Ranked(msgspec.Struct, frozen=True):
    """A place in the ranking."""

    index: Annotated[int, Meta(description="Position in the request's candidates.")]
    score: Annotated[float, Meta(description="Its probability.")]


class ScoreAnswer(msgspec.Struct, frozen=True):
    """The scores of one request, all of one version."""

    model: Annotated[str, Meta(description="The model that scored.")]
    version: Annotated[str, Meta(description="Its version.")]
    scores: Annotated[list[float], Meta(description="Probabilities in the order of the request's candidates.")]
    ranking: Annotated[
        list[Ranked],
        Meta(description="The best `top_k`, highest score first; equal scores in the order of the request."),
    ]
    request_id: Annotated[str, Meta(description="The header X-Request-Id of the request, or a new one.")]
    degraded: Annotated[
        bool,
        Meta(description="True: default rows stand in for embeddings that could not be read, so the scores are worse."),
    ] = False


class Outcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of one candidate."""

    index: Annotated[int, Meta(ge=0, description="Position in the request's candidates.")]
    label: Annotated[
        Annotated[int, Meta(ge=0, le=1)] | bool,
        Meta(description="1 or true: it happened, like a click; 0 or false: it did not."),
    ]


class OutcomeReport(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What became of a request's candidates, by one kind of event."""

    request_id: Annotated[str, Meta(min_length=1, max_length=128, description="That of the answer.")]
    outcomes: Annotated[list[Outcome], Meta(description="Candidates that are left out say nothing.")]
    event: Annotated[
        str,
        Meta(
            pattern="^[a-z0-9_-]{1,32}$",
            description="The kind of event, of those that the gateway's settings name; a request's first report of a "
            "kind counts, and later ones are duplicates.",
        ),
    ] = "click"


class FeedbackAnswer(msgspec.Struct, frozen=True):
    """How many of the reports were what."""

    accepted: Annotated[int, Meta(description="Counted for the version that had answered.")] = 0
    duplicate: Annotated[int, Meta(description="Told before.")] = 0
    unknown: Annotated[int, Meta(description="Of requests that were not answered here, or too long ago to know.")] = 0
    late: Annotated[int, Meta(description="Of requests that were answered longer ago than feedback is taken.")] = 0
    invalid: Annotated[
        int, Meta(description="Without outcomes, with an index that the request did not have, or of another event.")
    ] = 0


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the gateway is."""

    status: Annotated[str, Meta(description="`alive` or `ready`.")]
    control: Annotated[
        str,
        Meta(description="Where the state of rollouts cannot be read: since when; the last known one holds meanwhile."),
    ] = ""


_REQUEST = msgspec.json.Decoder(ScoreRequest)
_FEEDBACK = msgspec.json.Decoder(OutcomeReport | list[OutcomeReport])
# Bodies up to this size are read a second time, slowly, to say where a number stands that JSON has not.
_LARGEST_EXPLAINED_BODY = 1 << 20
_EXPECTED = {"candidates": "a list of candidates, each an object of features"}
_FIELDS = {field for kind in (OutcomeReport, Outcome) for field in kind.__struct_fields__}


def decode_request(body: bytes) -> ScoreRequest:
    """Reads a request's body. Values of features are not looked at here.

    Raises:
        MalformedBodyError: It is not JSON.
        WrongValueError: It holds NaN or an infinite number, which JSON has not.
        InvalidFieldError: A field is missing, unknown or of the wrong type.
    """
    try:
        return _REQUEST.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise _wrong_body(body, exc, ScoreRequest.__struct_fields__) from exc


def decode_feedback(body: bytes) -> list[OutcomeReport]:
    """Reads one report of outcomes, or a list of them.

    Raises:
        MalformedBodyError: It is not JSON.
        WrongValueError: It holds NaN or an infinite number, which JSON has not.
        InvalidFieldError: A field is missing, unknown or of the wrong type.
    """
    try:
        decoded = _FEEDBACK.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise _wrong_body(body, exc, _FIELDS) from exc
    return decoded if isinstance(decoded, list) else [decoded]


def checked_reports(reports: Sequence[Mapping[str, Any]]) -> list[OutcomeReport]:
    """Makes reports of outcomes of plain values, as `decode_feedback` does of JSON.

    Raises:
        InvalidFieldError: A value is not allowed.
    """
    try:
        return msgspec.convert(list(reports), list[OutcomeReport])
    except msgspec.ValidationError as exc:
        raise invalid_field(str(exc), _FIELDS, whole="a request") from exc


def _wrong_body(body: bytes, error: Exception, known: Collection[str]) -> RequestError:
    for path in _non_finite_numbers(body):
        return WrongValueError("is NaN or infinite; expected a finite number, or null where the value is missing", path)
    if isinstance(error, msgspec.ValidationError):
        return invalid_field(str(error), known, whole="a request", expected=_EXPECTED)
    return MalformedBodyError(f"the body is not JSON: {error}")


def _non_finite_numbers(body: bytes) -> Iterator[str]:
    """Yields the paths of NaN, Infinity and numbers like 1e400 in a body that is JSON but for them."""
    if len(body) > _LARGEST_EXPLAINED_BODY:
        return
    try:
        yield from _non_finite_below(json.loads(body), "")
    except (ValueError, RecursionError):
        return


def _non_finite_below(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, dict):
        for name, element in value.items():
            yield from _non_finite_below(element, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, element in enumerate(value):
            yield from _non_finite_below(element, f"{path}[{index}]")
