"""The column of raw logs that says when a row happened, as seconds; no input of a model."""

import pyarrow as pa
import pyarrow.compute as pc

from rankhouse.training.data.columns import ColumnError, decoded, first_wrong, shown, without_empty

# Unix seconds reach this in the year 5138, milliseconds do in 1973: so what is not below it is in another unit.
_LIMIT_SECONDS = 1e11

_EXPECTED = "a time from 1970 on: unix seconds, or ISO 8601 such as 2026-01-31T08:15:00Z"


def event_seconds(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Converts times to unix seconds. Times without a zone are in UTC.

    Args:
        column: Numbers (unix seconds), Arrow timestamps or dates, or texts of either kind; the first text decides.

    Returns:
        float64, null where a row has no time.

    Raises:
        ColumnError: A value is no time.
    """
    column = decoded(column)
    if pa.types.is_large_string(column.type):
        column = column.cast(pa.string())
    if pa.types.is_string(column.type):
        column = without_empty(column)
        kind = _kind_of(column)
        seconds = _cast(column, kind) if pa.types.is_floating(kind) else _since_epoch(_cast(column, kind))
    elif pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        zone = column.type.tz if pa.types.is_timestamp(column.type) else None
        seconds = _since_epoch(_cast(column, pa.timestamp("ns", zone)))
    elif pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_null(column.type):
        seconds = column.cast(pa.float64(), safe=False)
    else:
        raise ColumnError(f"expected {_EXPECTED}, found a column of {column.type}")
    seconds = pc.if_else(pc.is_nan(seconds), None, seconds)
    return _checked(seconds)


def _kind_of(texts: pa.ChunkedArray) -> pa.DataType:
    """What the first text is: a number, or a time with a zone or without."""
    present = pc.drop_null(texts)
    if not len(present):
        return pa.float64()
    first = present.slice(0, 1)
    for kind in (pa.float64(), pa.timestamp("ns", "UTC")):
        try:
            first.cast(kind)
        except pa.ArrowInvalid:
            continue
        return kind
    return pa.timestamp("ns")


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as exc:
        row = first_wrong(column, kind)
        raise ColumnError(
            f"expected {_EXPECTED}, written alike in all rows; found {shown(column[row].as_py())}", row
        ) from exc


def _since_epoch(times: pa.ChunkedArray) -> pa.ChunkedArray:
    microseconds = pc.divide(times.cast(pa.int64()), 1000)
    return pc.divide(microseconds.cast(pa.float64(), safe=False), 1e6)


def _checked(seconds: pa.ChunkedArray) -> pa.ChunkedArray:
    wrong = pc.fill_null(pc.invert(pc.and_(pc.greater_equal(seconds, 0.0), pc.less(seconds, _LIMIT_SECONDS))), False)
    if pc.any(wrong).as_py():
        row = pc.index(wrong, True).as_py()
        found = seconds[row].as_py()
        hint = "; is it in milliseconds? Divide it by 1000" if _LIMIT_SECONDS <= found < 1000 * _LIMIT_SECONDS else ""
        raise ColumnError(f"expected {_EXPECTED}, found {found:.15g} seconds{hint}", row)
    return seconds
