"""The machine's limit: compiles gather_loop.c for this machine and calls it."""

import ctypes
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import ClassVar

import numpy as np

CHECKOUT = Path(__file__).parents[3]
SOURCE = Path(__file__).with_name("gather_loop.c")
BUILT = CHECKOUT / "build" / "bench" / "gather_loop.so"
# Ids ahead that are tried, by the width of a row.
DISTANCES = {16: (0, 8, 16, 32, 64), 128: (0, 2, 4, 8, 16)}
# Each is tried so many times at least, and for so long.
TRIES, TRY_SECONDS = 5, 0.01


class _Task(ctypes.Structure):
    _fields_: ClassVar = [
        ("tables", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("num_features", ctypes.c_int64),
        ("batch_size", ctypes.c_int64),
        ("hotness", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("distance", ctypes.c_int64),
        ("streaming", ctypes.c_int64),
    ]


def load() -> ctypes.CDLL:
    """Compiles the loop for the processor at hand and loads it.

    Raises:
        subprocess.CalledProcessError: There is no C compiler, or it failed; its message is above.
    """
    BUILT.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["cc", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC", str(SOURCE), "-o", str(BUILT)], check=True
    )
    return ctypes.CDLL(str(BUILT))


class GatherLoop:
    """Forward sum pooling of one cell's batches into one output, with the best prefetch distance of those tried."""

    def __init__(
        self,
        library: ctypes.CDLL,
        tables: list[int],
        ids: np.ndarray,
        out: np.ndarray,
        *,
        num_threads: int,
        streaming: bool,
    ) -> None:
        num_batches, num_features, batch_size, hotness = ids.shape
        dim = out.shape[1] // num_features
        self._call, self._num_threads, self._num_batches = library.gather_loop, num_threads, num_batches
        # Whom the task points to.
        self._kept = (ids, out, (ctypes.c_void_p * num_features)(*tables))
        self._batch_bytes = ids[0].nbytes
        self._first_ids = ids.ctypes.data
        self._task = _Task(
            ctypes.addressof(self._kept[2]), ids.ctypes.data, out.ctypes.data,
            num_features, batch_size, hotness, dim, 0, streaming,
        )  # fmt: skip
        self._task_pointer = ctypes.byref(self._task)
        self.distance = min(DISTANCES[dim], key=self._try)
        self._task.distance = self.distance

    def run(self, batch: int) -> None:
        """Looks one batch up."""
        self._task.ids = self._first_ids + batch * self._batch_bytes
        self._call(self._task_pointer, self._num_threads)

    def arguments(self) -> list[tuple[int, int]]:
        """Returns the arguments of the loop for each batch; they live as long as this."""
        self._tasks = [_Task.from_buffer_copy(self._task) for _ in range(self._num_batches)]
        for batch, task in enumerate(self._tasks):
            task.ids = self._first_ids + batch * self._batch_bytes
        return [(ctypes.addressof(task), self._num_threads) for task in self._tasks]

    def _try(self, distance: int) -> float:
        self._task.distance = distance
        taken: list[float] = []
        while len(taken) < TRIES or sum(taken) < TRY_SECONDS:
            taken.append(_seconds(self.run, len(taken) % self._num_batches))
        return median(taken)


def _seconds(run: Callable[[int], None], batch: int) -> float:
    start = time.perf_counter()
    run(batch)
    return time.perf_counter() - start
