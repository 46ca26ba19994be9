"""What every row cache must do, whatever its device: each function takes what makes a cache."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tests.embedding_cache.native.cache.caches import Cache, row_of
from tests.embedding_cache.native.cache.reference import LFU, LRU, ReferenceCache, set_of

# (capacity_bytes, row_bytes, policy) -> a cache.
Make = Callable[[int, int, int], Cache]

# The ends of the range, and what other caches reserve.
EDGES = np.array([0, 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1], np.uint64)


def reference_of(cache: Cache, policy: int) -> ReferenceCache:
    counters = cache.counters()
    return ReferenceCache(counters.capacity_rows // counters.ways, counters.ways, policy)


def compare(cache: Cache, truth: ReferenceCache, keys: NDArray[np.uint64], generation: int) -> None:
    """Finds the keys, and inserts those that are missing; both caches must agree in all that can be seen."""
    rows, missing = cache.find(keys)
    true_rows, true_missing = truth.find(keys)
    assert missing.tolist() == true_missing
    for position, row in enumerate(true_rows):
        assert row is None or rows[position].tobytes() == row
    new = row_of(keys[missing], cache.row_bytes, generation)
    cache.insert(keys[missing], new)
    truth.insert(keys[missing], [row.tobytes() for row in new])
    counters = cache.counters()
    seen = (counters.hits, counters.misses, counters.inserted, counters.evicted, counters.num_rows)
    assert seen == (truth.hits, truth.misses, truth.inserted, truth.evicted, truth.inserted - truth.evicted)


def equals_the_reference(make: Make, policy: int, row_bytes: int, seed: int, num_calls: int = 60) -> None:
    """Random calls of all sizes, duplicates among them, over some more keys than there is room for."""
    rng = np.random.default_rng(seed)
    cache = make(int(rng.integers(0, 40)) * (row_bytes + 64) + 40_000, row_bytes, policy)
    truth = reference_of(cache, policy)
    num_keys = int(cache.counters().capacity_rows * rng.choice([0.5, 1.5, 4]))
    pool = np.concatenate([EDGES, rng.integers(0, 2**64, num_keys, np.uint64)])
    for call in range(num_calls):
        size = int(rng.choice([0, 1, 2, 31, 33, 300]))
        hot = rng.zipf(1.3, size) % len(pool)
        compare(cache, truth, pool[hot if rng.random() < 0.7 else rng.integers(0, len(pool), size)], call)
    assert not num_calls or truth.hits > 0


def any_key_is_a_key(make: Make) -> None:
    cache = make(1 << 20, 8, LRU)
    rows, missing = cache.find(EDGES)
    assert missing.tolist() == list(range(len(EDGES)))
    cache.insert(EDGES, row_of(EDGES, 8))
    rows, missing = cache.find(EDGES)
    assert missing.size == 0
    np.testing.assert_array_equal(rows, row_of(EDGES, 8))


def capacities_are_kept(make: Make, row_bytes: int) -> None:
    """Below, at and above a huge page; with rows of few bytes that takes many of them."""
    for capacity in (0, 1, 100, 5000, 100_000, 2**21, 2**21 + 4096, 5 * 2**20):
        cache = make(capacity, row_bytes, LRU)
        counters = cache.counters()
        assert counters.bytes <= capacity
        assert counters.capacity_rows * row_bytes <= counters.bytes
        keys = np.arange(2 * counters.capacity_rows + 3, dtype=np.uint64)
        cache.insert(keys, row_of(keys, row_bytes))
        counters = cache.counters()
        assert counters.num_rows <= counters.capacity_rows
        assert counters.num_rows == counters.inserted - counters.evicted
        rows, missing = cache.find(keys)
        here = np.setdiff1d(np.arange(len(keys)), missing)
        assert len(here) == counters.num_rows
        np.testing.assert_array_equal(rows[here], row_of(keys[here], row_bytes))


def keys_of_one_set(cache: Cache, count: int) -> NDArray[np.uint64]:
    counters = cache.counters()
    num_sets = counters.capacity_rows // counters.ways
    return np.array([key for key in range(count * num_sets * 4) if set_of(key, num_sets) == 0][:count], np.uint64)


def use(cache: Cache, keys: NDArray[np.uint64]) -> list[bool]:
    """Uses each key by a call of its own; returns which were there."""
    return [cache.find(keys[i : i + 1])[1].size == 0 for i in range(len(keys))]


def lru_evicts_the_oldest(make: Make) -> None:
    cache = make(20_000, 16, LRU)
    ways = cache.counters().ways
    keys = keys_of_one_set(cache, ways + 3)
    for key in keys[:ways]:
        cache.insert(np.array([key]), row_of(np.array([key]), 16))
    assert all(use(cache, keys[[0, 2]]))
    cache.insert(keys[ways:], row_of(keys[ways:], 16))  # three go: 1, 3 and 4
    assert use(cache, keys) == [i not in (1, 3, 4) for i in range(ways + 3)]


def lfu_evicts_the_rarest(make: Make) -> None:
    cache = make(20_000, 16, LFU)
    ways = cache.counters().ways
    keys = keys_of_one_set(cache, ways + 200)
    cache.insert(keys[:ways], row_of(keys[:ways], 16))
    for i in range(ways):
        use(cache, np.repeat(keys[i], 0 if i == 3 else 1 + i % 2))
    cache.insert(keys[ways : ways + 1], row_of(keys[ways : ways + 1], 16))
    assert not use(cache, keys[3:4])[0]


def lfu_forgets_what_was_hot(make: Make) -> None:
    cache = make(20_000, 16, LFU)
    ways = cache.counters().ways
    keys = keys_of_one_set(cache, ways * 200)
    cache.insert(keys[:1], row_of(keys[:1], 16))
    cache.find(np.repeat(keys[0], 1000))
    for first in range(1, 20 * ways, ways):  # 20 rows a way: halved twice, and still hotter than any other
        cache.insert(keys[first : first + ways], row_of(keys[first : first + ways], 16))
    assert cache.find(keys[:1])[1].size == 0
    for first in range(20 * ways + 1, 190 * ways, ways):
        cache.insert(keys[first : first + ways], row_of(keys[first : first + ways], 16))
        cache.find(keys[first : first + ways])
    assert cache.find(keys[:1])[1].size == 1


def present_rows_are_replaced(make: Make) -> None:
    cache = make(100_000, 12, LRU)
    keys = np.array([5, 6, 5, 5], np.uint64)
    rows = np.stack([row_of(keys[i : i + 1], 12, i)[0] for i in range(4)])
    cache.insert(keys, rows)
    found, missing = cache.find(np.array([5, 6, 7], np.uint64))
    assert missing.tolist() == [2]
    np.testing.assert_array_equal(found[:2], rows[[3, 1]])
    assert cache.counters().inserted == 2
    assert cache.counters().evicted == 0


def answers_stay_the_same_under_pressure(make: Make, policy: int) -> None:
    """A lookup that fetches what is missing gives the same rows, whatever is here, however little fits."""
    rng = np.random.default_rng(3)
    cache = make(3000, 20, policy)
    assert cache.counters().capacity_rows < 200
    for _ in range(20):
        keys = rng.zipf(1.1, 400).astype(np.uint64) % np.uint64(1000)
        rows, missing = cache.find(keys)
        rows[missing] = row_of(keys[missing], 20)
        cache.insert(keys[missing], rows[missing])
        np.testing.assert_array_equal(rows, row_of(keys, 20))
    assert cache.counters().evicted > 0
    assert cache.counters().hits > 0
