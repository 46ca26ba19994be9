"""RocksDB, LMDB and Redis through their packages from PyPI. Imports nothing of ours: it runs in their environment."""

from collections.abc import Sequence
from pathlib import Path

import lmdb
import numpy as np
import redis
import rocksdict

from benchmarks.support.engine.candidate import files_below, row_numbers

KEY_BYTES = 8
# Keys in one MGET; larger answers make the server wait for its buffers.
MGET_KEYS = 1024


class PythonStore:
    """What the stores have in common: keys of batches, and results that are joined to one array."""

    num_deltas, in_files = 0, True
    name = ""

    def __init__(self, path: Path, rows_of_table: int) -> None:
        self._path, self._rows_of_table = path, rows_of_table
        self._last = np.empty(0, np.float32)

    def files(self) -> Sequence[Path]:
        """The store's files."""
        return list(files_below(self._path))

    def use(self, ids: np.ndarray) -> None:
        """Takes batches."""
        self._batch_size = ids.shape[2]
        self._keys = [self._keys_of(batch.ravel()) for batch in row_numbers(ids, self._rows_of_table)]

    def run(self, batch: int) -> None:
        """Looks one batch up and joins the rows, as whoever scores them needs them."""
        self._last = np.frombuffer(b"".join(self._values(self._keys[batch])), np.float32)

    def timed(self) -> None:
        """None: it is Python that is timed."""

    def result(self) -> np.ndarray:
        """The rows."""
        return self._last.reshape(self._batch_size, -1)

    def _keys_of(self, numbers: np.ndarray) -> list[bytes]:
        data = numbers.astype(">u8").tobytes()
        return [data[begin : begin + KEY_BYTES] for begin in range(0, len(data), KEY_BYTES)]

    def _values(self, keys: list[bytes]) -> Sequence[bytes]:
        raise NotImplementedError


class Lmdb(PythonStore):
    """LMDB: a transaction for each request, one `get` for each row."""

    name = "LMDB, Python"

    def open(self) -> None:
        """Opens the store."""
        self._env = lmdb.open(str(self._path), readonly=True, lock=False, readahead=False, subdir=True)

    def close(self) -> None:
        """Closes the store."""
        self._env.close()

    def _keys_of(self, numbers: np.ndarray) -> list[bytes]:
        data = numbers.astype("=u8").tobytes()
        return [data[begin : begin + KEY_BYTES] for begin in range(0, len(data), KEY_BYTES)]

    def _values(self, keys: list[bytes]) -> Sequence[bytes]:
        with self._env.begin() as transaction:
            get = transaction.get
            return [get(key) for key in keys]


class RocksDb(PythonStore):
    """RocksDB by rocksdict: a list of keys for each request."""

    name = "RocksDB, Python"

    def open(self) -> None:
        """Opens the store with the options that it has through C."""
        options, table = rocksdict.Options(raw_mode=True), rocksdict.BlockBasedOptions()
        table.set_block_cache(rocksdict.Cache(4 << 30))
        table.set_bloom_filter(10, False)
        table.set_data_block_index_type(rocksdict.DataBlockIndexType.binary_and_hash())
        options.set_block_based_table_factory(table)
        options.set_max_open_files(-1)
        reading = rocksdict.ReadOptions()
        reading.set_verify_checksums(False)
        self._db = rocksdict.Rdict(str(self._path), options, access_type=rocksdict.AccessType.read_only())
        self._db.set_read_options(reading)

    def close(self) -> None:
        """Closes the store."""
        self._db.close()

    def _values(self, keys: list[bytes]) -> Sequence[bytes]:
        return self._db[keys]


class Redis(PythonStore):
    """Redis: the request's rows by MGETs in one pipeline."""

    name, in_files = "Redis MGET, Python", False

    def __init__(self, url: str, rows_of_table: int) -> None:
        super().__init__(Path(), rows_of_table)
        self._url = url

    def open(self) -> None:
        """Connects."""
        self._client = redis.Redis.from_url(self._url)

    def close(self) -> None:
        """Disconnects."""
        self._client.close()

    def files(self) -> Sequence[Path]:
        """None."""
        return []

    def _values(self, keys: list[bytes]) -> Sequence[bytes]:
        pipeline = self._client.pipeline(transaction=False)
        for begin in range(0, len(keys), MGET_KEYS):
            pipeline.mget(keys[begin : begin + MGET_KEYS])
        return [value for values in pipeline.execute() for value in values]
