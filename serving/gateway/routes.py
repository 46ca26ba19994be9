"""Which versions answer here, as one immutable value: what a request takes once, at its start."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rankhouse.embedding_cache.format.version_record import is_version_name
from rankhouse.serving.control.assignment import Route, RoutingTable
from rankhouse.serving.control.model_state import ModelState
from rankhouse.serving.errors import InvalidFieldError
from rankhouse.serving.gateway.call import Head
from rankhouse.serving.gateway.messages import ScoreRequest
from rankhouse.serving.gateway.served_model import ServedModel

_LONGEST_KEY = 512
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)


@dataclass(frozen=True)
class Routes:
    """The routing table and the versions that it leads to. Immutable; any thread may use it.

    Attributes:
        table: Who is answered by which version.
        models: Those versions, by name.
    """

    table: RoutingTable
    models: Mapping[str, ServedModel]

    @classmethod
    def of(
        cls, state: ModelState, models: Mapping[str, ServedModel], *, revision: int, is_stale: bool = False
    ) -> "Routes":
        """The routes of a state.

        Args:
            state: The state.
            models: The versions that are loaded, by name.
            revision: The state's revision.
            is_stale: The state is the last known one, as its store cannot be read.
        """
        table = RoutingTable.of(state, models, revision=revision, is_stale=is_stale)
        return cls(table, models)

    @classmethod
    def to(cls, model: ServedModel) -> "Routes":
        """Leads every request to one version."""
        return cls.of(ModelState(model=model.name, stable=model.version), {model.version: model}, revision=0)

    @property
    def main(self) -> ServedModel | None:
        """The version that answers whatever no candidate has; None while it is not loaded."""
        return self.models.get(self.table.stable or "")

    def route(self, key: str, request: ScoreRequest, head: Head) -> Route:
        """Chooses the version that answers a request.

        Raises:
            InvalidFieldError: `min_version` is neither a version's name nor a number.
            UnknownVersionError: The head asks for a version that is not loaded here.
            VersionNotThereYetError: No loaded version is as new as the request wants it.
            NoVersionError: No loaded version may answer.
        """
        return self.table.version_for(
            key,
            request_id=head.request_id,
            override=head.version or None,
            min_version=_min_version(request.min_version),
        )


def _min_version(given: str | int | None) -> str | int | None:
    if given is None or given == "":
        return None
    if not is_version_name(str(given)) and not _NUMBER.fullmatch(str(given)):
        raise InvalidFieldError(
            f"is {str(given)[:40]!a}; expected a version's name like 000012-c873e97f, or its number", "min_version"
        )
    return given


def key_of(request: ScoreRequest, head: Head, *, feature: str | None) -> str:
    """The key of a request: its own, or that of its head, or the value of a feature of its context; empty: none.

    A number is the same key as its digits, so that REST and gRPC agree.

    Args:
        request: The request.
        head: Its headers.
        feature: The name of the feature, if one is to be taken.

    Raises:
        InvalidFieldError: The key is too long, or not Unicode.
    """
    key, place = request.key, "key"
    if key is None or key == "":
        key, place = head.key, "X-Rankhouse-Key"
    if key == "" and feature is not None:
        value = request.context.get(feature)
        if isinstance(value, (str, int)) and not isinstance(value, bool):
            key, place = value, f"context.{feature}"
    text = str(key)
    if len(text) > _LONGEST_KEY:
        raise InvalidFieldError(f"has {len(text)} characters; expected a key of at most {_LONGEST_KEY}", place)
    return text
