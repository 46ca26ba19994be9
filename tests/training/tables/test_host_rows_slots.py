"""Who stays in a cache and who makes way, against a model that remembers when each row was last asked for."""

import numpy as np
import pytest

from rankhouse.training.errors import HostRowsError
from rankhouse.training.tables.host_rows_slots import SlotMap

NUM_ROWS, NUM_SLOTS = 500, 64


def test_the_rows_that_were_used_longest_ago_make_way() -> None:
    generator = np.random.default_rng(0)
    slots, used = SlotMap("t", NUM_ROWS, NUM_SLOTS), dict[int, int]()
    for call in range(600):
        rows = generator.zipf(1.3, generator.integers(0, 60)).clip(max=NUM_ROWS) - 1
        wanted, there = set(rows.tolist()), set(used)
        moves = slots.bring(rows, epoch=call, keep=bool(call % 3))
        assert set(moves.coming.tolist()) == wanted - there
        left = moves.leaving[moves.leaving >= 0].tolist()
        oldest = sorted(used[row] for row in there - wanted)
        num_leaving = max(0, len(wanted | there) - NUM_SLOTS)
        assert sorted(used[row] for row in left) == oldest[:num_leaving]
        used = {row: last for row, last in used.items() if row not in left} | dict.fromkeys(wanted, call)
        assert np.array_equal(slots.rows_in(slots.slots_of(rows)), rows)


def test_only_rows_that_were_updated_are_written_back() -> None:
    slots = SlotMap("t", 10, 2)
    slots.bring(np.array([0, 1]), epoch=0, keep=True)
    slots.note_update(slots.slots_of(np.array([1])).astype(np.int64), epoch=0)
    moves = slots.bring(np.array([2, 3]), epoch=1, keep=False)
    assert dict(zip(moves.leaving.tolist(), moves.changed.tolist(), strict=True)) == {0: False, 1: True}
    moves = slots.bring(np.array([4, 5]), epoch=1, keep=False)
    assert dict(zip(moves.leaving.tolist(), moves.changed.tolist(), strict=True)) == {2: False, 3: False}


def test_rows_that_wait_for_an_update_stay() -> None:
    slots = SlotMap("t", 10, 3)
    slots.bring(np.array([0, 1]), epoch=0, keep=True)
    for row in (2, 3, 4):
        assert slots.bring(np.array([row]), epoch=0, keep=False).leaving.tolist() in ([-1], [row - 1])
    slots.note_update(slots.slots_of(np.array([0, 1])).astype(np.int64), epoch=0)
    expected = r"needs 4 different rows of table t at once \(2 wait .* cache_rows are 3; set cache_rows to 4 or more"
    with pytest.raises(HostRowsError, match=expected):
        slots.bring(np.array([5, 6, 5]), epoch=0, keep=True)
    assert slots.slots_of(np.array([0, 1, 4])).min() >= 0
    assert len(slots.bring(np.array([5, 6, 5]), epoch=1, keep=True).coming) == 2


def test_rows_that_did_not_stay_are_not_updated() -> None:
    slots = SlotMap("t", 10, 3)
    slots.bring(np.array([0, 1]), epoch=0, keep=False)
    with pytest.raises(HostRowsError, match=r"1 of 1 rows of table t .* training=True"):
        slots.note_update(slots.slots_of(np.array([1])).astype(np.int64), epoch=0)


def test_a_batch_that_fills_the_cache_fits_and_one_more_row_does_not() -> None:
    slots = SlotMap("t", NUM_ROWS, NUM_SLOTS)
    for first in (0, 100, 30):
        slots.bring(np.arange(first, first + NUM_SLOTS), epoch=first, keep=True)
    with pytest.raises(HostRowsError, match="needs 65 different rows of table t at once, but its cache_rows are 64"):
        slots.bring(np.arange(NUM_SLOTS + 1), epoch=7, keep=True)
