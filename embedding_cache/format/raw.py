"""Raw rows as arrays: what a request, a file's rows and a golden request become before the compiled transform."""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.errors import RawValueError, TransformError
from rankhouse.embedding_cache.format.feature import Feature

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_LONGEST_NAME = 100  # Of what a caller may have meant; to compare more takes long.
_EXPECTED = {"int64": "a 64-bit integer", "float64": "a finite number", "text": "a text"}


@dataclass(frozen=True)
class RawBatch:
    """Raw values of B rows in six arrays, whatever the number of features. Immutable; any thread may read it.

    Attributes:
        float_values: float64 [B, num_float], the continuous features (of any raw dtype); NaN is missing.
        int_values: int64 [n], the values of categorical int64 features, sample by sample.
        int_lengths: int32 [B, num_int], the values of each; 0 is missing.
        text_values: object [m] of bytes (UTF-8, never empty), of categorical text features, sample by sample.
        text_lengths: int32 [B, num_text], the values of each; 0 is missing.

    Raises:
        TransformError: The arrays contradict each other.
    """

    float_values: npt.NDArray[Any]
    int_values: npt.NDArray[Any]
    int_lengths: npt.NDArray[Any]
    text_values: npt.NDArray[Any]
    text_lengths: npt.NDArray[Any]

    def __post_init__(self) -> None:
        for name in ("float_values", "int_lengths", "text_lengths"):
            array = getattr(self, name)
            if array.ndim != 2 or len(array) != len(self.float_values):
                raise TransformError(
                    f"{name} has shape {array.shape}; expected two dimensions and {len(self.float_values)} rows"
                )
        for name in ("int", "text"):
            values, lengths = getattr(self, f"{name}_values"), getattr(self, f"{name}_lengths")
            if values.ndim != 1 or lengths.min(initial=0) < 0 or lengths.sum() != len(values):
                raise TransformError(
                    f"{name}_values has shape {values.shape}; expected one dimension and as many values as "
                    f"{name}_lengths add up to, {int(lengths.sum())}, none of them negative"
                )

    @property
    def num_rows(self) -> int:
        """The number of rows, B."""
        return len(self.float_values)

    @classmethod
    def from_rows(cls, features: Sequence[Feature], rows: Sequence[Mapping[str, Any]]) -> "RawBatch":
        """Checks rows of raw values and lays them out as arrays.

        An absent feature, None, "" and an empty list are a missing value; None and "" inside a list are left out.

        Args:
            features: The features that a row may have; their order is that of the arrays' columns.
            rows: One mapping from feature names to values per row: int for int64, int or float for float64 (NaN is
                missing), str for text, and lists of these for list features.

        Raises:
            RawValueError: A row has an unknown feature or a value of the wrong type; it names row, feature, position.
        """
        _refuse_unknown(features, rows)
        floats = [feature for feature in features if feature.kind == "continuous"]
        ints = [feature for feature in features if feature.kind == "categorical" and feature.dtype == "int64"]
        texts = [feature for feature in features if feature.kind == "categorical" and feature.dtype == "text"]
        int_values, int_lengths = _column_group(ints, rows)
        text_values, text_lengths = _column_group(texts, rows)
        return cls(
            float_values=_float_values(floats, rows),
            int_values=np.array(int_values, dtype=np.int64),
            int_lengths=int_lengths,
            text_values=_as_objects(text_values),
            text_lengths=text_lengths,
        )


def _refuse_unknown(features: Sequence[Feature], rows: Sequence[Mapping[str, Any]]) -> None:
    known = {feature.name for feature in features}
    for index, row in enumerate(rows):
        if row.keys() <= known:
            continue
        name = next(name for name in row if name not in known)
        nearest = difflib.get_close_matches(str(name)[:_LONGEST_NAME], known, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(sorted(known))}"
        raise RawValueError(f"is not a feature of this model; {hint}", row=index, feature=str(name))


def _float_values(features: Sequence[Feature], rows: Sequence[Mapping[str, Any]]) -> npt.NDArray[Any]:
    values = np.empty((len(rows), len(features)), dtype=np.float64)
    for index, feature in enumerate(features):
        values[:, index] = _float_column(feature, [row.get(feature.name) for row in rows])
    return values


