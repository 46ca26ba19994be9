from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from rankhouse.kernels.reference.rows import dequantize_rows, quantize_rows
from rankhouse.training.exchange.wire_codec import Segment, decode, encode, measure, num_saturated, unit_bytes
from rankhouse.training.exchange.wire_format import RELATIVE_ERRORS, WIRE_DTYPES, WireDtype, row_bytes

Piece = tuple[NDArray[np.float32], WireDtype]


def travel(pieces: Sequence[Piece], unit: int | None = None) -> tuple[list[NDArray[np.float32]], int]:
    """Encodes and decodes in a graph, as a training step does; returns each piece's rows, and bytes on the wire."""
    unit = unit or unit_bytes([dtype for _, dtype in pieces] or ["float32"])

    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None], tf.int32)], autograph=False)
    def there_and_back(message: tf.Tensor, counts: tf.Tensor) -> Any:
        segments = [Segment(counts[i], rows.shape[1], dtype) for i, (rows, dtype) in enumerate(pieces)]
        units = encode(message, segments, unit)
        sizes = tf.reduce_sum([segment.num_units(unit) for segment in segments] or [tf.constant(0, tf.int64)])
        return decode(units, segments, unit), tf.size(units, tf.int64) * units.dtype.size, sizes * unit

    message = np.concatenate([np.empty(0, np.float32), *(rows.ravel() for rows, _ in pieces)])
    decoded, num_bytes, expected_bytes = there_and_back(message, np.array([len(rows) for rows, _ in pieces], np.int32))
    assert num_bytes == expected_bytes
    parts = np.split(decoded.numpy(), np.cumsum([rows.size for rows, _ in pieces])[:-1]) if pieces else []
    return [part.reshape(rows.shape) for part, (rows, _) in zip(parts, pieces, strict=True)], int(num_bytes)


def some_rows(num_rows: int, width: int, seed: int = 1) -> NDArray[np.float32]:
    generator = np.random.default_rng(seed)
    scales = 10.0 ** generator.uniform(-3, 3, (num_rows, 1))
    return (generator.normal(size=(num_rows, width)) * scales).astype(np.float32)


@pytest.mark.parametrize("dtype", WIRE_DTYPES)
def test_rows_are_those_that_the_kernels_would_make(dtype: WireDtype) -> None:
    rows = some_rows(300, 12)
    rows[7], rows[8] = 3.0, 0.0
    (found,), num_bytes = travel([(rows, dtype)])
    np.testing.assert_array_equal(found, dequantize_rows(quantize_rows(rows, dtype)))
    assert num_bytes == 300 * row_bytes(dtype, 12)


def test_a_message_holds_rows_of_all_widths_and_formats() -> None:
    pieces: list[Piece] = [
        (some_rows(width + 3 * number, width, seed=number), dtype)
        for number, (width, dtype) in enumerate(
            [(4, "int8"), (4, "int8"), (7, "int8"), (5, "float16"), (3, "float16"), (1, "bfloat16"), (2, "float32")]
        )
    ]
    pieces.insert(3, (np.empty((0, 6), np.float32), "int8"))
    found, num_bytes = travel(pieces)
    for (rows, dtype), returned in zip(pieces, found, strict=True):
        np.testing.assert_array_equal(returned, dequantize_rows(quantize_rows(rows, dtype)), err_msg=dtype)
    assert num_bytes == sum(len(rows) * row_bytes(dtype, rows.shape[1]) for rows, dtype in pieces)


@pytest.mark.parametrize("unit", [1, 2, 4])
def test_a_rank_without_tables_sends_an_empty_message(unit: int) -> None:
    assert travel([], unit) == ([], 0)


def test_float32_keeps_every_bit() -> None:
    rows = np.array([[np.nan, np.inf, -np.inf, -0.0, 1e-45, 3.4e38]], np.float32)
    found, _ = travel([(rows, "float32"), (some_rows(1, 3), "int8")])
    assert found[0].tobytes() == rows.tobytes()


def test_what_float16_cannot_hold_becomes_its_largest_number_and_is_counted() -> None:
    rows = np.array([[65504.0, 65505.0, -1e30, 1.0], [np.inf, -np.inf, np.nan, 70000.0]], np.float32)
    (found,), _ = travel([(rows, "float16")])
    expected = [[65504.0, 65504.0, -65504.0, 1.0], [np.inf, -np.inf, np.nan, 65504.0]]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))
    message = tf.constant(np.concatenate([rows.ravel(), rows.ravel()]))
    segments = [Segment(tf.constant(2), 4, "float16"), Segment(tf.constant(2), 4, "bfloat16")]
    assert int(num_saturated(message, segments)) == 3


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_stays_visible(broken: float) -> None:
    rows = some_rows(5, 6)
    rows[2, 4] = broken
    for dtype in ("bfloat16", "float16"):
        (found,), _ = travel([(rows, dtype)])
        np.testing.assert_array_equal(found[2, 4], np.float32(broken))
        assert np.isfinite(np.delete(found.ravel(), 2 * 6 + 4)).all()
    (found,), _ = travel([(rows, "int8")])
    assert np.isnan(found[2]).all()
    assert np.isfinite(np.delete(found, 2, axis=0)).all()


def test_a_row_too_far_apart_for_int8_is_not_a_number() -> None:
    (found,), _ = travel([(np.array([[-3e38, 3e38], [1.0, 2.0]], np.float32), "int8")])
    assert np.isnan(found).tolist() == [[True, True], [False, False]]


@pytest.mark.parametrize("dtype", WIRE_DTYPES)
def test_the_measured_error_is_that_of_the_rows_and_within_the_stated_bound(dtype: WireDtype) -> None:
    rows = some_rows(200, 8)
    message, segments = tf.constant(rows.ravel()), [Segment(tf.constant(200), 8, dtype)]
    errors = measure(message, segments)
    error = np.abs(dequantize_rows(quantize_rows(rows, dtype)) - rows).max(axis=1)
    relative = float((error / np.abs(rows).max(axis=1)).max())
    assert float(errors.max_error) == float(error.max())
    assert float(errors.max_relative_error) == pytest.approx(relative, rel=1e-6)
    assert relative <= RELATIVE_ERRORS[dtype]
    assert bool(errors.has_values) == (dtype != "float32")


def test_errors_of_a_message_are_the_worst_of_its_rows() -> None:
    """float16 loses small rows, saturates large ones, and int8 cannot hold the last row at all."""
    rows = np.array([[1e-9, 0.0], [2.0, 1.0]], np.float32)
    segments = [Segment(tf.constant(2), 2, "float16"), Segment(tf.constant(1), 2, "int8")]
    errors = measure(tf.constant([*rows.ravel(), 0.0, 0.0]), segments)
    assert (float(errors.max_relative_error), float(errors.max_error)) == (1.0, pytest.approx(1e-9))
    errors = measure(tf.constant([*rows.ravel(), -3e38, 3e38]), segments)
    assert (float(errors.max_relative_error), float(errors.max_error)) == (1.0, pytest.approx(3e38))
    errors = measure(tf.constant([2.0, 1.0, 3.0, 131008.0, 0.0, 0.0]), segments)
    assert float(errors.max_relative_error) == 0.5


@pytest.mark.parametrize("values", [[], [0.0, 0.0], [np.nan, 1.0]])
def test_nothing_is_measured_where_there_is_nothing_to_measure(values: list[float]) -> None:
    errors = measure(tf.constant(values, tf.float32), [Segment(tf.constant(len(values) // 2), 2, "float16")])
    assert (float(errors.max_error), float(errors.max_relative_error), bool(errors.has_values)) == (0.0, 0.0, False)
