"""The version that the gateway serves, as far as a caller can see it."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rankhouse.embedding_cache.format.errors import FormatError, RawValueError
from rankhouse.embedding_cache.format.feature import Feature
from rankhouse.embedding_cache.format.golden import GoldenRequest
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.transform import read_features
from rankhouse.embedding_cache.format.version import VersionStore
from rankhouse.serving.errors import (
    FeatureTwiceError,
    InvalidFieldError,
    NoCandidatesError,
    RequestError,
    TooManyCandidatesError,
    UnknownFeatureError,
    WrongValueError,
)
from rankhouse.serving.gateway.messages import Features, ScoreRequest
from rankhouse.serving.model_repository import ensemble_name

# A page that shows an example stays readable with this many candidates of the golden request.
_EXAMPLE_CANDIDATES = 3


class FeatureDescription(msgspec.Struct, frozen=True):
    """A feature that a request may give."""

    name: str
    kind: Annotated[str, Meta(description="`continuous` or `categorical`.")]
    dtype: Annotated[str, Meta(description="`int64`, `float64` or `text`: the JSON type of a value.")]
    is_list: Annotated[bool, Meta(description="Whether the value is a list.")]


class ModelDescription(msgspec.Struct, frozen=True):
    """What a caller needs to know of a model."""

    model: str
    version: Annotated[str, Meta(description="The version that answers.")]
    versions: Annotated[list[str], Meta(description="All versions that are served.")]
    max_candidates: Annotated[int, Meta(description="How many candidates a request may have.")]
    features: list[FeatureDescription]
    example: Annotated[dict[str, Any], Meta(description="A request that works.")]


class ModelEntry(msgspec.Struct, frozen=True):
    """A model in the list of models."""

    model: str
    versions: Annotated[list[str], Meta(description="All versions that are served.")]


class ModelList(msgspec.Struct, frozen=True):
    """The models that are served."""

    models: list[ModelEntry]


@dataclass(frozen=True)
class ServedModel:
    """One version of one model. Immutable; any thread may use it.

    Attributes:
        name: The model's name.
        version: The version's name.
        features: What a row may hold.
        example: A request that works, made of raw rows that the trainer left in the version.
    """

    name: str
    version: str
    features: tuple[Feature, ...]
    example: dict[str, Any]

    @classmethod
    def open(cls, store: Path | str, name: str, version: str = "latest", *, cache: Path | None = None) -> "ServedModel":
        """Reads what a version says of itself; tables are neither touched nor fetched.

        Args:
            store: The version store: a folder or a URL.
            name: The model's name.
            version: The version's name, or "latest".
            cache: The folder below which a URL is mirrored; None is one in the user's cache directory.

        Raises:
            FormatError: There is no such version of this model, or it is damaged.
        """
        opened = VersionStore(store, cache=cache).open(version, model=name, tables=False)
        return cls.of(name, opened.name, opened.transform().features, opened.golden())

    @classmethod
    def newest(cls, store: Path | str, name: str, *, cache: Path | None = None) -> "ServedModel":
        """Reads the newest version that says what the model takes, sound or not; args are those of `open`.

        Raises:
            FormatError: There is none.
        """
        versions = VersionStore(store, cache=cache)
        for version in reversed(versions.names()):
            with suppress(FormatError):
                opened = versions.open(version, model=name, verify=False, tables=False)
                return cls.of(name, version, read_features(opened.path), opened.golden())
        return cls.open(store, name, cache=cache)

    @classmethod
    def of(cls, name: str, version: str, features: Sequence[Feature], golden: Sequence[GoldenRequest]) -> "ServedModel":
        """Makes it of what a version says: its features and its golden requests."""
        request = golden[0].request if golden else {"context": {}, "candidates": [{}]}
        example = {**request, "candidates": request["candidates"][:_EXAMPLE_CANDIDATES], "top_k": 2}
        return cls(name, version, tuple(features), example)

    @property
    def ensemble(self) -> str:
        """The name of this version's ensemble in Triton."""
        return ensemble_name(self.name, self.version)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of the features in the order of a raw batch's columns: continuous, int64, text."""
        kinds = [(f.kind == "categorical", f.kind == "categorical" and f.dtype == "text") for f in self.features]
        order = sorted(range(len(kinds)), key=kinds.__getitem__)
        return tuple(self.features[index].name for index in order)

    @cached_property
    def _categorical(self) -> tuple[int, list[int], list[int]]:
        """How many single-valued categorical features there are, and the columns of the lists: int64, text."""
        columns = [f for f in self.features if f.kind == "categorical"]
        ints, texts = (
            [column for column, feature in enumerate(of_dtype) if feature.is_list]
            for of_dtype in ([f for f in columns if f.dtype == dtype] for dtype in ("int64", "text"))
        )
        return len(columns) - len(ints) - len(texts), ints, texts

    def num_ids(self, raw: RawBatch) -> int:
        """How many ids the rows of a request become: one for each value, and for each single value that is missing."""
        num_single, ints, texts = self._categorical
        num_ids = raw.num_rows * num_single
        for lengths, columns in ((raw.int_lengths, ints), (raw.text_lengths, texts)):
            if columns:
                num_ids += int(lengths[:, columns].sum())
        return num_ids

    def description(self, versions: Sequence[str], *, max_candidates: int) -> ModelDescription:
        """What a caller needs to know, `versions` being all that are served."""
        return ModelDescription(
            model=self.name,
            version=self.version,
            versions=list(versions),
            max_candidates=max_candidates,
            features=[FeatureDescription(f.name, f.kind, f.dtype, f.is_list) for f in self.features],
            example=self.example,
        )

    def raw_batch(self, request: ScoreRequest, *, max_candidates: int) -> RawBatch:
        """Checks a request and lays its rows out as arrays, one row for each candidate.

        Raises:
            RequestError: The class says what is wrong, the path says where.
        """
        _check_numbers(request, max_candidates=max_candidates)
        _check_once(request.context, request.candidates)
        rows = [{**request.context, **candidate} for candidate in request.candidates]
        try:
            return RawBatch.from_rows(self.features, rows)
        except RawValueError as exc:
            raise self._in_request(exc, request.context) from exc

    def _in_request(self, error: RawValueError, context: Features) -> RequestError:
        place = "context" if error.feature in context else f"candidates[{error.row}]"
        position = "" if error.position is None else f"[{error.position}]"
        known = any(feature.name == error.feature for feature in self.features)
        kind = WrongValueError if known else UnknownFeatureError
        return kind(error.message, f"{place}.{error.feature}{position}")


def check_finite(value: float, path: str) -> None:
    """Refuses NaN and infinite numbers, which a missing value could be mistaken for.

    Raises:
        WrongValueError: It is one.
    """
    if not math.isfinite(value):
        raise WrongValueError(f"is {value}; expected a finite number, or no value where it is missing", path)


def _check_numbers(request: ScoreRequest, *, max_candidates: int) -> None:
    if not request.candidates:
        raise NoCandidatesError("is empty; expected at least one candidate", "candidates")
    if len(request.candidates) > max_candidates:
        raise TooManyCandidatesError(
            f"holds {len(request.candidates)}; expected at most {max_candidates}, so send several requests",
            "candidates",
        )
    if request.top_k is not None and request.top_k < 1:
        raise InvalidFieldError(f"is {request.top_k}; expected 1 or more, or no top_k for all candidates", "top_k")


def _check_once(context: Features, candidates: Sequence[Features]) -> None:
    for index, candidate in enumerate(candidates):
        if not context.keys().isdisjoint(candidate):
            name = next(name for name in candidate if name in context)
            raise FeatureTwiceError(
                "stands in the context too; give it in one of the two places",
                f"candidates[{index}].{name}",
            )
