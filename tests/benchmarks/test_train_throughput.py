"""The samples of the benchmark of training steps, which every candidate draws by itself, and its figures."""

from argparse import Namespace

import numpy as np
import pytest

from benchmarks.support.dlrm.shapes import NUM_BATCHES, SHAPES, TABLE_ROWS, draw_batches
from benchmarks.train_throughput import CANDIDATES, DEFAULT_CANDIDATES, sheet


def test_ranks_draw_parts_of_one_batch() -> None:
    whole = draw_batches(64, rank=0, num_ranks=1)
    parts = [draw_batches(64, rank=rank, num_ranks=2) for rank in range(2)]
    assert len(whole) == NUM_BATCHES
    for number, batch in enumerate(whole):
        first, second = (part[number] for part in parts)
        assert first.ids.shape == (26, 32)
        np.testing.assert_array_equal(batch.ids[:, ::2], first.ids)
        np.testing.assert_array_equal(batch.dense[1::2], second.dense)
        np.testing.assert_array_equal(batch.labels[1::2], second.labels)


def test_ids_are_rows_of_their_tables() -> None:
    ids = draw_batches(4096, rank=0, num_ranks=1)[0].ids
    assert ids.min() >= 0
    assert (ids.max(axis=1) < np.array(TABLE_ROWS)).all()
    assert sum(TABLE_ROWS) == 5_569_296


def test_a_ratio_is_to_the_peer_on_as_many_ranks_in_the_same_turn() -> None:
    assert all(CANDIDATES[candidate.peer].num_ranks == candidate.num_ranks for candidate in CANDIDATES.values())
    assert set(DEFAULT_CANDIDATES) <= set(CANDIDATES)
    options = Namespace(candidates=["keras", "rankhouse"], batch_sizes=[8])
    figures = {("dim16", 8, "keras"): [1.0, 2.0, 9.0], ("dim16", 8, "rankhouse"): [0.5, 2.0, 3.0]}
    lines = sheet(figures, "dim16", options).lines
    assert lines == [["plain Keras", "1", "2000.0", "1.00x"], ["Rankhouse", "1", "2000.0", "2.00x"]]


def test_a_turn_times_enough_steps_of_any_batch() -> None:
    for shape in SHAPES.values():
        assert [shape.num_steps(size) for size in (1, 10**9)] == [30, 4]


def test_a_candidate_without_figures_is_refused() -> None:
    with pytest.raises(KeyError, match="rankhouse"):
        sheet({}, "dim16", Namespace(candidates=["rankhouse"], batch_sizes=[8]))
