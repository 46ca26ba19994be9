import math

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankhouse.serving.analysis.errors import SummaryError
from rankhouse.serving.analysis.layout import ANSWERED, CANCELLED, FAILED, REFUSED
from rankhouse.serving.analysis.summary import MAX_EVENTS, Summary

from .arms import Truth, observe

# What may happen to a summary, as data: (kind, a number that decides the rest).
HAPPENINGS = st.lists(
    st.tuples(st.sampled_from(["answer", "pair", "outcomes", "ids"]), st.integers(0, 2**16)), max_size=40
)


def happen(summary: Summary, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.random(int(rng.integers(1, 9))).astype(np.float32)
    if kind == "answer":
        status = int(rng.choice([200, 200, 200, 400, 499, 500, 504]))
        summary.observe_answer(
            status,
            float(rng.exponential(0.01)),
            scores if status == 200 else None,
            num_missing=seed % 3,
            num_values=3 * len(scores),
            is_degraded=seed % 5 == 0,
            missing_F=np.array([seed % 2, 0]),
        )
    elif kind == "pair":
        summary.observe_pair(scores, np.roll(scores, 1), 3)
    elif kind == "outcomes":
        summary.observe_outcomes(scores, rng.random(len(scores)) < 0.3, event="click" if seed % 3 else "order")
    else:
        summary.observe_ids(seed % 4, 4)


def filled(happenings: list[tuple[str, int]]) -> Summary:
    summary = Summary(["user", "item"])
    for kind, seed in happenings:
        happen(summary, kind, seed)
    return summary


def assert_same(one: Summary, other: Summary) -> None:
    assert one.features == other.features
    assert one.events.keys() == other.events.keys()
    pairs = [(one.arrays, other.arrays), *((one.events[event], other.events[event]) for event in one.events)]
    for found, expected in pairs:
        for name, array in found.items():
            if array.dtype == np.int64:
                np.testing.assert_array_equal(array, expected[name], name)
            else:
                np.testing.assert_allclose(array, expected[name], rtol=1e-12, atol=1e-12, err_msg=name)


def test_answers_are_counted_by_what_became_of_them() -> None:
    summary = Summary(["user", "item"])
    for status in (200, 200, 400, 404, 499, 500, 504):
        summary.observe_answer(status, 0.01)
    counts = summary.arrays["statuses"]
    assert (counts[ANSWERED], counts[REFUSED], counts[CANCELLED], counts[FAILED]) == (2, 2, 1, 2)
    assert summary.arrays["latencies"].sum() == 3  # Of answers, and of the one that ran out of time.
    assert summary.num_requests == 4


def test_features_without_values_are_counted() -> None:
    summary = Summary(["user", "item"])
    summary.observe_answer(200, 0.01, np.full(4, 0.1), num_missing=5, num_values=8, missing_F=np.array([1, 4]))
    assert summary.arrays["missing_rows"].tolist() == [1, 4]
    assert summary.arrays["rows"].tolist() == [4]
    assert summary.arrays["missing_shares"].tolist() == [0.625, 1]


def test_a_pair_is_measured() -> None:
    summary = Summary()
    summary.observe_pair(np.array([0.1, 0.2, 0.3]), np.array([0.2, 0.3, 0.4]), top_k=2)
    summary.observe_pair(np.array([0.1]), np.array([0.3]), top_k=2)  # Of one candidate there is no order.
    assert summary.arrays["rank_correlations"].tolist() == pytest.approx([1, 1, 1])
    assert summary.arrays["top_k_overlaps"].tolist() == [1, 1, 1]
    assert summary.arrays["score_differences"].tolist() == pytest.approx([2, 0.3, 0.05])
    assert summary.arrays["scores"].sum() == 4


@settings(deadline=None, max_examples=50)
@given(HAPPENINGS, HAPPENINGS, HAPPENINGS)
def test_merging_is_one_pass_in_any_order(
    one: list[tuple[str, int]], other: list[tuple[str, int]], third: list[tuple[str, int]]
) -> None:
    together = filled(one + other + third)
    assert_same(filled(one).merge(filled(other)).merge(filled(third)), together)
    assert_same(filled(third).merge(filled(other).merge(filled(one))), together)


@settings(deadline=None, max_examples=50)
@given(HAPPENINGS, HAPPENINGS)
def test_since_is_what_came_later(before: list[tuple[str, int]], after: list[tuple[str, int]]) -> None:
    earlier, later = filled(before), filled(before + after)
    window, expected = later.since(earlier), filled(after)
    for name in ("statuses", "latencies", "scores", "missing", "ids"):
        np.testing.assert_array_equal(window.arrays[name], expected.arrays[name], name)
    for event, arrays in expected.events.items():
        np.testing.assert_array_equal(window.events[event]["pairs"], arrays["pairs"])


@settings(deadline=None, max_examples=50)
@given(HAPPENINGS)
def test_bytes_give_the_same_summary(happenings: list[tuple[str, int]]) -> None:
    summary = filled(happenings)
    again = Summary.from_bytes(summary.to_bytes())
    assert_same(again, summary)
    again.observe_answer(200, 0.01, np.full(2, 0.1))  # And it goes on.
    assert again.num_requests == summary.num_requests + 1


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_other_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(SummaryError, match="summary"):
        Summary.from_bytes(content)


@settings(deadline=None, max_examples=200)
@given(st.integers(0, 10_000), st.integers(1, 255))
def test_altered_bytes_are_refused_or_sound(place: int, change: int) -> None:
    content = bytearray(filled([("answer", 1), ("outcomes", 2), ("pair", 3)]).to_bytes())
    content[place % len(content)] ^= change
    try:
        summary = Summary.from_bytes(bytes(content))
    except SummaryError:
        return
    assert all(np.isfinite(array).all() for array in summary.arrays.values())


def test_a_summary_stays_small() -> None:
    summary = Summary()
    observe(summary, Truth(), 2000, np.random.default_rng(0))
    assert len(summary.to_bytes()) < 10_000


def packed(**changes: object) -> bytes:
    version, features, events, content = msgspec.msgpack.decode(Summary().to_bytes())
    values = {"version": version, "features": features, "events": events, "content": content, **changes}
    return msgspec.msgpack.encode(list(values.values()))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (packed(version=2), "version 2"),
        (packed(features=["more"]), "is not the .* bytes"),
        (packed(events=["click", "click"]), "twice"),
        (packed(events=["click"] * 65), "too many"),
        (packed(content=b"nothing"), "damaged"),
        (packed(events=[str(number) for number in range(9)]), "not the"),
    ],
)
def test_what_is_wrong_is_said(content: bytes, message: str) -> None:
    with pytest.raises(SummaryError, match=message):
        Summary.from_bytes(content)


