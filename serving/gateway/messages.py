"""A scoring request and its answer, as JSON carries them."""

import difflib
import json
import math
import re
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rankhouse.serving.errors import InvalidFieldError, MalformedBodyError, RequestError, WrongValueError

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


class Status(msgspec.Struct, frozen=True):
    """How the gateway is."""

    status: Annotated[str, Meta(description="`alive` or `ready`.")]


_DECODER = msgspec.json.Decoder(ScoreRequest)
_PLACE = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_LONGEST_NAME = 100
# Bodies up to this size are read a second time, slowly, to say where a number stands that JSON has not.
_LARGEST_EXPLAINED_BODY = 1 << 20
_FIELD = re.compile(r"Object (?:contains unknown|missing required) field `(?P<field>.*)`", re.DOTALL)


def decode_request(body: bytes) -> ScoreRequest:
    """Reads a request's body. Values of features are not looked at here.

    Raises:
        MalformedBodyError: It is not JSON.
        WrongValueError: It holds NaN or an infinite number, which JSON has not.
        InvalidFieldError: A field is missing, unknown or of the wrong type.
    """
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        for path in _non_finite_numbers(body):
            raise WrongValueError(
                "is NaN or infinite; expected a finite number, or null where the value is missing", path
            ) from exc
        if isinstance(exc, msgspec.ValidationError):
            raise _invalid_field(str(exc)) from exc
        raise MalformedBodyError(f"the body is not JSON: {exc}") from exc


def _invalid_field(message: str) -> RequestError:
    """Puts msgspec's message in our words: `Expected `int`, got `str` - at `$.top_k``."""
    field = _FIELD.fullmatch(message)
    if field is None:
        place = _PLACE.fullmatch(message)
        assert place is not None
        path = (place["path"] or "").replace("[...]", "")
        return InvalidFieldError(place["what"].replace("`", "").lower(), path)
    name, known = field["field"][:_LONGEST_NAME], ScoreRequest.__struct_fields__
    if name in known:
        return InvalidFieldError("is missing; expected a list of candidates, each an object of features", name)
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(sorted(known))}"
    return InvalidFieldError(f"is not a field of a request; {hint}", name)


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
