"""RocksDB and LMDB through C: compiles the few functions of key_value.h over each and calls them."""

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.support.embedding.native_memory import allocate
from benchmarks.support.engine.candidate import files_below, row_numbers
from benchmarks.support.engine.dataset import Dataset
from benchmarks.support.engine.timed_calls import Kind, TimedCalls

SOURCES = Path(__file__).parent
BUILT = Path(__file__).parents[3] / "build" / "bench"
# Name, library, and the Debian package that it needs to be compiled.
STORES = (("lmdb", "liblmdb-dev"), ("rocksdb", "librocksdb-dev"))


class StoreMissingError(Exception):
    """A store's library is not there to be compiled against, or the store could not be made."""


def load(store: str, package: str) -> ctypes.CDLL:
    """Compiles the functions of a store and loads them.

    Raises:
        StoreMissingError: The compiler failed; the message is its first line.
    """
    BUILT.mkdir(parents=True, exist_ok=True)
    built = BUILT / f"{store}_store.so"
    source = SOURCES / f"{store}_store.c"
    command = ["cc", "-O3", "-march=native", "-Wall", "-Werror", "-shared", "-fPIC", str(source), "-o", str(built)]
    command.append(f"-l{store}")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        first = (done.stderr.splitlines() or [""])[0]
        raise StoreMissingError(f"{store} cannot be compiled against, on Debian it is in {package}: {first}")
    library = ctypes.CDLL(str(built))
    library.kv_open.restype = ctypes.c_void_p
    return library


class CStore:
    """A store through C, with its results in one place."""

    num_deltas, in_files = 0, True

    def __init__(self, store: str, package: str, dataset: Dataset) -> None:
        self.name = f"{'LMDB' if store == 'lmdb' else 'RocksDB'}, C"
        self._library = load(store, package)
        self._dataset = dataset
        self._path = dataset.folder / store
        self._handle = ctypes.c_void_p()

    def build(self) -> None:
        """Makes the store from the file of rows, unless it is there.

        Raises:
            StoreMissingError: The store refused.
        """
        complete = self._path.with_suffix(".complete")
        if complete.exists():
            return
        self._path.mkdir(exist_ok=True)
        tables = self._dataset.tables
        rows = np.memmap(self._dataset.rows_file, np.float32, "r")
        shape = ctypes.c_int64(tables.num_tables * tables.rows), ctypes.c_int64(tables.dim)
        status = self._library.kv_build(str(self._path).encode(), ctypes.c_void_p(rows.ctypes.data), *shape)
        if status:
            raise StoreMissingError(f"{self._path}: the store could not be made: status {status}; remove it")
        complete.touch()

    def open(self) -> None:
        """Opens the store."""
        self._handle = ctypes.c_void_p(self._library.kv_open(str(self._path).encode()))
        if not self._handle:
            raise StoreMissingError(f"{self._path}: the store could not be opened; remove it")

    def close(self) -> None:
        """Closes the store."""
        self._library.kv_close(self._handle)

    def files(self) -> Sequence[Path]:
        """The store's files."""
        return list(files_below(self._path))

    def use(self, ids: np.ndarray) -> None:
        """Takes batches."""
        num_batches, num_features, batch_size = ids.shape
        dim = self._dataset.tables.dim
        self._keys = row_numbers(ids, self._dataset.tables.rows)
        self._out = allocate(batch_size, num_features * dim)
        count = num_features * batch_size
        handle, out = self._handle.value or 0, self._out.ctypes.data
        self._arguments = [(handle, self._keys[batch].ctypes.data, count, 4 * dim, out) for batch in range(num_batches)]

    def run(self, batch: int) -> None:
        """Looks one batch up."""
        if self._library.kv_lookup(*map(ctypes.c_void_p, self._arguments[batch])):
            raise StoreMissingError(f"{self._path}: a row could not be read; remove the store")

    def timed(self) -> TimedCalls:
        """The calls."""
        return TimedCalls(Kind.STORE_LOOKUP, self._library.kv_lookup, self._arguments)

    def result(self) -> np.ndarray:
        """The rows."""
        return self._out
