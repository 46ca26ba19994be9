"""Rows as they lie on the wire: float32 into narrower formats and back, as TensorFlow operations.

A message is one flat tensor, however many tables its rows are of and however wide they are: `Segment`s say what lies
in it, one after the other. On the wire it is made of units of 1, 2 or 4 bytes, the narrowest that one of its formats
needs, as an exchange has one dtype and counts in its elements.

float16 and bfloat16 round to the nearest, ties to even. A finite number beyond float16's range becomes its largest
number. int8 is that of `rankhouse.kernels.rows`. What is not finite stays visible: in float16 and bfloat16 as it is, in
int8 its whole row becomes NaN.

Shapes: N rows, D their width, T elements of a message, U units.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import tensorflow as tf

from rankhouse.training.exchange.wire_format import WireDtype, row_bytes

# Bits travel, not values, so it matters to nobody what Horovod can calculate with.
_UNITS = {1: tf.uint8, 2: tf.float16, 4: tf.float32}
_DTYPES: dict[WireDtype, tf.DType] = {
    "float32": tf.float32,
    "bfloat16": tf.bfloat16,
    "float16": tf.float16,
    "int8": tf.uint8,
}

_LARGEST_FLOAT16 = 65504.0


@dataclass(frozen=True)
class Segment:
    """Rows of one width and format that lie one after the other in a message.

    Attributes:
        num_rows: int32 or int64 [].
        width: Elements of a row, known when the graph is built.
        dtype: How they travel.
    """

    num_rows: tf.Tensor
    width: int
    dtype: WireDtype = "float32"

    @property
    def num_elements(self) -> tf.Tensor:
        """Elements of the rows, int64 []."""
        return tf.cast(self.num_rows, tf.int64) * self.width

    def num_units(self, unit: int) -> tf.Tensor:
        """Units of so many bytes each that the rows take on the wire, int64 []."""
        return tf.cast(self.num_rows, tf.int64) * (row_bytes(self.dtype, self.width) // unit)


@dataclass(frozen=True)
class RoundingErrors:
    """By how much a message's formats round it. All are tensors []. A row that a format cannot hold is lost wholly.

    Attributes:
        max_error: The largest absolute error of a finite element, float32.
        max_relative_error: The largest error of an element relative to the largest of its row, float32.
        has_values: Whether any finite row is not all zeros: else nothing was measured.
    """

    max_error: tf.Tensor
    max_relative_error: tf.Tensor
    has_values: tf.Tensor


def unit_bytes(dtypes: Sequence[WireDtype]) -> int:
    """Returns the bytes of the units that a message of these formats is made of."""
    return min(int(_DTYPES[dtype].size) for dtype in dtypes)


def encode(message_T: tf.Tensor, segments: Sequence[Segment], unit: int) -> tf.Tensor:
    """Puts a message into its formats.

    Args:
        message_T: float32 [T], the segments' rows one after the other.
        segments: What lies in it.
        unit: Bytes of a unit: at most `unit_bytes` of their formats.

    Returns:
        [U], the sum of the segments' `num_units`, of a dtype of so many bytes.
    """
    runs = _merged(segments)
    pieces = _split(message_T, [run.num_elements for run in runs])
    encoded = [
        tf.reshape(tf.bitcast(_encode_rows(tf.reshape(piece, [-1, run.width]), run.dtype), _UNITS[unit]), [-1])
        for piece, run in zip(pieces, runs, strict=True)
    ]
    return tf.concat(encoded, axis=0) if encoded else tf.zeros([0], _UNITS[unit])


def decode(units_U: tf.Tensor, segments: Sequence[Segment], unit: int) -> tf.Tensor:
    """Returns the message, float32 [T], that `encode` put into these units."""
    runs = _merged(segments)
    pieces = _split(units_U, [run.num_units(unit) for run in runs])
    decoded = []
    for piece, run in zip(pieces, runs, strict=True):
        dtype = _DTYPES[run.dtype]
        elements = tf.bitcast(piece if dtype.size == unit else tf.reshape(piece, [-1, dtype.size // unit]), dtype)
        rows = tf.reshape(elements, [-1, row_bytes(run.dtype, run.width) // dtype.size])
        decoded.append(tf.reshape(_decode_rows(rows, run.dtype), [-1]))
    return tf.concat(decoded, axis=0) if decoded else tf.zeros([0])


def measure(message_T: tf.Tensor, segments: Sequence[Segment]) -> RoundingErrors:
    """Returns by how much the formats round a message. Rows that are not finite are left out: nothing hides them."""
    runs = _merged(segments, by_width=True)
    zero, found = tf.constant(0.0), [(tf.constant(0.0), tf.constant(0.0), tf.constant(False))]
    for piece, run in zip(_split(message_T, [run.num_elements for run in runs]), runs, strict=True):
        if run.dtype == "float32":
            continue
        rows = tf.reshape(piece, [-1, run.width])
        largest = tf.reduce_max(tf.abs(rows), axis=1)
        measured = tf.logical_and(tf.reduce_all(tf.math.is_finite(rows), axis=1), largest > 0)
        errors = tf.abs(_decode_rows(_encode_rows(rows, run.dtype), run.dtype) - rows)
        errors = tf.reduce_max(tf.where(tf.math.is_finite(errors), errors, tf.abs(rows)), axis=1)
        errors, largest = tf.boolean_mask(errors, measured), tf.boolean_mask(largest, measured)
        # The least number is for an empty message, whose maximum it is.
        found.append(
            (
                tf.maximum(tf.reduce_max(errors), zero),
                tf.maximum(tf.reduce_max(errors / largest), zero),
                tf.reduce_any(measured),
            )
        )
    errors, relative_errors, has_values = (tf.stack(each) for each in zip(*found, strict=True))
    return RoundingErrors(tf.reduce_max(errors), tf.reduce_max(relative_errors), tf.reduce_any(has_values))


def num_saturated(message_T: tf.Tensor, segments: Sequence[Segment]) -> tf.Tensor:
    """Returns how many finite elements are beyond the range of their format float16, int64 []."""
    runs = _merged(segments)
    counts = [tf.constant(0, tf.int64)]
    for piece, run in zip(_split(message_T, [run.num_elements for run in runs]), runs, strict=True):
        if run.dtype == "float16":
            beyond = tf.logical_and(tf.abs(piece) > _LARGEST_FLOAT16, tf.math.is_finite(piece))
            counts.append(tf.math.count_nonzero(beyond))
    return tf.add_n(counts)


def _merged(segments: Sequence[Segment], *, by_width: bool = False) -> list[Segment]:
    """Puts neighbours together that are encoded alike: widths matter to int8 alone, unless rows are asked for."""

    def key(segment: Segment) -> tuple[WireDtype, int]:
        return segment.dtype, segment.width if by_width or segment.dtype == "int8" else 1

    runs = []
    for (dtype, width), alike in groupby(segments, key):
        num_elements = tf.add_n([segment.num_elements for segment in alike])
        runs.append(Segment(num_elements // width, width, dtype))
    return runs


def _split(values: tf.Tensor, sizes: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    if len(sizes) <= 1:
        return [values] * len(sizes)
    return list(tf.split(values, tf.stack(sizes)))


def _encode_rows(rows_ND: tf.Tensor, dtype: WireDtype) -> tf.Tensor:
    if dtype == "int8":
        return _quantize(rows_ND)
    if dtype == "float16":
        bounded = tf.clip_by_value(rows_ND, -_LARGEST_FLOAT16, _LARGEST_FLOAT16)
        rows_ND = tf.where(tf.math.is_finite(rows_ND), bounded, rows_ND)
    return tf.cast(rows_ND, _DTYPES[dtype])


def _decode_rows(encoded: tf.Tensor, dtype: WireDtype) -> tf.Tensor:
    return _dequantize(encoded) if dtype == "int8" else tf.cast(encoded, tf.float32)


def _quantize(rows_ND: tf.Tensor) -> tf.Tensor:
    """Returns uint8 [N, D + 8] as `rankhouse.kernels.rows.quantize_rows` does; a row it would refuse becomes NaN."""
    least = tf.reduce_min(rows_ND, axis=1, keepdims=True)
    difference = tf.reduce_max(rows_ND, axis=1, keepdims=True) - least
    # Not difference / 255: TensorFlow would turn that into a product, and round otherwise.
    scale = tf.math.xdivy(difference, tf.fill(tf.shape(difference), 255.0))
    quantized = tf.round((rows_ND - least) * (255.0 / (difference + 1e-8)))
    finite = tf.logical_and(
        tf.reduce_all(tf.math.is_finite(rows_ND), axis=1, keepdims=True), tf.math.is_finite(difference)
    )
    quantized = tf.cast(tf.where(finite, quantized, 0.0), tf.uint8)
    parameters = tf.concat([tf.where(finite, scale, 0.0), tf.where(finite, least, float("nan"))], axis=1)
    return tf.concat([quantized, tf.reshape(tf.bitcast(parameters, tf.uint8), [-1, 8])], axis=1)


def _dequantize(quantized: tf.Tensor) -> tf.Tensor:
    parameters = tf.bitcast(tf.reshape(quantized[:, -8:], [-1, 2, 4]), tf.float32)
    return tf.cast(quantized[:, :-8], tf.float32) * parameters[:, :1] + parameters[:, 1:]
