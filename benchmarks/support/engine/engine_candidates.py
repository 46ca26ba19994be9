"""Our engine, through C with everything preallocated and through Python, and what bounds it on the same rows."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support.embedding import gather_loop
from benchmarks.support.embedding.native_memory import allocate
from benchmarks.support.engine.candidate import files_below, row_numbers
from benchmarks.support.engine.dataset import Dataset
from benchmarks.support.engine.timed_calls import Kind, TimedCalls
from benchmarks.support.engine.version_calls import NativeEngine, VersionCalls, make_executor
from rankhouse.embedding_cache.engine import Engine

# Of the rows' bytes, in front of Redis.
CACHED_SHARES = (0.1, 0.5)
# Of a lookup, which may have 100,000 rows to fetch where the cache is cold.
DEADLINE_MS = 5000


class ThroughC:
    """The engine through C: no allocation and no conversion in a call."""

    def __init__(self, dataset: Dataset, *, memory: str, num_deltas: int, num_threads: int) -> None:
        self.name = f"Rankhouse {memory}" + (f", {num_deltas} delta{'s' * (num_deltas > 1)}" if num_deltas else "")
        self.num_deltas, self.in_files = num_deltas, memory == "map"
        self._dataset = dataset
        self._options: dict[str, Any] = {"memory": memory, "num_threads": num_threads}
        self._executor = make_executor(num_threads)

    def open(self) -> None:
        """Opens the version in an engine of its own."""
        self._engine = NativeEngine(self._options)
        self._version = self._engine.open(self._store, self._dataset.version(self.num_deltas).name)

    def close(self) -> None:
        """Closes version and engine."""
        self._engine.close(self._version)
        self._engine.destroy()

    def files(self) -> Sequence[Path]:
        """The store's shared files."""
        return list(files_below(self._dataset.store / "segments"))

    def use(self, ids: np.ndarray) -> None:
        """Takes batches."""
        self._calls = VersionCalls(self._version, ids, self._dataset.tables.dim, self._executor)

    def run(self, batch: int) -> None:
        """Looks one batch up."""
        self._calls.run(batch)

    def timed(self) -> TimedCalls:
        """The calls."""
        return self._calls.timed

    def result(self) -> np.ndarray:
        """The rows."""
        return self._calls.out

    @property
    def _store(self) -> Path:
        return self._dataset.store


class ThroughPython:
    """The engine as a Python program calls it."""

    name, num_deltas, in_files = "Rankhouse map, Python", 0, True

    def __init__(self, dataset: Dataset, *, num_threads: int) -> None:
        self._dataset, self._num_threads = dataset, num_threads

    def open(self) -> None:
        """Opens the version in an engine of its own."""
        version = self._dataset.version(0)
        self._version = Engine(num_threads=self._num_threads).open(version.store, version.name, verify=False)

    def close(self) -> None:
        """Closes the version; nothing else holds the engine."""
        self._version.close()

    def files(self) -> Sequence[Path]:
        """The store's shared files."""
        return list(files_below(self._dataset.store / "segments"))

    def use(self, ids: np.ndarray) -> None:
        """Takes batches."""
        self._ids = [np.ascontiguousarray(batch.ravel()) for batch in ids]
        self._lengths = np.ones(ids.shape[1:], np.int32)
        self._out = allocate(ids.shape[2], self._version.embeddings_dim)

    def run(self, batch: int) -> None:
        """Looks one batch up, into memory that is there already, as NumPy does."""
        self._version.lookup(self._ids[batch], self._lengths, out=self._out)

    def timed(self) -> None:
        """None: it is Python that is timed."""

    def result(self) -> np.ndarray:
        """The rows."""
        return self._out


