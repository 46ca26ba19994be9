import ctypes
import threading
from typing import Any

import numpy as np
import pytest

from rankhouse.kernels import arrays, library
from rankhouse.kernels.errors import ArgumentError, OutOfMemoryError
from rankhouse.kernels.executor import Executor
from tests.kernels.batches import Batch, make_batch

RANGE_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def small_batch(seed: int = 2) -> Batch:
    return make_batch(seed, shapes=[(50, 16), (400, 7)], feature_tables=[0, 1], batch_size=700)


def look_up(batch: Batch, threads: Any) -> bytes:
    return arrays.pooled_lookup(batch.tables, batch.ids, batch.offsets, **batch.lookup, num_threads=threads).tobytes()


@pytest.mark.parametrize("num_threads", [1, 2, 5, None])
def test_calls_share_an_executor(num_threads: int | None) -> None:
    with Executor(num_threads) as executor:
        for seed in range(5):
            batch = small_batch(seed)
            assert look_up(batch, executor) == look_up(batch, 1)
            ours = arrays.pooled_lookup_gradient(
                batch.grad, batch.ids, batch.offsets, tables_shape=batch.tables_shape, **batch.lookup,
                num_threads=executor,
            )  # fmt: skip
            theirs = arrays.pooled_lookup_gradient(
                batch.grad, batch.ids, batch.offsets, tables_shape=batch.tables_shape, **batch.lookup
            )
            assert [g.rows.tobytes() for g in ours] == [g.rows.tobytes() for g in theirs]


