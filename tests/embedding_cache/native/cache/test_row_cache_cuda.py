"""The row cache in a GPU's memory, through the C interface: `pytest -m gpu tests/embedding_cache/native/cache`.

test_cuda_emulation.py runs the same tests without a GPU.
"""

import ctypes
import threading
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from rankhouse.kernels import library
from rankhouse.kernels.errors import ArgumentError, KernelError, OutOfMemoryError
from tests.embedding_cache.native.cache import cases
from tests.embedding_cache.native.cache.caches import READ_ROWS, Counters, DeviceCache, Fetch, find_cuda, row_of
from tests.embedding_cache.native.cache.reference import LFU, LRU
from tests.kernels.device_memory import Host, Kernels

pytestmark = pytest.mark.gpu

Make = Callable[[int, int, int], DeviceCache]


@pytest.fixture(scope="module")
def cuda() -> Kernels:
    found = find_cuda()
    if found is None:
        pytest.skip("needs an NVIDIA GPU and a build with CUDA")
    return found


@pytest.fixture
def make(cuda: Kernels) -> Make:
    return lambda *options: DeviceCache(cuda, *options)


@pytest.mark.parametrize("policy", [LRU, LFU])
@pytest.mark.parametrize("row_bytes", [1, 12, 64, 1001])
def test_calls_equal_the_reference(policy: int, row_bytes: int, make: Make) -> None:
    for seed in range(2):
        cases.equals_the_reference(make, policy, row_bytes, seed, num_calls=25)


@pytest.mark.parametrize(("row_bytes", "misaligned"), [(64, 4), (64, 1), (12, 2)])
def test_rows_may_lie_at_any_address(row_bytes: int, misaligned: int, cuda: Kernels) -> None:
    def make(*options: int) -> DeviceCache:
        return DeviceCache(cuda, *options, misaligned=misaligned)

    cases.equals_the_reference(make, LRU, row_bytes, 5, num_calls=15)


def test_any_key_is_a_key(make: Make) -> None:
    cases.any_key_is_a_key(make)


@pytest.mark.parametrize("row_bytes", [4097])
def test_capacities_are_kept(row_bytes: int, make: Make) -> None:
    cases.capacities_are_kept(make, row_bytes)


def test_lru_evicts_the_oldest(make: Make) -> None:
    cases.lru_evicts_the_oldest(make)


def test_lfu_evicts_the_rarest(make: Make) -> None:
    cases.lfu_evicts_the_rarest(make)


def test_lfu_forgets_what_was_hot(make: Make) -> None:
    cases.lfu_forgets_what_was_hot(make)


def test_present_rows_are_replaced(make: Make) -> None:
    cases.present_rows_are_replaced(make)


@pytest.mark.parametrize("policy", [LRU, LFU])
def test_answers_stay_the_same_under_pressure(policy: int, make: Make) -> None:
    cases.answers_stay_the_same_under_pressure(make, policy)


def test_a_cache_without_room_misses_everything(make: Make) -> None:
    cache = make(100, 64, LRU)
    keys = np.arange(70, dtype=np.uint64)
    cache.insert(keys, row_of(keys, 64))
    assert cache.find(keys)[1].tolist() == list(range(70))
    counters = cache.counters()
    assert (counters.capacity_rows, counters.bytes, counters.inserted, counters.misses) == (0, 0, 0, 70)


class Store:
    """Rows on the host that a fetch reads: all keys have one. `fails_with` is a status to return instead."""

    def __init__(self, row_bytes: int, fails_with: int = 0) -> None:
        self.row_bytes, self.fails_with, self.num_read, self.read = row_bytes, fails_with, 0, READ_ROWS(self._read)

    def _read(self, _context: int, keys: int, n: int, rows: int) -> int:
        if self.fails_with:
            return self.fails_with
        self.num_read += n
        wanted = row_of(Host().get(keys, (n,), np.uint64), self.row_bytes)
        ctypes.memmove(rows, wanted.ctypes.data, wanted.nbytes)
        return 0


