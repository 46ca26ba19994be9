"""How vocabularies grow, against a truth in plain Python."""

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankhouse.embedding_cache.format.vocabulary import TextValues, Values, Vocabularies
from rankhouse.training.data import value_counts
from rankhouse.training.data.feature_spec import CategoricalFeature
from rankhouse.training.data.growth import grown
from rankhouse.training.data.usage import Usage
from rankhouse.training.data.value_counts import ValueCounter
from tests.training.data.growing_truth import TableTruth


def raw(number: int, dtype: str) -> Any:
    return f"{number}é" if dtype == "text" else number * 2**59 - 2**60


def as_values(values: list[Any], dtype: str) -> Values:
    return TextValues.of(values) if dtype == "text" else np.array(values, dtype=np.int64)


def counted(day: Counter[Any], dtype: str) -> value_counts.ValueCounts:
    counter = ValueCounter((CategoricalFeature("c", dtype=dtype),))  # type: ignore[arg-type]
    kind = pa.string() if dtype == "text" else pa.int64()
    counter.add(pa.table({"c": pa.chunked_array([pa.array([*day.elements(), None], kind)])}))
    return counter.counts()


class Grower:
    """One table that lives through days as `extend` makes it live."""

    def __init__(self, known: list[Any], counts: list[int], dtype: str, threshold: int, max_size: int) -> None:
        self.dtype, self.limits = dtype, {"frequency_threshold": threshold, "max_size": max_size}
        self.vocabularies = Vocabularies.build({"c": as_values(known, dtype)})
        self.usage = Usage(np.array([0, 0, 0, *counts]), np.zeros(3 + len(known), dtype=np.int32))

    def live_through(self, day: Counter[Any]) -> list[int]:
        growth = grown(self.vocabularies, "c", counted(day, self.dtype), self.usage, **self.limits)
        self.vocabularies, self.usage = self.vocabularies.extended({"c": growth.change}), growth.usage
        return growth.change.freed.tolist()

    def find(self, values: list[Any]) -> list[int]:
        return self.vocabularies.find("c", as_values(values, self.dtype)).tolist()


@settings(max_examples=150, deadline=None)
@given(st.data(), st.sampled_from(["text", "int64"]))
def test_any_days_give_the_ids_of_the_truth(data: st.DataObject, dtype: str) -> None:
    known = [raw(number, dtype) for number in data.draw(st.lists(st.integers(0, 15), unique=True, max_size=8))]
    counts = [data.draw(st.integers(1, 3)) for _ in known]
    threshold, max_size = data.draw(st.integers(0, 3)), data.draw(st.sampled_from([0, max(4, 3 + len(known)), 8, 12]))
    if max_size:
        known = known[: max_size - 3]
        counts = counts[: max_size - 3]
    truth = TableTruth(list(zip(known, counts, strict=True)), threshold, max_size)
    grower = Grower(known, counts, dtype, threshold, max_size)
    asked = [raw(number, dtype) for number in range(16)]
    for _ in range(data.draw(st.integers(1, 5))):
        drawn = data.draw(st.lists(st.integers(0, 15), max_size=30))
        before = dict(zip(asked, grower.find(asked), strict=True))
        freed = truth.live_through(Counter(raw(number, dtype) for number in drawn))
        assert grower.live_through(Counter(raw(number, dtype) for number in drawn)) == freed
        assert grower.find(asked) == [truth.find(value) for value in asked]
        assert grower.vocabularies.num_rows["c"] == truth.num_rows
        moved = [value for value, now in zip(asked, grower.find(asked), strict=True) if before[value] not in (2, now)]
        assert {before[value] for value in moved} == set(freed)
        for id_ in truth.ids.values():
            assert (grower.usage.counts[id_], grower.usage.last_seen[id_]) == (
                truth.counts[id_],
                truth.last_seen[id_],
            )


