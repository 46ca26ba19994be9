"""Columns of raw logs, checked and converted to the types of a feature spec."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rankhouse.training.data.feature_spec import AnyFeature

LIST_SEPARATOR = "|"

_TYPES = {"int64": pa.int64(), "float64": pa.float64(), "text": pa.string()}
_EXPECTED = {"int64": "a 64-bit integer", "float64": "a finite number", "text": "a text"}


class ColumnError(Exception):
    """A column cannot be converted; the reader adds file, row and column and raises the package's own error.

    Args:
        message: What was expected and what was found.
        row: Where, counted in the column from 0; None where the whole column is meant.
    """

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


def converted(column: pa.ChunkedArray, feature: AnyFeature) -> pa.ChunkedArray:
    """Converts a feature's column.

    Args:
        column: Texts as in a delimited file, or the types of a Parquet file.
        feature: The feature, which says what the type must be.

    Returns:
        The column as int64, float64 or string with nulls, or as lists of these without.

    Raises:
        ColumnError: A value is of the wrong type.
    """
    if feature.is_list:
        return _converted_lists(column, feature)
    if _is_list(column.type):
        raise ColumnError(f"holds lists ({column.type}); say `list: true` in the feature spec")
    return without_empty(_cast(column, feature.dtype))


def label_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Converts the labels to float32.

    Raises:
        ColumnError: A label is missing or neither 0 nor 1.
    """
    numbers = _cast(column, "float64")
    right = pc.fill_null(pc.or_(pc.equal(numbers, 0.0), pc.equal(numbers, 1.0)), False)
    if not pc.all(right).as_py():
        row = pc.index(right, False).as_py()
        value = column[row].as_py()
        raise ColumnError(f"a label is 0 or 1, found {'nothing' if value is None else repr(value)}", row)
    return numbers.cast(pa.float32())


def _converted_lists(column: pa.ChunkedArray, feature: AnyFeature) -> pa.ChunkedArray:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = pc.split_pattern(column, LIST_SEPARATOR)
    elif not _is_list(column.type):
        raise ColumnError(f"expected lists, found {column.type}; leave `list: true` out of the feature spec")
    # From here on one contiguous array: the work is on flat values and offsets.
    lists = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    row_of = np.repeat(np.arange(len(lists)), lengths)
    try:
        values = without_empty(_cast(pa.chunked_array([pc.list_flatten(lists)]), feature.dtype))
    except ColumnError as exc:
        raise ColumnError(str(exc), None if exc.row is None else int(row_of[exc.row])) from exc
    present = pc.is_valid(values).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row_of[present], minlength=len(lists)))])
    kept = pc.drop_null(values).combine_chunks()
    return pa.chunked_array([pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), kept)])


def _cast(column: pa.ChunkedArray, dtype: str) -> pa.ChunkedArray:
    """Casts a column, refusing whatever would change a value."""
    column = decoded(column)
    if not _is_castable(column.type, dtype):
        raise ColumnError(f"expected {_EXPECTED[dtype]} in each row, found a column of {column.type}")
    if pa.types.is_floating(column.type):
        # Tables that went through pandas have NaN for what is missing.
        column = pc.if_else(pc.is_nan(column), None, column)
    try:
        values = column.cast(_TYPES[dtype])
    except pa.ArrowInvalid as exc:
        row = first_wrong(column, _TYPES[dtype])
        raise ColumnError(f"expected {_EXPECTED[dtype]}, found {shown(column[row].as_py())}", row) from exc
    if dtype == "float64":
        infinite = pc.is_inf(values)
        if pc.any(infinite).as_py():
            row = pc.index(infinite, True).as_py()
            raise ColumnError(f"expected {_EXPECTED[dtype]}, found {shown(column[row].as_py())}", row)
        values = pc.if_else(pc.is_nan(values), None, values)
    return values


def _is_castable(kind: pa.DataType, dtype: str) -> bool:
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if dtype == "text":
        return bool(text or pa.types.is_null(kind))
    # Arrow casts no half precision, and knows no NaN in it.
    floats = pa.types.is_floating(kind) and not pa.types.is_float16(kind)
    number = pa.types.is_integer(kind) or floats or pa.types.is_boolean(kind)
    return bool(text or number or pa.types.is_null(kind))


def decoded(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values themselves of a column that is written as a dictionary."""
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def first_wrong(column: pa.ChunkedArray, kind: pa.DataType) -> int:
    """Finds the first value that cannot be cast, by halving."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            column.slice(low, middle - low).cast(kind)
            low = middle
        except pa.ArrowInvalid:
            high = middle
    return low


def without_empty(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """An empty text is a missing value."""
    return pc.if_else(pc.equal(column, ""), None, column) if pa.types.is_string(column.type) else column


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def shown(value: Any) -> str:
    """A value as a message shows it, cut where it is long."""
    if isinstance(value, float) and math.isinf(value):
        return "an infinite one"
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
