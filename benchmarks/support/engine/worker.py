"""One process of the engine's benchmark: has the candidates of one environment.

python -m benchmarks.support.engine.worker KIND THREADS
"""

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support.commands import serve, time_calls
from benchmarks.support.engine.candidate import Candidate
from benchmarks.support.engine.page_cache import drop, warm


class Worker:
    """What the commands do. One candidate is open at a time."""

    def __init__(self, kind: str, num_threads: int) -> None:
        self._kind, self._num_threads = kind, num_threads
        self._candidates: list[Candidate] = []

    def dataset(self, **arguments: Any) -> dict[str, Any]:
        """Makes the candidates for a dataset; says of those that cannot be made why."""
        if self._kind == "stores":
            self._candidates, notes = _python_stores(**arguments), []
        else:
            # Needs what only our own environment has.
            from benchmarks.support.engine.native_candidates import make_candidates

            self._candidates, notes = make_candidates(num_threads=self._num_threads, **arguments)
        return {
            "candidates": [
                {"name": each.name, "num_deltas": each.num_deltas, "in_files": each.in_files}
                for each in self._candidates
            ],
            "notes": notes,
        }

    def open(self, candidate: int, warmed: bool) -> dict[str, Any]:
        """Opens a candidate, with its files in the page cache."""
        self._open = self._candidates[candidate]
        if warmed:
            warm(self._open.files())
        self._open.open()
        return {}

    def close(self) -> dict[str, Any]:
        """Closes the open candidate."""
        self._open.close()
        return {}

    def batches(self, path: str) -> dict[str, Any]:
        """Gives the open candidate the batches in a file, int64 [K, F, B]."""
        self._ids = np.load(path)
        self._open.use(self._ids)
        return {}

    def result(self, batch: int, path: str) -> dict[str, Any]:
        """Looks a batch up and writes what that gives."""
        self._open.run(batch)
        np.save(path, self._open.result())
        return {}

    def time(self, seconds: float) -> dict[str, Any]:
        """Times the open candidate, where it is called through C from there; all batches were seen before."""
        for batch in range(len(self._ids)):
            self._open.run(batch)
        timed = self._open.timed()
        taken = time_calls(self._open.run, len(self._ids), seconds) if timed is None else timed.time(seconds)
        return {"seconds": taken}

    def time_new(self, num_seen: int) -> dict[str, Any]:
        """Times each batch from one on once, after those before it: a cache has seen only these."""
        for batch in range(num_seen):
            self._open.run(batch)
        taken = []
        for batch in range(num_seen, len(self._ids)):
            start = time.perf_counter()
            self._open.run(batch)
            taken.append(time.perf_counter() - start)
        return {"seconds": taken}

    def time_cold(self, candidate: int, batch: int, path: str) -> dict[str, Any]:
        """Times one request of a candidate whose files are not in the page cache."""
        each = self._candidates[candidate]
        drop(each.files())
        each.open()
        try:
            each.use(np.load(path, mmap_mode="r")[batch : batch + 1])
            start = time.perf_counter()
            each.run(0)
            return {"seconds": time.perf_counter() - start}
        finally:
            each.close()


def _python_stores(folder: str, rows_of_table: int, redis_url: str | None = None) -> list[Candidate]:
    # Their packages are in their own environment.
    from benchmarks.support.engine.python_stores import Lmdb, Redis, RocksDb

    if redis_url:
        return [Redis(redis_url, rows_of_table)]
    return [RocksDb(Path(folder) / "rocksdb", rows_of_table), Lmdb(Path(folder) / "lmdb", rows_of_table)]


if __name__ == "__main__":
    serve(lambda: Worker(sys.argv[1], int(sys.argv[2])))