def test_new_values_come_by_frequency_then_by_value() -> None:
    grower = Grower(["old"], [1], "text", threshold=2, max_size=0)
    assert grower.live_through(Counter({"z": 2, "é": 2, "once": 1, "a": 2, "often": 9})) == []
    assert grower.find(["often", "a", "z", "é", "once", "old"]) == [4, 5, 6, 7, 2, 3]


def test_the_value_unseen_for_longest_goes_first_then_the_rarest_then_the_lowest_id() -> None:
    grower = Grower([10, 11, 12, 13, 14], [7, 2, 5, 5, 9], "int64", threshold=0, max_size=8)
    # 10 and 11 are seen again, so that 12, 13 and 14 are the ones unseen for longest.
    assert grower.live_through(Counter([10, 11])) == []
    assert grower.live_through(Counter([20, 20])) == [5]  # 12 and 13 are as rare as each other.
    assert grower.live_through(Counter([21, 13])) == [7]  # 13 is there, so 14 goes, often as it was seen.
    assert grower.live_through(Counter([22])) == [4]  # Of 10 and 11, both unseen since the first day, the rarer one.
    assert grower.find([10, 11, 12, 13, 14, 20, 21, 22]) == [3, 2, 2, 6, 2, 5, 7, 4]


def test_no_value_of_the_new_day_makes_way_and_the_rarest_new_ones_stay_out() -> None:
    grower = Grower([10, 11, 12], [1, 1, 1], "int64", threshold=0, max_size=6)
    assert grower.live_through(Counter({10: 1, 11: 1, 20: 3, 21: 2})) == [5]
    assert grower.find([10, 11, 12, 20, 21]) == [3, 4, 2, 5, 2]


def test_a_value_that_comes_back_gets_another_id() -> None:
    grower = Grower([10], [1], "int64", threshold=0, max_size=5)
    assert grower.live_through(Counter([20, 21])) == [3]
    assert grower.find([10, 20, 21]) == [2, 4, 3]
    assert grower.live_through(Counter([10, 21])) == [4]
    assert grower.find([10, 20, 21]) == [4, 2, 3]


def test_free_ids_are_given_first() -> None:
    grower = Grower(["a", "b", "c"], [1, 1, 1], "text", threshold=0, max_size=7)
    change = grown(
        grower.vocabularies, "c", counted(Counter(), "text"), grower.usage, frequency_threshold=0, max_size=7
    )
    removal = type(change.change)(TextValues.of(["a", "c"]), np.array([-1, -1]), np.array([3, 5]))
    grower.vocabularies = grower.vocabularies.extended({"c": removal})
    assert grower.live_through(Counter({"x": 9, "y": 8, "z": 7, "w": 6})) == [4]
    assert grower.find(["x", "y", "z", "w", "a", "b", "c"]) == [3, 5, 6, 4, 2, 2, 2]


@pytest.mark.parametrize("few", [1, 10, 1 << 20])
def test_values_are_counted_over_parts_and_features(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(value_counts, "_FEW", few)
    features = (CategoricalFeature("c"), CategoricalFeature("l", is_list=True, table="c"))
    counter, random, truth = ValueCounter(features), np.random.default_rng(4), Counter[str]()
    for _ in range(20):
        singles = [f"{n}" if n < 30 else None for n in random.integers(0, 33, 15)]
        lists = [[f"{n}" for n in random.integers(20, 50, k)] for k in random.integers(0, 4, 15)]
        truth.update(value for value in singles if value is not None)
        truth.update(value for values in lists for value in values)
        part = pa.table({"c": pa.array(singles, pa.string()), "l": pa.array(lists, pa.list_(pa.string()))})
        counter.add(part.slice(2))
        for value in [singles[0], singles[1], *lists[0], *lists[1]]:
            if value is not None:
                truth[value] -= 1
    found = counter.counts()
    assert isinstance(found.values, TextValues)
    ends = pairwise(found.values.offsets.tolist())
    texts = [found.values.data[begin:end].tobytes().decode() for begin, end in ends]
    expected = sorted((+truth).items(), key=lambda item: (-item[1], item[0]))
    assert list(zip(texts, found.counts.tolist(), strict=True)) == expected