class Fetcher:
    """A call of rh_row_cache_fetch_cuda, with room of its own for up to `most` keys."""

    def __init__(self, cuda: Kernels, cache: DeviceCache, store: Store, most: int, stream: int | None = None) -> None:
        self._cuda, self._cache, self._store, self._stream = cuda, cache, store, stream
        size, host_size = ctypes.c_int64(), ctypes.c_int64()
        cuda.call("rh_row_cache_fetch_workspace_cuda", cache.handle, most, size, host_size)
        self.workspace = (cuda.memory.allocate(size.value), size.value)
        self.host = Host().allocate(host_size.value)
        self.host_bytes = host_size.value
        self.rows = cuda.memory.allocate(most * cache.row_bytes)

    def __call__(self, keys: int, n: int) -> None:
        """Fetches the rows of keys [n] on the device to self.rows."""
        fetch = Fetch(keys, n, self.rows, self._store.read, None, self.host, self.host_bytes)
        self._cuda.call("rh_row_cache_fetch_cuda", self._cache.handle, fetch, *self.workspace, self._stream)


@pytest.mark.parametrize("row_bytes", [5, 12, 64])
def test_fetched_rows_are_the_stores(row_bytes: int, cuda: Kernels, make: Make) -> None:
    rng = np.random.default_rng(row_bytes)
    cache, store = make(8000, row_bytes, LRU), Store(row_bytes)
    fetch = Fetcher(cuda, cache, store, 300)
    for n in (300, 0, 1, 33, 300, 300):
        keys = rng.zipf(1.2, n).astype(np.uint64)
        fetch(cuda.memory.put(keys), n)
        np.testing.assert_array_equal(cuda.memory.get(fetch.rows, (n, row_bytes), np.uint8), row_of(keys, row_bytes))
    counters = cache.counters()
    assert store.num_read == counters.misses > 0
    assert counters.hits > 0


def pooled(cuda: Kernels, rows: int, num_rows: int, ids: NDArray[np.int64], dim: int) -> NDArray[np.float32]:
    """Sums of 4 rows each, from a float32 table on the device; id -1 is a row of zeros."""
    memory, batch_size = cuda.memory, len(ids) // 4
    table = library.Table(rows=rows, num_rows=num_rows, dim=dim, type=0, out_of_range=library.OUT_OF_RANGE["zero"])
    zero, hotness = (ctypes.c_int32 * 1)(0), (ctypes.c_int32 * 1)(4)
    lookup = library.Lookup(
        tables=ctypes.pointer(table), feature_tables=zero, combiners=zero, hotness=hotness,
        ids=memory.put(ids), num_ids=len(ids), batch_size=batch_size, num_tables=1, num_features=1,
    )  # fmt: skip
    out = memory.allocate(4 * batch_size * dim)
    workspace = cuda.workspace("rh_pooled_lookup_workspace_cuda", lookup)
    cuda.call("rh_pooled_lookup_cuda", lookup, library.FeatureRows(out, dim), *workspace, None)
    cuda.call("rh_lookup_check_cuda", lookup, workspace[0], None, None)
    return memory.get(out, (batch_size, dim), np.float32)


@pytest.mark.parametrize("policy", [LRU, LFU])
def test_pooled_rows_are_the_same_bits_under_pressure(policy: int, cuda: Kernels, make: Make) -> None:
    """The recipe of rankhouse/row_cache.h, against a lookup over the whole table."""
    dim, table = 6, row_of(np.arange(500, dtype=np.uint64), 24).view(np.int32).astype(np.float32)
    rng = np.random.default_rng(1)
    cache, store = make(6000, 24, policy), Store(24)
    fetch = Fetcher(cuda, cache, store, 400)
    store.read = READ_ROWS(lambda _context, keys, n, rows: read_rows(table, keys, n, rows))
    all_rows = cuda.memory.put(table)
    requests = [rng.zipf(1.1, 400) % 500 for _ in range(5)]
    for ids in requests * 2:
        truth = pooled(cuda, all_rows, 500, np.where(ids == 7, -1, ids), dim)
        unique, inverse = np.unique(ids, return_inverse=True)
        fetch(cuda.memory.put(unique.astype(np.uint64)), len(unique))
        found = pooled(cuda, fetch.rows, len(unique), np.where(ids == 7, -1, inverse), dim)
        np.testing.assert_array_equal(found.view(np.uint32), truth.view(np.uint32))
    assert cache.counters().evicted > 0


def read_rows(table: NDArray[np.float32], keys: int, n: int, rows: int) -> int:
    wanted = np.ascontiguousarray(table[Host().get(keys, (n,), np.uint64).astype(np.int64)])
    ctypes.memmove(rows, wanted.ctypes.data, wanted.nbytes)
    return 0


