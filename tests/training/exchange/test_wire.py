import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from rankhouse.kernels.reference.rows import dequantize_rows, quantize_rows
from rankhouse.training.exchange.wire import RowExchange, Rows, int32_splits
from rankhouse.training.exchange.wire_format import WireDtype, WireFormat, row_bytes
from rankhouse.training.ranks import Ranks
from tests.training.launching import run_on_ranks

# What rank r sends to rank s: rows of width 3, then rows of width 5. Rank 1 sends itself nothing.
COUNTS = [[(4, 2), (3, 1)], [(5, 0), (0, 0)]]
WIDTHS = (3, 5)
# Forward and backward.
FORMATS: list[tuple[WireDtype, WireDtype]] = [
    ("float32", "float32"),
    ("bfloat16", "int8"),
    ("float16", "bfloat16"),
    ("int8", "float16"),
]


def part(rank: int, to: int, *, scale: float = 1.0) -> list[NDArray[np.float32]]:
    generator = np.random.default_rng([rank, to])
    return [
        (generator.normal(size=(count, width)) * scale).astype(np.float32)
        for count, width in zip(COUNTS[rank][to], WIDTHS, strict=True)
    ]


def message(rank: int, *, scale: float = 1.0) -> tf.Tensor:
    return tf.constant(flat([rows for to in range(2) for rows in part(rank, to, scale=scale)]))


