"""Lookups in an open version through C: no allocation and no conversion in a call."""

import ctypes
import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support.embedding.native_memory import allocate
from benchmarks.support.engine.timed_calls import Kind, TimedCalls
from rankhouse.embedding_cache import library
from rankhouse.kernels.library import Executor, FeatureRows
from rankhouse.kernels.library import load as load_kernels


class NativeEngine:
    """An engine through C.

    Args:
        options: As `rh_engine_create` takes them.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._library = library.load()
        self._handle = ctypes.c_void_p()
        library.check(self._library.rh_engine_create(json.dumps(options).encode(), ctypes.byref(self._handle)))

    def open(self, store: Path, name: str) -> ctypes.c_void_p:
        """Opens a version without verifying it; whoever asked closes it."""
        version = ctypes.c_void_p()
        arguments = self._handle, bytes(store), name.encode(), 0, ctypes.byref(version)
        library.check(self._library.rh_engine_open(*arguments))
        return version

    def close(self, version: ctypes.c_void_p) -> None:
        """Closes a version."""
        self._library.rh_engine_close(version)

    def destroy(self) -> None:
        """Ends the engine."""
        self._library.rh_engine_destroy(self._handle)


class VersionCalls:
    """Lookups of batches, one id in a bag.

    Args:
        version: An open version.
        ids: int64 [K, F, B].
        dim: D, of all tables.
        executor: Whose threads work.

    Attributes:
        out: What the last call gave, float32 [B, F * D].
        timed: A call for each batch.
    """

    def __init__(self, version: ctypes.c_void_p, ids: np.ndarray, dim: int, executor: Executor) -> None:
        num_batches, num_features, batch_size = ids.shape
        self._library, self._version, self._executor = library.load(), version, executor
        self._ids, self.out = allocate(*ids.shape, dtype=np.int64), allocate(batch_size, num_features * dim)
        self._ids[:] = ids
        begins = [self.out.ctypes.data + feature * dim * 4 for feature in range(num_features)]
        self._rows = (FeatureRows * num_features)(*((begin, num_features * dim) for begin in begins))
        self._hotness = (ctypes.c_int32 * num_features)(*[1] * num_features)
        self._answer = library.Answer()
        # Named, so that they live as long as the calls that point to them.
        self._batches = [
            library.Batch(
                ids=self._ids[batch].ctypes.data,
                hotness=ctypes.addressof(self._hotness),
                num_ids=num_features * batch_size,
                batch_size=batch_size,
            )
            for batch in range(num_batches)
        ]
        fixed = (ctypes.addressof(self._rows), ctypes.addressof(self._answer), ctypes.addressof(executor))
        arguments = [(version.value or 0, ctypes.addressof(batch), *fixed) for batch in self._batches]
        self.timed = TimedCalls(Kind.ENGINE_LOOKUP, self._library.rh_engine_lookup, arguments)

    def run(self, batch: int) -> None:
        """Looks one batch up."""
        given = ctypes.byref(self._batches[batch]), self._rows, ctypes.byref(self._answer)
        library.check(self._library.rh_engine_lookup(self._version, *given, ctypes.byref(self._executor)))


def make_executor(num_threads: int) -> Executor:
    """Makes threads and memory that calls use one after the other; they live as long as the process."""
    kernels, pool, scratch = load_kernels(), ctypes.c_void_p(), ctypes.c_void_p()
    library.check(kernels.rh_thread_pool_create(num_threads, ctypes.byref(pool)))
    library.check(kernels.rh_scratch_create(ctypes.byref(scratch)))
    parallel_for = ctypes.cast(kernels.rh_thread_pool_for, ctypes.c_void_p)
    return Executor(parallel_for, pool, num_threads, scratch)
