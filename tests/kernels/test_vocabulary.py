import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from numpy.typing import NDArray

from rankhouse.kernels.errors import ArgumentError
from rankhouse.kernels.reference.vocabulary import ReferenceVocabulary
from rankhouse.kernels.vocabulary import Entries, Vocabulary, VocabularyOptions

LOWEST, HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max

# Few values, so that keys meet again; the borders of the range; and any.
KEYS = st.sampled_from([LOWEST, LOWEST + 1, -1, HIGHEST]) | st.integers(0, 12) | st.integers(LOWEST, HIGHEST)
COUNTS = st.integers(0, 4) | st.sampled_from([HIGHEST, HIGHEST - 1])


def int64s(values: Any) -> NDArray[np.int64]:
    return np.array(list(values), np.int64)


class VocabularyMachine(RuleBasedStateMachine):
    """Random operations on the library's vocabulary and on the reference, which must agree in all that can be seen."""

    @initialize(
        max_keys=st.integers(1, 6),
        first_id=st.sampled_from([0, 1, -3, LOWEST, HIGHEST - 5]),
        min_count=st.integers(0, 4),
        max_candidates=st.integers(0, 5),
        eviction=st.sampled_from(["never", "oldest", "rarest"]),
    )
    def create(self, **options: Any) -> None:
        options["unknown_id"] = -9
        self.options = VocabularyOptions(**options)
        self.ours = Vocabulary(self.options)
        self.truth = ReferenceVocabulary(**options)
        self.step = -5

    @rule(
        seen=st.lists(st.tuples(KEYS, COUNTS), max_size=12),
        with_counts=st.booleans(),
        forward=st.integers(0, 2),
        shuffled=st.randoms(use_true_random=False),
    )
    def observe(self, seen: list[tuple[int, int]], with_counts: bool, forward: int, shuffled: Any) -> None:
        self.step += forward
        keys, counts = [key for key, _ in seen], [count for _, count in seen]
        expected = self.truth.observe(keys, counts if with_counts else None, self.step)
        shuffled.shuffle(seen)
        keys, counts = [key for key, _ in seen], [count for _, count in seen]
        evicted = self.ours.observe(int64s(keys), int64s(counts) if with_counts else None, step=self.step)
        assert list(zip(*map(np.ndarray.tolist, evicted), strict=True)) == expected

    @rule(age=st.integers(-1, 4), min_count=st.integers(0, 5))
    def evict(self, age: int, min_count: int) -> None:
        expected = self.truth.evict(min_step=self.step - age, min_count=min_count)
        evicted = self.ours.evict(min_step=self.step - age, min_count=min_count)
        assert list(zip(*map(np.ndarray.tolist, evicted), strict=True)) == expected

    @rule(keys=st.lists(KEYS, max_size=12))
    def look_up(self, keys: list[int]) -> None:
        assert self.ours.lookup(int64s(keys)).tolist() == self.truth.lookup(keys)

    @rule()
    def save_and_restore(self) -> None:
        entries = self.ours.export()
        self.ours.close()
        self.ours = Vocabulary(self.options)
        self.ours.restore(entries)

    @rule()
    def refuse(self) -> None:
        with pytest.raises(ArgumentError, match="expected >= 0"):
            self.ours.observe(int64s([1, 2]), int64s([1, -1]), step=self.step)
        with pytest.raises(ArgumentError, match="expected keys that increase"):
            self.ours.restore(Entries(int64s([3, 2]), int64s([-9, -9]), int64s([1, 1]), int64s([0, 0])))

    @invariant()
    def both_know_the_same(self) -> None:
        if hasattr(self, "ours"):
            assert list(zip(*(array.tolist() for array in self.ours.export()), strict=True)) == self.truth.export()
            assert len(self.ours) == len(self.truth)
            assert self.ours.num_entries == len(self.truth.entries)

    def teardown(self) -> None:
        if hasattr(self, "ours"):
            self.ours.close()


VocabularyMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestVocabulary = VocabularyMachine.TestCase


def skewed_keys(seed: int, num_keys: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    keys: NDArray[np.int64] = (rng.pareto(0.7, num_keys) * 3).clip(max=1e15).astype(np.int64)
    return keys * 2_654_435_761 - 10**12


@pytest.mark.parametrize("eviction", ["never", "oldest", "rarest"])
def test_ids_do_not_depend_on_order_or_ranks(eviction: str) -> None:
    options = VocabularyOptions(max_keys=300, min_count=2, max_candidates=200, eviction=eviction)
    vocabularies = [Vocabulary(options) for _ in range(4)]
    truth = ReferenceVocabulary(max_keys=300, min_count=2, max_candidates=200, eviction=eviction)
    for step in range(12):
        keys = skewed_keys(step, 600)
        truth.observe(keys.tolist(), None, step)
        for num_ranks, ours in enumerate(vocabularies, start=1):
            shuffled = np.random.default_rng(num_ranks).permutation(keys)
            parts = [np.unique(part, return_counts=True) for part in np.array_split(shuffled, num_ranks)]
            ours.observe(np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]), step=step)
    for ours in vocabularies:
        assert list(zip(*(array.tolist() for array in ours.export()), strict=True)) == truth.export()


