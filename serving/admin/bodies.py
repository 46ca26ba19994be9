"""What callers send to the admin API, and what they get for a command."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from rankhouse.serving.admin.keys import Role
from rankhouse.serving.errors import MalformedBodyError
from rankhouse.serving.gateway.json_bodies import invalid_field

_Body = TypeVar("_Body", bound=msgspec.Struct)

Reason = Annotated[str, Meta(description="Why; history keeps it.", examples=["CTR looks odd on Android"])]
VersionName = Annotated[str, Meta(description="A version's name.", examples=["000012-c873e97f"])]


class Why(msgspec.Struct, forbid_unknown_fields=True):
    """A command that needs nothing but a reason."""

    reason: Reason = ""


class StartRollout(msgspec.Struct, forbid_unknown_fields=True):
    """A rollout to be started."""

    spec: Annotated[dict[str, Any], Meta(description="What its YAML file says, as JSON.")]
    reason: Reason = ""


class CheckRollout(msgspec.Struct, forbid_unknown_fields=True):
    """A rollout that is only looked at."""

    yaml: Annotated[str, Meta(max_length=64 << 10, description="What its YAML file says.")]


class Promote(msgspec.Struct, forbid_unknown_fields=True):
    """A rollout's candidate is to become stable now."""

    reason: Reason = ""
    version: Annotated[str | None, Meta(description="Which candidate, where there are several.")] = None


class SkipStep(msgspec.Struct, forbid_unknown_fields=True):
    """A rollout's step is to end now."""

    reason: Reason = ""
    step: Annotated[
        int | None, Meta(description="The step that is meant, from 0; if it is over already, nothing happens.")
    ] = None


class SetWeight(msgspec.Struct, forbid_unknown_fields=True):
    """A rollout's candidates are to have another share now."""

    weight: Annotated[float, Meta(ge=0, le=100, description="Percent of the request keys for each candidate.")]
    reason: Reason = ""


class Rollback(msgspec.Struct, forbid_unknown_fields=True):
    """An earlier stable version is to come back."""

    version: Annotated[str, Meta(description="Its name; empty: the one before.", examples=["000011-5f3a90cc"])] = ""
    reason: Reason = ""


class SetPolicy(msgspec.Struct, forbid_unknown_fields=True):
    """What is to happen with new versions."""

    policy: Annotated[dict[str, Any], Meta(description="`admit`, `rollout`, `keep_loaded_bytes`, `webhooks`, `drift`.")]
    reason: Reason = ""


class SetHoldout(msgspec.Struct, forbid_unknown_fields=True):
    """Which share of the request keys no candidate gets."""

    percent: Annotated[float, Meta(ge=0, le=50, description="Percent of the request keys.")]
    reason: Reason = ""


class AddKey(msgspec.Struct, forbid_unknown_fields=True):
    """A key to be made."""

    name: Annotated[str, Meta(description="What history calls who uses it.", examples=["ann"])]
    role: Role = "viewer"


class NewKey(msgspec.Struct, frozen=True):
    """A key that was made."""

    name: str
    role: Role
    key: Annotated[str, Meta(description="The key. It is kept nowhere, so this is the only time that it is seen.")]


class KeyEntry(msgspec.Struct, frozen=True):
    """A key, without itself."""

    name: str
    role: str
    created_at: Annotated[float, Meta(description="Unix seconds; 0 for the first key, which stands in a file.")]
    created_by: str


class Done(msgspec.Struct, frozen=True):
    """What there is after a command over the model."""

    revision: Annotated[int, Meta(description="Of the state.")]
    stable: str | None
    policy: Annotated[dict[str, Any], Meta(description="What happens with new versions.")]
    holdout_percent: float
    quarantined: dict[str, str]
    active_rollouts: list[str]


class Drained(msgspec.Struct, frozen=True):
    """How the replica that answers is."""

    replica: str
    is_draining: bool


class ModelSummary(msgspec.Struct, frozen=True):
    """A model that is served here."""

    model: str
    stable: str | None
    revision: int
    active_rollouts: list[str]


class FlaggerWebhook(msgspec.Struct):
    """What Flagger posts to a webhook; none of it is looked at."""

    name: str = ""
    namespace: str = ""
    phase: str = ""
    metadata: dict[str, Any] = {}


class PrometheusAnswer(msgspec.Struct, frozen=True):
    """A vector, as Prometheus answers an instant query."""

    status: Literal["success"]
    data: dict[str, Any]


def decode_body(content: bytes, kind: type[_Body]) -> _Body:
    """Reads a command's body; an empty one is an object without fields.

    Raises:
        MalformedBodyError: It is not JSON.
        InvalidFieldError: A field is missing, unknown or not valid.
    """
    try:
        return msgspec.json.decode(content or b"{}", type=kind)
    except msgspec.ValidationError as exc:
        raise invalid_field(str(exc), kind.__struct_fields__, whole="this command") from exc
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise MalformedBodyError(f"the body is not JSON: {exc}") from exc
