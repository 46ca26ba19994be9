from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rankhouse.kernels import vocabulary
from rankhouse.kernels.errors import ArgumentError
from rankhouse.kernels.reference import vocabulary as reference

LOWEST, HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def check(keys: NDArray[np.int64], num_threads: int | None = None) -> None:
    found = vocabulary.unique(keys, num_threads=num_threads)
    for ours, expected in zip(found, reference.unique(keys), strict=True):
        np.testing.assert_array_equal(ours, expected)


@given(st.lists(st.sampled_from([LOWEST, LOWEST + 1, -1, 0, 1, 2**40, HIGHEST]) | st.integers(LOWEST, HIGHEST)))
@settings(max_examples=200, deadline=None)
def test_unique_of_any_keys(keys: list[int]) -> None:
    check(np.array(keys, np.int64))


@pytest.mark.parametrize("num_threads", [1, 2, 3])
@pytest.mark.parametrize("num_keys", [1023, 1024, 100_000])
@pytest.mark.parametrize(
    "span",
    [1, 2, 1000, 2**20, 2**22 + 1, 2**48, 2**63],
    ids=["one", "two", "hot", "ids", "odd", "wide", "whole"],
)
def test_unique_of_many_keys(span: int, num_keys: int, num_threads: int) -> None:
    rng = np.random.default_rng(span % 1000 + num_keys)
    # Half of them from few values, so that some are frequent.
    keys = np.concatenate([rng.integers(-span, span, num_keys // 2), rng.integers(-span, span, 9)[: num_keys % 10]])
    frequent: NDArray[np.int64] = rng.integers(-span, span, 50)
    keys = rng.permutation(np.concatenate([keys, rng.choice(frequent, num_keys - len(keys))]))
    check(keys, num_threads)


@pytest.mark.parametrize("stride", [2**11, 2**40, 2**52])
def test_unique_of_keys_that_share_their_low_bits(stride: int) -> None:
    """The passes of a sort that would not move anything, and keys whose high bits tell them apart in groups only."""
    rng = np.random.default_rng(1)
    keys: NDArray[np.int64] = rng.integers(0, 1000, 5000) * stride + 7
    check(np.concatenate([keys, keys[:2000] + 1, [LOWEST, HIGHEST]]))


def test_unique_of_no_keys() -> None:
    assert [len(array) for array in vocabulary.unique(np.empty(0, np.int64))] == [0, 0, 0]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (np.zeros(3, np.int32), "keys is int32 of shape .3,.: expected int64 with 1 dim"),
        (np.zeros((2, 2), np.int64), "keys is int64 of shape .2, 2.: expected int64 with 1 dim"),
        ([1, 2], "keys is a list: expected a NumPy array"),
        (np.arange(20)[::2], "keys is not contiguous"),
    ],
)
def test_keys_of_another_kind_are_refused(keys: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        vocabulary.unique(keys)


def test_no_threads_are_refused() -> None:
    with pytest.raises(ArgumentError, match="num_threads is 0"):
        vocabulary.unique(np.zeros(3, np.int64), num_threads=0)