def flat(pieces: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.concatenate([piece.ravel() for piece in pieces])


def layout(counts: list[tuple[int, int]], *formats: WireFormat) -> list[list[Rows]]:
    return [
        [Rows(tf.constant(count), width, wire) for count, width, wire in zip(pair, WIDTHS, formats, strict=True)]
        for pair in counts
    ]


def make_step(ranks: Ranks, name: str, wire: WireFormat, other: WireFormat | None = None) -> Any:
    """Returns a function of a message and of what the received rows' gradients are."""
    formats = (wire, other or wire)
    exchange = RowExchange(ranks, formats, name=name)
    send = [COUNTS[ranks.rank][to] for to in range(2)]
    receive = [COUNTS[source][ranks.rank] for source in range(2)]

    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None])], autograph=False)
    def step(message: tf.Tensor, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch(message)
            received = exchange(message, layout(send, *formats), layout(receive, *formats))
        return received, tape.gradient(received, message, output_gradients=upstream)

    return lambda values, upstream: [each.numpy().tolist() for each in step(values, upstream)]


def exchange_everything(ranks: Ranks, directory: Path) -> dict[str, Any]:
    """Runs on each of two ranks."""
    rank, traffic = ranks.rank, ranks.traffic
    received = flat([rows for source in range(2) for rows in part(source, rank)])
    values, upstream = message(rank), tf.constant(received * 2)
    formats = {
        forward: make_step(ranks, forward, WireFormat(forward=forward, backward=backward, gradient_scale=1024.0))(
            values, upstream
        )
        for forward, backward in FORMATS
    }
    mixed = make_step(ranks, "mixed", WireFormat(forward="int8"), WireFormat(forward="bfloat16"))(values, upstream)
    half = WireFormat(forward="float16", backward="float16", measure_every=2)
    later = make_step(ranks, "later", half)
    return {
        "formats": formats,
        "mixed": mixed,
        "small": make_step(ranks, "small", half)(message(rank, scale=[1.0, 1e-9][rank]), upstream),
        "zeros": later(0 * values, 0 * upstream),
        "after zeros": later(values, upstream * np.nan if rank == 0 else upstream),
        "too large": later(values * 1e6, upstream),
        "bytes": {name: [each.sent, each.received] for name, each in traffic.read().items()},
        "roundings": {
            name: [each.max_error, each.max_relative_error, each.num_saturated]
            for name, each in traffic.roundings().items()
        },
        "choices": traffic.choices,
    }


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    return run_on_ranks(exchange_everything, tmp_path_factory.mktemp("wire"), num_ranks=2)


def rounded(pieces: list[NDArray[np.float32]], dtype: str, scale: float = 1.0) -> NDArray[np.float32]:
    return flat(
        [dequantize_rows(quantize_rows(rows * np.float32(scale), dtype)) / np.float32(scale) for rows in pieces]
    )


@pytest.mark.horovod
@pytest.mark.parametrize(("forward", "backward"), FORMATS)
def test_rows_and_gradients_travel_in_their_formats_own_ones_too(
    answers: list[Any], forward: str, backward: str
) -> None:
    """To the bit; and float32 is what was sent."""
    for rank, answer in enumerate(answers):
        received, gradient = answer["formats"][forward]
        expected = [rows for source in range(2) for rows in part(source, rank)]
        np.testing.assert_array_equal(np.float32(received), rounded(expected, forward))
        own = [2 * rows for to in range(2) for rows in part(rank, to)]
        np.testing.assert_array_equal(np.float32(gradient), rounded(own, backward, scale=1024.0))


@pytest.mark.horovod
def test_rows_of_one_message_may_travel_in_several_formats(answers: list[Any]) -> None:
    mixed = ("int8", "bfloat16")
    for rank, answer in enumerate(answers):
        pieces = [part(source, rank) for source in range(2)]
        expected = [rounded([rows], dtype) for pair in pieces for rows, dtype in zip(pair, mixed, strict=True)]
        np.testing.assert_array_equal(np.float32(answer["mixed"][0]), np.concatenate(expected))


@pytest.mark.horovod
@pytest.mark.parametrize(("forward", "backward"), FORMATS)
def test_every_byte_is_counted_and_own_rows_are_none(answers: list[Any], forward: Any, backward: Any) -> None:
    def num_bytes(source: int, to: int, dtype: Any) -> int:
        counts = zip(COUNTS[source][to], WIDTHS, strict=True)
        return sum(count * row_bytes(dtype, width) for count, width in counts)

    for rank, answer in enumerate(answers):
        other = 1 - rank
        assert answer["bytes"][forward] == [num_bytes(rank, other, forward), num_bytes(other, rank, forward)]
        assert answer["bytes"][f"{forward}_gradient"] == [
            num_bytes(other, rank, backward),
            num_bytes(rank, other, backward),
        ]


@pytest.mark.horovod
def test_all_ranks_send_float32_where_rounding_is_too_much_for_one(answers: list[Any]) -> None:
    """Rank 1's rows are too small for float16."""
    for rank, answer in enumerate(answers):
        expected = [rows for source in range(2) for rows in part(source, rank, scale=[1.0, 1e-9][source])]
        np.testing.assert_array_equal(np.float32(answer["small"][0]), flat(expected))
        assert answer["choices"]["small"].startswith("rows travel as float32 and not as float16: rounding moves an ")
        assert "on rank 1, but max_relative_error is 1.00%" in answer["choices"]["small"]
        assert answer["choices"]["small_gradient"].startswith("gradients travel as float16: rounding moves an ")
    assert answers[0]["roundings"]["small"][1] < 0.001
    assert answers[1]["roundings"]["small"][1] == 1.0


@pytest.mark.horovod
def test_nothing_is_decided_on_zeros_and_what_is_no_number_stays_visible(answers: list[Any]) -> None:
    """Rank 0's gradients of all rows that it has received are NaN, in the first exchange with anything but zeros."""
    for rank, answer in enumerate(answers):
        assert not any(np.any(values) for values in answer["zeros"])
        own = [2 * rows for to in range(2) for rows in part(rank, to)]
        expected = rounded(own, "float16")
        expected[: sum(rows.size for rows in part(rank, 0))] = np.nan
        np.testing.assert_array_equal(np.float32(answer["after zeros"][1]), expected)
        assert answer["choices"]["later_gradient"].startswith("gradients travel as float16")


@pytest.mark.horovod
def test_what_float16_cannot_hold_saturates_and_is_counted(answers: list[Any]) -> None:
    """That exchange is measured as well: it is the third, and every other one is."""
    for rank, answer in enumerate(answers):
        pieces = [rows * np.float32(1e6) for source in range(2) for rows in part(source, rank)]
        np.testing.assert_array_equal(
            np.float32(answer["too large"][0]), rounded([np.clip(rows, -65504, 65504) for rows in pieces], "float16")
        )
        own = flat([rows * np.float32(1e6) for to in range(2) for rows in part(rank, to)])
        max_error, max_relative_error, num_saturated = answer["roundings"]["later"]
        assert num_saturated == (np.abs(own) > 65504).sum() > 0
        assert max_error == pytest.approx(np.abs(own).max() - 65504)
        assert 0.5 < max_relative_error < 1


def test_more_elements_than_an_exchange_can_count_are_refused() -> None:
    half = tf.constant(2**30, tf.int64)
    assert int32_splits([half, half - 1], name="x").numpy().tolist() == [2**30, 2**30 - 1]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"x: a rank sends 2\*\*31 or more .* smaller batches"):
        int32_splits([half, half], name="x")


def test_one_rank_rounds_and_measures_nothing(caplog: pytest.LogCaptureFixture) -> None:
    ranks, wire = Ranks(0, 1), WireFormat(forward="int8", backward="int8")
    rows = [[Rows(tf.constant(2), 2, wire)]]
    values = tf.constant([1.0, np.nan, 3.0, 1e30])
    with caplog.at_level(logging.INFO):
        assert RowExchange(ranks, [wire], name="alone")(values, rows, rows) is values
    assert (ranks.traffic.read(), ranks.traffic.roundings(), caplog.records) == ({}, {}, [])