@pytest.mark.parametrize("max_keys", [2**40, 2**61])
def test_it_grows_over_the_whole_range(max_keys: int) -> None:
    rng = np.random.default_rng(3)
    expected: dict[int, int] = {}
    with Vocabulary(VocabularyOptions(max_keys=max_keys, first_id=1, unknown_id=0)) as ours:
        for step in range(8):
            keys: NDArray[np.int64] = rng.integers(LOWEST, HIGHEST, 20_000, endpoint=True)
            assert len(ours.observe(keys, step=step).keys) == 0
            for key in np.unique(keys).tolist():
                expected.setdefault(key, len(expected) + 1)
        keys = int64s(expected)
        np.testing.assert_array_equal(ours.lookup(keys), int64s(expected.values()))
        assert not ours.lookup(np.setdiff1d(keys + 1, keys)).any()
        assert len(ours) == len(expected)


@pytest.mark.parametrize("eviction", ["oldest", "rarest"])
def test_a_full_vocabulary_goes_on_for_long(eviction: str) -> None:
    """More steps and keys than the state machine has: the order is rebuilt and cleaned many times."""
    options = {"max_keys": 40, "min_count": 2, "max_candidates": 30, "eviction": eviction}
    ours, truth = Vocabulary(VocabularyOptions(**options)), ReferenceVocabulary(**options)  # type: ignore[arg-type]
    rng = np.random.default_rng(4)
    for step in range(600):
        keys: NDArray[np.int64] = rng.integers(0, 200, 40) + step // 3
        evicted = ours.observe(keys, step=step)
        assert list(zip(*map(np.ndarray.tolist, evicted), strict=True)) == truth.observe(keys.tolist(), None, step)
    assert list(zip(*(array.tolist() for array in ours.export()), strict=True)) == truth.export()


def test_threads_look_up_at_the_same_time() -> None:
    keys = skewed_keys(0, 30_000)
    with Vocabulary(VocabularyOptions(max_keys=100_000)) as ours:
        ours.observe(keys, step=0)
        expected = ours.lookup(keys)
        wrong = []

        def look_up() -> None:
            wrong.extend(n for n in range(20) if not np.array_equal(ours.lookup(keys, num_threads=2), expected))

        threads = [threading.Thread(target=look_up) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
    assert np.unique(expected).tolist() == list(range(len(np.unique(keys))))


def test_a_step_may_not_go_back() -> None:
    with Vocabulary(VocabularyOptions(max_keys=2)) as ours:
        ours.observe(int64s([5]), step=3)
        with pytest.raises(ArgumentError, match="step is 2, but step 3 was before"):
            ours.observe(int64s([6]), step=2)
        assert ours.lookup(int64s([5, 6])).tolist() == [0, -1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_keys": 0}, "max_keys is 0: expected 1 to 2.61"),
        ({"max_keys": 2**62}, "expected 1 to 2.61"),
        ({"max_keys": 5, "unknown_id": 4}, "unknown_id is 4, an id that a key may get"),
        ({"max_keys": 5, "first_id": HIGHEST}, "give ids beyond int64"),
        ({"max_keys": 5, "min_count": -1}, "min_count is -1"),
        ({"max_keys": 5, "max_candidates": -1}, "max_candidates is -1"),
        ({"max_keys": 2**63}, "max_keys is 9223372036854775808: expected an int64"),
        ({"max_keys": 5, "eviction": "lru"}, "eviction is 'lru': expected one of"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Vocabulary(VocabularyOptions(**options))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (([1, 2], [0, 0], [1, 1], [0, 0]), "two entries have id 0"),
        (([1, 2], [0, 3], [1, 1], [0, 0]), "id 3 of entry 1 is out of range: expected 0 to 2, or -1"),
        (([1, 1], [0, 1], [1, 1], [0, 0]), "key 1 of entry 1 follows 1: expected keys that increase"),
        (([1], [0], [0], [0]), "count 0 of entry 0: expected at least 1"),
        (([1, 2], [-1, -1], [1, 1], [0, 0]), "2 entries are candidates: expected at most max_candidates, 1"),
        (([1, 2], [0], [1], [0]), "expected as many of each"),
    ],
)
def test_wrong_entries_are_refused_and_change_nothing(entries: Any, message: str) -> None:
    with Vocabulary(VocabularyOptions(max_keys=3, max_candidates=1)) as ours:
        ours.observe(int64s([7]), step=1)
        before = ours.export()
        with pytest.raises(ArgumentError, match=message):
            ours.restore(Entries(*map(int64s, entries)))
        for array, expected in zip(ours.export(), before, strict=True):
            np.testing.assert_array_equal(array, expected)


def test_restored_ids_leave_the_gaps_free() -> None:
    with Vocabulary(VocabularyOptions(max_keys=6)) as ours:
        ours.restore(Entries(*map(int64s, ([10, 20], [4, 1], [1, 1], [0, 0]))))
        ours.observe(int64s([30, 31, 32, 33, 34]), step=0)
        assert ours.lookup(int64s([30, 31, 32, 33, 34])).tolist() == [0, 2, 3, 5, -1]


@pytest.mark.parametrize(
    ("keys", "counts", "message"),
    [
        (np.zeros(2, np.int32), None, "keys is int32"),
        (np.zeros(2, np.int64), np.zeros(3, np.int64), "3 counts for 2 keys"),
        (np.zeros(2, np.int64), np.zeros(2), "counts is float64"),
    ],
)
def test_arrays_of_another_kind_are_refused(keys: Any, counts: Any, message: str) -> None:
    with Vocabulary(VocabularyOptions(max_keys=3)) as ours, pytest.raises(ArgumentError, match=message):
        ours.observe(keys, counts, step=0)


def test_a_closed_vocabulary_says_so() -> None:
    ours = Vocabulary(VocabularyOptions(max_keys=3))
    ours.close()
    ours.close()
    with pytest.raises(ArgumentError, match="is closed"):
        len(ours)
