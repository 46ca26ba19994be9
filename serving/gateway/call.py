"""A request on its way: what its head says, how long it may take, and what is known of it once it is answered."""

import re
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.serving.control.assignment import Route
from rankhouse.serving.errors import DeadlineError, InvalidFieldError
from rankhouse.serving.gateway.messages import ScoreRequest
from rankhouse.serving.gateway.served_model import ServedModel

# Headers of REST, and keys of gRPC's metadata.
REQUEST_ID = "x-request-id"
KEY = "x-rankhouse-key"
VERSION = "x-rankhouse-version"
ARM = "x-rankhouse-arm"
ROLLOUT = "x-rankhouse-rollout"

_REQUEST_ID = re.compile(r"[!-~]{1,128}")


class Deadline:
    """When an answer must be there, by the monotonic clock."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at = time.monotonic() + seconds

    def remaining(self) -> float:
        """The seconds that are left.

        Raises:
            DeadlineError: None are.
        """
        remaining = self._at - time.monotonic()
        if remaining <= 0:
            raise self.error()
        return remaining

    def error(self) -> DeadlineError:
        """What a caller is told when it has passed."""
        return DeadlineError(f"no answer within {self._seconds:.3g} s; send fewer candidates or allow more time")


class Head(msgspec.Struct, frozen=True, gc=False):
    """What a request's headers (REST) or metadata (gRPC) say.

    Attributes:
        request_id: The request's id.
        key: The key that decides which version answers; empty where there is none.
        version: The version that must answer; empty where any may.
    """

    request_id: str
    key: str = ""
    version: str = ""

    @classmethod
    def of(cls, headers: Mapping[str, str], request_id: str) -> "Head":
        """Reads it from headers whose names are in small letters."""
        key = headers.get(KEY, "")
        if not key.isascii():
            # HTTP's headers are Latin-1 by the letter; what callers send is UTF-8, as in a body.
            key = key.encode("latin-1").decode(errors="replace")
        return cls(request_id, key, headers.get(VERSION, ""))


@dataclass(slots=True)
class Call:
    """A request that is being answered.

    Attributes:
        protocol: "rest" or "grpc".
        deadline: When its answer must be there.
        started: When it came, by `time.perf_counter`.
        request_id: Its id, once it has a route.
        route: Which version answers and why, once that is decided.
        rollouts: Which rollouts count it: the candidate's, or all that were under way when the stable version answered.
        result: The scores, once they are there.
    """

    protocol: str
    deadline: Deadline
    started: float
    request_id: str = ""
    route: Route | None = None
    rollouts: tuple[str, ...] = ()
    result: "Result | None" = None

    def route_headers(self) -> dict[str, str]:
        """What the answer's head says of its version; nothing where none was chosen."""
        return {} if self.route is None else route_headers(self.route)


class Result(msgspec.Struct, frozen=True, gc=False):
    """What a version made of a request.

    Attributes:
        model: The version.
        request: The request.
        raw: Its rows, as the version takes them.
        scores: float32 [B].
        order: int [B], the candidates from the highest score to the lowest.
        is_degraded: Default rows stand in for embeddings that could not be read.
        num_unknown: How many values of the rows stand in no vocabulary of the version.
        num_ids: Of how many: `ServedModel.num_ids`.
    """

    model: ServedModel
    request: ScoreRequest
    raw: RawBatch
    scores: npt.NDArray[np.float32]
    order: npt.NDArray[np.intp]
    is_degraded: bool
    num_unknown: int
    num_ids: int


class Answered(msgspec.Struct, frozen=True, gc=False):
    """A request that had a route and is over, for those who look at it afterwards.

    Attributes:
        request_id: Its id.
        route: Which version answered and why.
        rollouts: Which rollouts count it.
        status: The HTTP status, or the one that the gRPC status stands for; 499: the caller left.
        seconds: From its arrival to its answer.
        at: When that was, in seconds since 1970.
        result: The scores; None where there are none.
    """

    request_id: str
    route: Route
    rollouts: tuple[str, ...]
    status: int
    seconds: float
    at: float
    result: Result | None


def route_headers(route: Route) -> dict[str, str]:
    """What the head of an answer says of its version."""
    headers = {VERSION: route.version, ARM: route.arm}
    if route.rollout:
        headers[ROLLOUT] = route.rollout
    return headers


def request_id_of(given: str | None) -> str:
    """The id of a request: the caller's, or a new one.

    Raises:
        InvalidFieldError: The caller's is not 1 to 128 visible ASCII characters.
    """
    if given is None:
        return uuid.uuid4().hex
    if not _REQUEST_ID.fullmatch(given):
        raise InvalidFieldError(f"is {given[:40]!a}; expected 1 to 128 visible ASCII characters", "X-Request-Id")
    return given