def _float_column(feature: Feature, column: list[Any]) -> npt.NDArray[Any]:
    """Checks one continuous feature: at once where that is certain to be right, else value by value."""
    allowed = {int, type(None)} if feature.dtype == "int64" else {int, float, type(None)}
    if set(map(type, column)) <= allowed:
        try:
            values = np.array(column, dtype=np.float64)  # None becomes NaN.
        except OverflowError:
            pass
        else:
            if not (np.abs(values) >= _INT64_MAX).any():
                return values
    return np.array([_number(feature, value, row) for row, value in enumerate(column)], dtype=np.float64)


def _column_group(features: Sequence[Feature], rows: Sequence[Mapping[str, Any]]) -> tuple[list[Any], npt.NDArray[Any]]:
    """Lays out categorical features of one dtype: the values sample by sample, and lengths int32 [B, F]."""
    names = [feature.name for feature in features]
    flat = [row.get(name) for row in rows for name in names]
    bags = None if any(feature.is_list for feature in features) else _plain_bags(features, flat)
    values, lengths = bags or _checked_bags(features, flat)
    return values, lengths.reshape(len(rows), len(names))


def _plain_bags(features: Sequence[Feature], flat: Sequence[Any]) -> tuple[list[Any], npt.NDArray[Any]] | None:
    """Lays out single values without a Python call for each; None where one of them needs a closer look."""
    exact = int if features and features[0].dtype == "int64" else str
    if not set(map(type, flat)) <= {exact, type(None)}:
        return None
    present = [value is not None and value != "" for value in flat]
    values = [value for value in flat if value is not None and value != ""]
    if exact is int and values and (min(values) < _INT64_MIN or max(values) > _INT64_MAX):
        return None
    if exact is str:
        try:
            values = [value.encode() for value in values]
        except UnicodeEncodeError:
            return None
    return values, np.array(present, dtype=np.int32)


def _checked_bags(features: Sequence[Feature], flat: Sequence[Any]) -> tuple[list[Any], npt.NDArray[Any]]:
    values: list[Any] = []
    lengths = np.empty(len(flat), dtype=np.int32)
    for k, value in enumerate(flat):
        bag = _bag(features[k % len(features)], value, k // len(features))
        lengths[k] = len(bag)
        values += bag
    return values, lengths


def _bag(feature: Feature, value: Any, row: int) -> list[Any]:
    """Checks one raw value of a categorical feature and returns what it holds, without missing ones."""
    check = _integer if feature.dtype == "int64" else _text
    if _is_missing(value):
        return []
    if not feature.is_list:
        return [check(feature, value, row, None)]
    if not isinstance(value, (list, tuple)):
        raise RawValueError(
            f"expects a list whose elements are each {_EXPECTED[feature.dtype]}, got {_shown(value)}",
            row=row,
            feature=feature.name,
        )
    return [
        check(feature, element, row, position) for position, element in enumerate(value) if not _is_missing(element)
    ]


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value)


def _number(feature: Feature, value: Any, row: int) -> float:
    if _is_missing(value):
        return math.nan
    if feature.dtype == "int64":
        return float(_integer(feature, value, row, None))
    if isinstance(value, (int, float, np.number)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isinf(number):
            return number
    raise _wrong(feature, value, row, None)


def _integer(feature: Feature, value: Any, row: int, position: int | None) -> int:
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool) and _INT64_MIN <= value <= _INT64_MAX:
        return int(value)
    raise _wrong(feature, value, row, position)


def _text(feature: Feature, value: Any, row: int, position: int | None) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            pass
    raise _wrong(feature, value, row, position)


def _wrong(feature: Feature, value: Any, row: int, position: int | None) -> RawValueError:
    hint = "; give one value, this is no list feature" if isinstance(value, (list, tuple)) else ""
    return RawValueError(
        f"expects {_EXPECTED[feature.dtype]}, got {_shown(value)}{hint}",
        row=row,
        feature=feature.name,
        position=position,
    )


def _shown(value: Any) -> str:
    text = ascii(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"


def _as_objects(values: list[bytes]) -> npt.NDArray[Any]:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
