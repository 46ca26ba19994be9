"""What a caller is told of an error: one table for REST (RFC 9457) and gRPC."""

import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated

import grpc
import msgspec
from msgspec import Meta

from rankhouse.serving import errors

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Kind:
    """A kind of error.

    Attributes:
        status: The HTTP status.
        code: The gRPC status.
        slug: The end of its `type`, for programs.
        title: What happened, for people.
    """

    status: HTTPStatus
    code: grpc.StatusCode
    slug: str
    title: str

    @property
    def type(self) -> str:
        """The URI that names this kind."""
        return f"urn:rankhouse:problem:{self.slug}"


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong (RFC 9457)."""

    type: Annotated[str, Meta(description="Names the kind of problem, for programs.")]
    title: Annotated[str, Meta(description="Names the kind of problem, for people.")]
    status: Annotated[int, Meta(description="The HTTP status.")]
    detail: Annotated[str, Meta(description="What happened, what was expected and how to fix it.")]
    request_id: Annotated[str, Meta(description="The request's X-Request-Id.")]
    path: Annotated[str, Meta(description="The field, like `candidates[3].C1`.")] = ""


_INVALID, _UNAVAILABLE = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAVAILABLE
_INTERNAL, _PRECONDITION = grpc.StatusCode.INTERNAL, grpc.StatusCode.FAILED_PRECONDITION
_UNPROCESSABLE, _SERVICE_UNAVAILABLE = HTTPStatus(422), HTTPStatus(503)

INTERNAL = Kind(HTTPStatus(500), _INTERNAL, "internal", "The gateway failed")
TRITON = Kind(HTTPStatus(502), _INTERNAL, "triton", "Triton failed")

KINDS: dict[type[BaseException], Kind] = {
    errors.MalformedBodyError: Kind(HTTPStatus(400), _INVALID, "malformed-body", "The body is not JSON"),
    errors.InvalidFieldError: Kind(_UNPROCESSABLE, _INVALID, "invalid-field", "A field of the request is not valid"),
    errors.NoCandidatesError: Kind(_UNPROCESSABLE, _INVALID, "no-candidates", "Nothing is to be scored"),
    errors.TooManyCandidatesError: Kind(_UNPROCESSABLE, _INVALID, "too-many-candidates", "Too many candidates"),
    errors.UnknownFeatureError: Kind(_UNPROCESSABLE, _INVALID, "unknown-feature", "The model has no such feature"),
    errors.FeatureTwiceError: Kind(_UNPROCESSABLE, _INVALID, "feature-twice", "A feature is given twice"),
    errors.WrongValueError: Kind(_UNPROCESSABLE, _INVALID, "wrong-value", "A feature's value is not valid"),
    errors.BodyTooLargeError: Kind(
        HTTPStatus(413), grpc.StatusCode.RESOURCE_EXHAUSTED, "body-too-large", "The body is too large"
    ),
    errors.HeadersTooLargeError: Kind(
        HTTPStatus(431), grpc.StatusCode.RESOURCE_EXHAUSTED, "headers-too-large", "The headers are too large"
    ),
    errors.NoSuchModelError: Kind(HTTPStatus(404), grpc.StatusCode.NOT_FOUND, "no-such-model", "No such model"),
    errors.DeadlineError: Kind(HTTPStatus(504), grpc.StatusCode.DEADLINE_EXCEEDED, "deadline", "The time is over"),
    errors.TritonTimeoutError: Kind(HTTPStatus(504), grpc.StatusCode.DEADLINE_EXCEEDED, "deadline", "The time is over"),
    errors.OverloadedError: Kind(_SERVICE_UNAVAILABLE, _UNAVAILABLE, "overloaded", "Too many requests at a time"),
    errors.NotReadyError: Kind(_SERVICE_UNAVAILABLE, _UNAVAILABLE, "not-ready", "The gateway is not ready"),
    errors.NoVersionError: Kind(_SERVICE_UNAVAILABLE, _UNAVAILABLE, "not-ready", "No version is loaded"),
    errors.UnknownVersionError: Kind(HTTPStatus(404), grpc.StatusCode.NOT_FOUND, "no-such-version", "No such version"),
    errors.VersionNotThereYetError: Kind(
        _SERVICE_UNAVAILABLE, _UNAVAILABLE, "version-not-there-yet", "No version is as new as that yet"
    ),
    errors.TritonUnavailableError: Kind(_SERVICE_UNAVAILABLE, _UNAVAILABLE, "not-ready", "Triton is not ready"),
    errors.UnknownModelError: Kind(_SERVICE_UNAVAILABLE, _UNAVAILABLE, "not-ready", "Triton has no such version"),
    errors.RolloutSpecError: Kind(_UNPROCESSABLE, _INVALID, "rollout-spec", "The rollout's description is not valid"),
    errors.NoSuchRolloutError: Kind(HTTPStatus(404), grpc.StatusCode.NOT_FOUND, "no-such-rollout", "No such rollout"),
    errors.TransitionError: Kind(HTTPStatus(409), _PRECONDITION, "transition", "The state does not allow it"),
    errors.AdmissionError: Kind(HTTPStatus(409), _PRECONDITION, "admission", "The version must not take traffic"),
    errors.ConflictError: Kind(
        HTTPStatus(409), grpc.StatusCode.ABORTED, "conflict", "Others changed the state meanwhile"
    ),
    errors.NoSuchModelStateError: Kind(_SERVICE_UNAVAILABLE, _UNAVAILABLE, "no-state", "The model has no state yet"),
    errors.StateStoreError: Kind(_SERVICE_UNAVAILABLE, _UNAVAILABLE, "state-store", "The state store is away"),
    errors.UnauthenticatedError: Kind(
        HTTPStatus(401), grpc.StatusCode.UNAUTHENTICATED, "unauthenticated", "The call has no valid key"
    ),
    errors.ForbiddenError: Kind(
        HTTPStatus(403), grpc.StatusCode.PERMISSION_DENIED, "forbidden", "The key's role does not allow it"
    ),
    errors.TooManyFailuresError: Kind(
        HTTPStatus(429), grpc.StatusCode.RESOURCE_EXHAUSTED, "too-many-failures", "Too many wrong keys"
    ),
    errors.NoSuchKeyError: Kind(HTTPStatus(404), grpc.StatusCode.NOT_FOUND, "no-such-key", "No such key"),
    errors.KeyExistsError: Kind(HTTPStatus(409), grpc.StatusCode.ALREADY_EXISTS, "key-exists", "The name is taken"),
    errors.IdempotencyError: Kind(
        _UNPROCESSABLE, _INVALID, "idempotency", "The Idempotency-Key came with another command"
    ),
    errors.GateClosedError: Kind(
        HTTPStatus(403), grpc.StatusCode.PERMISSION_DENIED, "gate-closed", "The gate is closed"
    ),
    errors.TritonError: TRITON,
    errors.NonFiniteScoreError: Kind(HTTPStatus(500), _INTERNAL, "non-finite-score", "The model gave no number"),
}


def kind_of(error: BaseException) -> Kind:
    """The kind of an error: that of its class or of the nearest class above it."""
    return next((KINDS[cls] for cls in type(error).__mro__ if cls in KINDS), INTERNAL)


def problem_of(error: BaseException, request_id: str) -> Problem:
    """Says what a caller may know of an error. Traces of the system's inside go to the log and not to the caller."""
    kind = kind_of(error)
    if kind in (INTERNAL, TRITON):
        _log.error("request %s failed", request_id, exc_info=error)
        detail = f"an error that is not the request's; the gateway's log has it under the request id {request_id}"
    else:
        detail = str(error)
    path = error.path if isinstance(error, errors.RequestError) else ""
    return Problem(kind.type, kind.title, int(kind.status), detail, request_id, path)