def test_counts_below_zero_are_refused() -> None:
    summary = Summary()
    summary._arrays["degraded"][0] = -1
    with pytest.raises(SummaryError, match="degraded"):
        Summary.from_bytes(summary.to_bytes())


def test_more_than_all_is_refused() -> None:
    summary = Summary()
    summary.observe_ids(3, 2)
    with pytest.raises(SummaryError, match="ids, 3 are counted of 2"):
        Summary.from_bytes(summary.to_bytes())


def test_numbers_that_are_none_are_refused() -> None:
    summary = Summary()
    summary._arrays["score_differences"][1] = math.nan
    with pytest.raises(SummaryError, match="score_differences"):
        Summary.from_bytes(summary.to_bytes())
    with pytest.raises(SummaryError, match="finite"):
        summary.observe_pair(np.array([0.1, 0.2]), np.array([0.1, math.nan]), 1)


def test_summaries_of_other_models_do_not_merge() -> None:
    with pytest.raises(SummaryError, match="other features"):
        Summary(["user"]).merge(Summary(["item"]))
    with pytest.raises(SummaryError, match="other features"):
        Summary(["user"]).since(Summary())


def test_a_later_summary_is_not_taken_for_an_earlier_one() -> None:
    with pytest.raises(SummaryError, match="no earlier state"):
        filled([("answer", 1)]).since(filled([("answer", 1), ("answer", 3)]))


def test_events_are_few_and_have_names() -> None:
    summary = Summary()
    for number in range(MAX_EVENTS):
        summary.observe_outcomes(np.array([0.1]), np.array([1]), event=str(number))
    with pytest.raises(SummaryError, match="one too many"):
        summary.observe_outcomes(np.array([0.1]), np.array([1]), event="more")
    other = Summary()
    other.observe_outcomes(np.array([0.1]), np.array([1]))
    with pytest.raises(SummaryError, match="too many"):
        summary.merge(other)
    for name in ("", "x" * 65):
        with pytest.raises(SummaryError, match="name of 1 to 64"):
            Summary().observe_outcomes(np.array([0.1]), np.array([1]), event=name)