def test_threads_with_executors_of_their_own_do_not_meet() -> None:
    batch = small_batch()
    expected = look_up(batch, 1)
    results: list[bytes] = []

    def work() -> None:
        with Executor(2) as executor:
            results.extend(look_up(batch, executor) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [expected] * 60


def run_on_pool(pool: Any, total: int, cost: int, hits: list[int], *, again: bool = False) -> None:
    def body(_: Any, begin: int, end: int) -> None:
        for i in range(begin, end):
            hits[i] += 1
        if again:
            run_on_pool(pool, 3, cost, inner)

    inner = [0] * 3
    kept = RANGE_BODY(body)
    library.load().rh_thread_pool_for(pool, total, cost, ctypes.cast(kept, ctypes.c_void_p), None)
    assert not again or min(inner) == max(inner) >= 1


@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_a_pool_does_each_unit_once_for_several_callers(num_threads: int) -> None:
    kernels = library.load()
    pool = ctypes.c_void_p()
    library.check(kernels.rh_thread_pool_create(num_threads, ctypes.byref(pool)))
    all_hits: list[list[int]] = [[0] * total for total in (0, 1, 2, 7, 100)]

    def call(hits: list[int]) -> None:
        for _ in range(10):
            run_on_pool(pool, len(hits), 10**6, hits)
            run_on_pool(pool, len(hits), 1, hits)

    threads = [threading.Thread(target=call, args=(hits,)) for hits in all_hits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    kernels.rh_thread_pool_destroy(pool)
    assert all_hits == [[20] * len(hits) for hits in all_hits]


def test_a_pool_can_be_used_from_its_own_work() -> None:
    kernels = library.load()
    pool = ctypes.c_void_p()
    library.check(kernels.rh_thread_pool_create(2, ctypes.byref(pool)))
    hits = [0] * 50
    run_on_pool(pool, 50, 10**6, hits, again=True)
    kernels.rh_thread_pool_destroy(pool)
    assert hits == [1] * 50


def test_a_pool_can_be_used_from_its_own_work_after_another_pool_was() -> None:
    kernels = library.load()
    outer, inner = ctypes.c_void_p(), ctypes.c_void_p()
    for pool in (outer, inner):
        library.check(kernels.rh_thread_pool_create(2, ctypes.byref(pool)))
    hits = [0] * 4

    def body(_: Any, begin: int, end: int) -> None:
        for pool in (inner, outer):
            run_on_pool(pool, end - begin, 10**6, again := [0] * (end - begin))
            hits[begin:end] = map(sum, zip(hits[begin:end], again, strict=True))

    kept = RANGE_BODY(body)
    kernels.rh_thread_pool_for(outer, len(hits), 10**6, ctypes.cast(kept, ctypes.c_void_p), None)
    for pool in (outer, inner):
        kernels.rh_thread_pool_destroy(pool)
    assert hits == [2] * len(hits)


def test_an_executor_serves_one_call_at_a_time() -> None:
    kernels = library.load()
    with Executor(2) as executor:
        native = executor.native()
        errors: list[str] = []

        # A parallel_for in the midst of a call, which makes a second one with the same scratch.
        @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
        def call_again(context: int, total: int, cost: int, body: int, argument: int) -> None:
            try:
                look_up(small_batch(), executor)
            except ArgumentError as exc:
                errors.append(str(exc))
            ctypes.cast(body, RANGE_BODY)(argument, 0, total)

        native.parallel_for = ctypes.cast(call_again, ctypes.c_void_p)
        table = np.ones((3, 2), np.float32)
        ids, offsets, out = np.zeros(2, np.int64), np.array([0, 2]), np.zeros(2, np.float32)
        zeros = (ctypes.c_int32 * 1)(0)
        lookup = library.Lookup(
            tables=(library.Table * 1)(library.Table(table.ctypes.data, 3, 2)), num_tables=1, feature_tables=zeros,
            combiners=zeros, num_features=1, ids=ids.ctypes.data, num_ids=2, offsets=offsets.ctypes.data, batch_size=1,
        )  # fmt: skip
        rows = (library.FeatureRows * 1)(library.FeatureRows(out.ctypes.data, 2))
        library.check(kernels.rh_pooled_lookup(lookup, rows, None, native))
    np.testing.assert_array_equal(out, [2, 2])
    assert len(errors) == 1
    assert "scratch is in use by another call: give each call" in errors[0]


def test_a_closed_executor_is_refused() -> None:
    executor = Executor(1)
    executor.close()
    executor.close()
    with pytest.raises(ArgumentError, match="the executor is closed"):
        look_up(small_batch(), executor)


@pytest.mark.parametrize("num_threads", [0, -1, 2**31])
def test_executors_refuse_other_numbers_of_threads(num_threads: int) -> None:
    with pytest.raises(ArgumentError, match=f"num_threads is {num_threads}: expected at least 1"):
        Executor(num_threads)


@pytest.mark.parametrize("num_bytes", [0, 1, 4096, 5000, 2**21 - 1, 2**21, 5 * 2**20 + 3])
def test_allocated_memory_is_aligned_and_zeroed(num_bytes: int) -> None:
    kernels = library.load()
    memory = ctypes.c_void_p(1)
    library.check(kernels.rh_allocate(num_bytes, ctypes.byref(memory)))
    address = memory.value or 0
    assert address % 2**21 == 0
    assert (address == 0) == (num_bytes == 0)
    assert bytes((ctypes.c_char * num_bytes).from_address(address)) == bytes(num_bytes) if num_bytes else True
    library.check(kernels.rh_advise_huge_pages(memory, num_bytes))
    kernels.rh_free(memory, num_bytes)


def test_memory_refuses_sizes_that_make_no_sense() -> None:
    kernels = library.load()
    memory = ctypes.c_void_p()
    with pytest.raises(ArgumentError, match="bytes is -1: expected >= 0"):
        library.check(kernels.rh_allocate(-1, ctypes.byref(memory)))
    with pytest.raises(OutOfMemoryError, match="the system has no 9223372036854775807 bytes"):
        library.check(kernels.rh_allocate(2**63 - 1, ctypes.byref(memory)))
    with pytest.raises(ArgumentError, match="memory is NULL"):
        library.check(kernels.rh_advise_huge_pages(None, 1))