class RedisTier(ThroughC):
    """The engine on a version whose rows are in Redis, with a row cache on this host."""

    def __init__(self, dataset: Dataset, *, url: str, cached_share: float, num_threads: int) -> None:
        super().__init__(dataset, memory="map", num_deltas=0, num_threads=num_threads)
        self.name, self.in_files = f"Rankhouse Redis tier, cache of {cached_share:.0%}", False
        cache_bytes = int(dataset.tables.num_bytes * cached_share)
        redis = {"url": url, "deadline_ms": DEADLINE_MS}
        self._options = {"num_threads": num_threads, "rows": "redis", "redis": redis, "cache_bytes": cache_bytes}
        self._mirror = tempfile.TemporaryDirectory()
        # Of the store, all but the rows, which so can come from nowhere else.
        for file in dataset.version(0).files(tables=False):
            copy = self._store / file
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(dataset.store / file, copy)
        manifest = Path("versions") / dataset.version(0).name / "manifest.json"
        shutil.copy(dataset.store / manifest, self._store / manifest)

    def files(self) -> Sequence[Path]:
        """None."""
        return []

    @property
    def _store(self) -> Path:
        return Path(self._mirror.name)


class GatherLimit:
    """The C loop over rows in huge pages, or over the mapped files."""

    num_deltas, in_files = 0, False

    def __init__(self, dataset: Dataset, *, in_huge_pages: bool, num_threads: int) -> None:
        self.name = "C loop" if in_huge_pages else "C loop, mapped"
        self._dataset, self._in_huge_pages, self._num_threads = dataset, in_huge_pages, num_threads
        self._library = gather_loop.load()

    def open(self) -> None:
        """Maps the rows, or copies them into memory."""
        version = self._dataset.version(0)
        mapped = [version.table_rows(table.name).segments[0] for table in version.tables]
        self._tables = [_copied(rows) for rows in mapped] if self._in_huge_pages else mapped

    def close(self) -> None:
        """Lets go of the rows."""
        self._tables = []

    def files(self) -> Sequence[Path]:
        """The store's shared files."""
        return list(files_below(self._dataset.store / "segments"))

    def use(self, ids: np.ndarray) -> None:
        """Takes batches."""
        _, num_features, batch_size = ids.shape
        own = allocate(*ids.shape, 1, dtype=np.int64)
        own[:] = ids[..., None]
        self._out = allocate(batch_size, num_features * self._dataset.tables.dim)
        pointers = [table.ctypes.data for table in self._tables]
        self._loop = gather_loop.GatherLoop(
            self._library, pointers, own, self._out, num_threads=self._num_threads, streaming=False
        )

    def run(self, batch: int) -> None:
        """Looks one batch up."""
        self._loop.run(batch)

    def timed(self) -> TimedCalls:
        """The calls."""
        return TimedCalls(Kind.GATHER_LOOP, self._library.gather_loop, self._loop.arguments())

    def result(self) -> np.ndarray:
        """The rows."""
        return self._out


class MappedNumPy:
    """NumPy on all rows as one mapped file."""

    name, num_deltas, in_files = "NumPy, mapped", 0, True

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def open(self) -> None:
        """Maps the file."""
        self._rows = np.memmap(self._dataset.rows_file, np.float32, "r").reshape(-1, self._dataset.tables.dim)

    def close(self) -> None:
        """Unmaps it."""
        self._rows = np.empty((0, 0), np.float32)

    def files(self) -> Sequence[Path]:
        """The file."""
        return [self._dataset.rows_file]

    def use(self, ids: np.ndarray) -> None:
        """Takes batches."""
        self._numbers = list(row_numbers(ids, self._dataset.tables.rows))
        self._out = allocate(*self._numbers[0].shape, self._dataset.tables.dim)

    def run(self, batch: int) -> None:
        """Looks one batch up; its ids are clipped, because that is faster than to check them."""
        self._rows.take(self._numbers[batch], axis=0, out=self._out, mode="clip")

    def timed(self) -> None:
        """None: it is Python that is timed."""

    def result(self) -> np.ndarray:
        """The rows."""
        return self._out.reshape(len(self._out), -1)


def _copied(rows: np.ndarray) -> np.ndarray:
    copy = allocate(*rows.shape)
    copy[:] = rows
    return copy
