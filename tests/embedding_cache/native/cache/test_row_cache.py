"""The row cache in the host's memory, through the C interface."""

import threading

import numpy as np
import pytest

from rankhouse.kernels.errors import ArgumentError, OutOfMemoryError
from tests.embedding_cache.native.cache import cases
from tests.embedding_cache.native.cache.caches import HostCache, load, row_of
from tests.embedding_cache.native.cache.reference import LFU, LRU


@pytest.mark.parametrize("policy", [LRU, LFU])
@pytest.mark.parametrize("row_bytes", [1, 4, 13, 64, 512, 1001])
def test_calls_equal_the_reference(policy: int, row_bytes: int) -> None:
    for seed in range(4):
        cases.equals_the_reference(HostCache, policy, row_bytes, seed)


def test_any_key_is_a_key() -> None:
    cases.any_key_is_a_key(HostCache)


@pytest.mark.parametrize("row_bytes", [1, 64, 4097])
def test_capacities_are_kept(row_bytes: int) -> None:
    cases.capacities_are_kept(HostCache, row_bytes)


def test_lru_evicts_the_oldest() -> None:
    cases.lru_evicts_the_oldest(HostCache)


def test_lfu_evicts_the_rarest() -> None:
    cases.lfu_evicts_the_rarest(HostCache)


def test_lfu_forgets_what_was_hot() -> None:
    cases.lfu_forgets_what_was_hot(HostCache)


def test_present_rows_are_replaced() -> None:
    cases.present_rows_are_replaced(HostCache)


@pytest.mark.parametrize("policy", [LRU, LFU])
def test_answers_stay_the_same_under_pressure(policy: int) -> None:
    cases.answers_stay_the_same_under_pressure(HostCache, policy)


def test_a_cache_without_room_misses_everything() -> None:
    cache = HostCache(100, 64)
    keys = np.arange(70, dtype=np.uint64)
    cache.insert(keys, row_of(keys, 64))
    assert cache.find(keys)[1].tolist() == list(range(70))
    counters = cache.counters()
    assert (counters.capacity_rows, counters.bytes, counters.inserted, counters.misses) == (0, 0, 0, 70)


def test_threads_share_a_cache() -> None:
    cache = HostCache(200_000, 100)
    wrong: list[int] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(200):
            keys = rng.zipf(1.2, 256).astype(np.uint64) % np.uint64(10_000)
            rows, missing = cache.find(keys)
            rows[missing] = row_of(keys[missing], 100)
            cache.insert(keys[missing], rows[missing])
            wrong.extend(np.flatnonzero((rows != row_of(keys, 100)).any(axis=1)).tolist())

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not wrong
    counters = cache.counters()
    assert counters.hits + counters.misses == 4 * 200 * 256
    assert 0 < counters.num_rows <= counters.capacity_rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1, 64, 0), "capacity_bytes is -1: expected >= 0"),
        ((1000, 0, 0), "row_bytes is 0: expected 1 to 2147483647"),
        ((1000, 2**31, 0), "row_bytes is 2147483648: expected 1 to"),
        ((1000, 64, 2), r"policy is 2: expected an rh_cache_policy, 0 \(LRU\) or 1 \(LFU\)"),
    ],
)
def test_impossible_options_are_refused(arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        HostCache(*arguments)


def test_more_memory_than_there_is_is_refused() -> None:
    with pytest.raises(OutOfMemoryError, match=f"a cache of {2**60} bytes: the system has no"):
        HostCache(2**60, 64)


def test_impossible_calls_are_refused() -> None:
    cache, keys = HostCache(1000, 8), np.zeros(3, np.uint64).ctypes.data
    with pytest.raises(ArgumentError, match="cache is NULL"):
        cache.call("rh_row_cache_find", None, keys, 3, keys, keys, None)
    with pytest.raises(ArgumentError, match="num_missing is NULL"):
        cache.call("rh_row_cache_find", cache._cache, keys, 3, keys, keys, None)
    with pytest.raises(ArgumentError, match=f"n is {2**31}: expected 0 to {2**31 - 1} keys in a call"):
        cache.call("rh_row_cache_insert", cache._cache, keys, 2**31, keys)
    with pytest.raises(ArgumentError, match="keys or rows is NULL, but there are 3 keys"):
        cache.call("rh_row_cache_insert", cache._cache, keys, 3, None)
    with pytest.raises(ArgumentError, match="counters is NULL"):
        cache.call("rh_row_cache_count", cache._cache, None)
    load().rh_row_cache_destroy(None)
