"""The gateway's settings, from the environment."""

import difflib
import os
import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as ParsingError

from rankhouse.serving.errors import SettingsError

PREFIX = "RANKHOUSE_"
# What `rankhouse rollout` reads; whoever sets it may start a gateway, too.
_OF_CLIENTS = {"ADMIN_URL"}
# That of redis://user:password@host.
_PASSWORD = re.compile(r"(?<=//)([^/@:]*):[^/@]*@")


class Settings(BaseSettings):
    """What the gateway is told, once, at start. Each field is read from `RANKHOUSE_<FIELD IN CAPITALS>`."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", protected_namespaces=())

    store: Annotated[str, BeforeValidator(os.fspath)] = Field(
        min_length=1, description="The version store: a folder, or a URL such as s3://bucket/models."
    )
    model: str = Field(min_length=1, description="Name of the served model.")
    version: str = Field(
        default="latest",
        min_length=1,
        description="Name of the served version; `latest` goes on to new ones where the gateway loads versions itself.",
    )
    cache: Path | None = Field(
        default=None, description="Folder below which a URL is mirrored; without it, in the user's cache directory."
    )
    triton_url: str = Field(default="127.0.0.1:8001", description="Triton's gRPC address, host:port.")
    triton_metrics_url: str | None = Field(
        default=None, min_length=1, description="Triton's metrics: with it, replicas report where rows were found."
    )
    triton_repository: Path | None = Field(
        default=None,
        description="Triton's model repository: with it the gateway loads versions itself, as state_url says; without "
        "it, it serves what somebody else has loaded.",
    )
    triton_backends: Path | None = Field(default=None, description="Triton's folder of backends, if it is seen here.")
    triton_device: int | None = Field(
        default=None,
        ge=0,
        description="Number of the GPU that Triton looks embeddings up on, which its backend `rankhouse` knows by "
        "its option `device`; without it, the CPU.",
    )
    triton_shared: bool = Field(
        default=False, description="Others use the same Triton: what they loaded stays, what was loaded here goes."
    )
    refresh: Literal["direct", "manual"] = Field(
        default="direct", description="What happens with new versions, where the shared state does not say yet."
    )
    keep_loaded_bytes: int = Field(
        default=4 << 30, ge=0, description="What earlier versions may take in Triton, where the state does not say yet."
    )
    watch_seconds: float = Field(default=0.5, gt=0, description="Time between two looks for new versions.")
    refresh_file: Path | None = Field(default=None, description="File that always says how far loading versions is.")
    host: str = Field(default="127.0.0.1", description="Address to listen on; 0.0.0.0 is every one of this machine's.")
    port: int = Field(default=8080, ge=0, le=65535, description="Port of REST; 0 takes a free one.")
    grpc_port: int = Field(default=8081, ge=0, le=65535, description="Port of gRPC; 0 takes a free one.")
    max_candidates: int = Field(default=1000, ge=1, description="Candidates in a request.")
    max_body_bytes: int = Field(
        default=8 << 20, ge=1, description="Bytes of a request's body (REST) or message (gRPC)."
    )
    max_header_bytes: int = Field(
        default=16 << 10, ge=256, le=512 << 10, description="Bytes of a request's headers, names and values."
    )
    max_in_flight: int = Field(
        default=128, ge=1, description="Requests answered at a time; more get 503 and Retry-After."
    )
    request_timeout_seconds: float = Field(
        default=2.0, gt=0, description="Time from a request's first byte to its answer."
    )
    state_url: str | None = Field(
        default=None,
        min_length=1,
        description="Where replicas share the state of rollouts: sqlite:///folder/state.db or redis://host:port/0; "
        "without it, `version` answers everything.",
    )
    state_file: Path | None = Field(
        default=None, description="File that keeps the last known state, for a start while state_url is away."
    )
    admin_host: str = Field(default="", description="Address of the admin API; that of REST if empty.")
    admin_port: int | None = Field(
        default=None, ge=0, le=65535, description="Port of the admin API, which needs state_url; 0 takes a free one."
    )
    admin_key_file: Path | None = Field(
        default=None, description="File with the first admin key, which only its owner may read."
    )
    webhook_secret_file: Path | None = Field(default=None, description="File with the secret that signs webhooks.")
    webhook_hosts: str = Field(
        default="",
        pattern=r"^((\*\.)?[A-Za-z0-9.:-]+(,(\*\.)?[A-Za-z0-9.:-]+)*)?$",
        description="The hosts that webhooks may post to, with commas between them, *.example.com for all below one; "
        "any if empty.",
    )
    retraining_command: tuple[str, ...] = Field(
        default=(), description="Program that a drift monitor starts: a JSON list of it and its arguments."
    )
    replica: str = Field(
        default="", max_length=100, description="What this replica is called among others; the host's name if empty."
    )
    request_key_feature: str | None = Field(
        default=None, min_length=1, description="The feature of the context that is a request's key where it has none."
    )
    allow_version_override: bool = Field(
        default=True, description="Whether a request may choose its version by X-Rankhouse-Version."
    )
    shadow_max_in_flight: int = Field(
        default=4, ge=1, description="Requests that candidates score as shadows at a time; four times as many wait."
    )
    shadow_timeout_seconds: float = Field(default=2.0, gt=0, description="Time of a shadow, waiting included.")
    feedback_ttl_seconds: float = Field(
        default=3600.0, gt=0, description="Time after an answer in which feedback counts."
    )
    feedback_max_answers: int = Field(
        default=20_000, ge=1, description="Answers kept in memory for feedback; the state store keeps more."
    )
    feedback_events: str = Field(
        default="click,conversion",
        pattern=r"^[a-z0-9_-]{1,32}(,[a-z0-9_-]{1,32}){0,7}$",
        description="The events that feedback may be about: 1 to 8 names with commas between them.",
    )
    drain_seconds: float = Field(
        default=1.0, ge=0, description="After SIGTERM: how long all is served and /readyz says 503."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="What the log shows.")

    def shown(self) -> str:
        """The resolved settings, one line each, as the log shows them, without the password in a URL."""
        lines = [f"  {name} = {getattr(self, name)}" for name in type(self).model_fields]
        return _PASSWORD.sub(r"\1:***@", "\n".join(lines))


def settings_from_environment() -> Settings:
    """Reads the settings.

    Raises:
        SettingsError: A variable is unknown, missing or has no valid value.
    """
    known = [name.upper() for name in Settings.model_fields]
    for variable in sorted(os.environ):
        name = variable.removeprefix(PREFIX)
        if variable.startswith(PREFIX) and name not in known and name not in _OF_CLIENTS:
            nearest = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {PREFIX}{nearest[0]}?" if nearest else f"known are {', '.join(known)} after {PREFIX}"
            raise SettingsError(f"the environment variable {variable} is not a setting of the gateway; {hint}")
    try:
        settings = Settings()  # type: ignore[call-arg]  # The environment gives them.
    except ParsingError as exc:
        raise SettingsError(f"the gateway's environment: {exc}; expected JSON there") from exc
    except ValidationError as exc:
        lines = [_line(str(error["loc"][0]), error["msg"], error["input"]) for error in exc.errors()]
        raise SettingsError("the gateway's environment: " + "; ".join(lines)) from exc
    if settings.admin_port is not None and settings.state_url is None:
        raise SettingsError(f"{PREFIX}ADMIN_PORT is set, but there is nothing to administer without {PREFIX}STATE_URL")
    return settings


def _line(field: str, message: str, value: object) -> str:
    variable = PREFIX + field.upper()
    if message == "Field required":
        return f"{variable} is not set: {Settings.model_fields[field].description}"
    return f"{variable}={value}: {message}"