def test_streams_share_a_cache(cuda: Kernels, make: Make) -> None:
    """Threads with streams of their own; in emulation, where nothing is parallel, one after the other."""
    cache, store = make(20_000, 64, LFU), Store(64)
    rng = np.random.default_rng(0)
    num_threads = 1 if isinstance(cuda.memory, Host) else 4
    keys = [[rng.zipf(1.2, 256).astype(np.uint64) for _ in range(8)] for _ in range(num_threads)]
    on_device = [[cuda.memory.put(batch) for batch in batches] for batches in keys]
    fetchers = [Fetcher(cuda, cache, store, 256, cuda.memory.new_stream()) for _ in range(num_threads)]

    def work(t: int) -> None:
        for address in on_device[t]:
            fetchers[t](address, 256)

    threads = [threading.Thread(target=work, args=(t,)) for t in range(num_threads)]
    for thread in threads:
        thread.start()
        if num_threads == 1:
            thread.join()
    for t, thread in enumerate(threads):
        thread.join(60)
        rows = cuda.memory.get(fetchers[t].rows, (256, 64), np.uint8)
        np.testing.assert_array_equal(rows, row_of(keys[t][-1], 64))
    counters = cache.counters()
    assert counters.hits + counters.misses == num_threads * 8 * 256


def test_a_store_that_fails_fails_the_fetch(cuda: Kernels, make: Make) -> None:
    cache = make(8000, 8, LRU)
    keys = cuda.memory.put(np.arange(10, dtype=np.uint64))
    with pytest.raises(KernelError):
        Fetcher(cuda, cache, Store(8, fails_with=18), 10)(keys, 10)
    assert cache.counters().num_rows == 0
    store = Store(8)
    Fetcher(cuda, cache, store, 10)(keys, 10)
    assert store.num_read == 10


def test_impossible_options_are_refused(make: Make) -> None:
    with pytest.raises(ArgumentError, match="capacity_bytes is -1: expected >= 0"):
        make(-1, 64, LRU)
    with pytest.raises(ArgumentError, match="row_bytes is 0: expected 1 to 2147483647"):
        make(1000, 0, LRU)
    with pytest.raises(ArgumentError, match="policy is 7: expected an rh_cache_policy"):
        make(1000, 64, 7)
    with pytest.raises(OutOfMemoryError, match=r"device 0 has no \d+ bytes for a cache"):
        make(2**44, 2**20, LRU)


def test_impossible_calls_are_refused(cuda: Kernels, make: Make) -> None:
    cache = make(8000, 8, LRU)
    keys = cuda.memory.put(np.zeros(3, np.uint64))
    with pytest.raises(ArgumentError, match="cache or num_missing is NULL"):
        cuda.call("rh_row_cache_find_cuda", cache.handle, keys, 3, keys, keys, None, None, 0, None)
    with pytest.raises(ArgumentError, match="keys, rows or missing is NULL, but there are 3 keys"):
        cuda.call("rh_row_cache_find_cuda", cache.handle, keys, 3, None, keys, keys, None, 0, None)
    with pytest.raises(ArgumentError, match="workspace is NULL"):
        cuda.call("rh_row_cache_insert_cuda", cache.handle, keys, 3, keys, None, 0, None)
    with pytest.raises(ArgumentError, match=r"workspace has 256 bytes: expected what the"):
        cuda.call("rh_row_cache_insert_cuda", cache.handle, keys, 3, keys, cuda.memory.allocate(256), 256, None)
    with pytest.raises(ArgumentError, match=rf"n is {2**31}: expected 0 to \d+ keys in a call on a GPU"):
        cuda.call("rh_row_cache_find_workspace_cuda", 2**31, ctypes.c_int64())
    with pytest.raises(ArgumentError, match="counters is NULL"):
        cuda.call("rh_row_cache_count_cuda", cache.handle, None, None)
    with pytest.raises(ArgumentError, match="cache or counters is NULL"):
        cuda.call("rh_row_cache_count_cuda", None, Counters(), None)


def test_small_host_memory_is_refused(cuda: Kernels, make: Make) -> None:
    fetch = Fetcher(cuda, make(8000, 8, LRU), Store(8), 10)
    fetch.host_bytes -= 1
    with pytest.raises(ArgumentError, match="host_memory has 159 bytes: expected 160, as"):
        fetch(cuda.memory.put(np.zeros(10, np.uint64)), 10)
