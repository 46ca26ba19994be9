"""Deltas over a large version, written by a process of low priority, as a trainer on another machine would."""

import os
import shutil
import time
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

from benchmarks.support.engine.dataset import NUM_FEATURES, Dataset, golden_requests
from rankhouse.embedding_cache.format.content import DeltaContent
from rankhouse.embedding_cache.format.records import TableDelta
from rankhouse.embedding_cache.format.store_layout import VERSIONS
from rankhouse.embedding_cache.format.version import VersionStore

_LOWEST_PRIORITY = 19


@dataclass(frozen=True)
class Export:
    """A delta that was written. Times are unix seconds.

    Attributes:
        version: The version's name.
        begin: When writing began.
        appeared: When its folder got its name, so that it could be found.
    """

    version: str
    begin: float
    appeared: float


class Exporter:
    """Writes deltas, each over the newest version. Use as a context manager.

    Args:
        dataset: What the first version is; each delta has some of its rows, as they are.
        folder: Gets the store: links to the first version's files, and the deltas.
        share: Of the rows that a delta changes.
    """

    def __init__(self, dataset: Dataset, folder: Path, *, share: float) -> None:
        self.store = folder
        self._dataset, self._share = dataset, share
        shutil.copytree(dataset.store, folder, copy_function=os.link)
        self._pool = ProcessPoolExecutor(
            1, mp_context=get_context("spawn"), initializer=os.nice, initargs=(_LOWEST_PRIORITY,)
        )

    def export(self) -> "Future[Export]":
        """Begins to write the next one."""
        return self._pool.submit(_export, self._dataset, self.store, self._share)

    def warm(self) -> None:
        """Has the process ready, with the rows in memory."""
        self._pool.submit(_deltas, self._dataset, self._share).result()

    def __enter__(self) -> "Exporter":
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)


# What follows runs in the process.


@lru_cache(maxsize=1)
def _deltas(dataset: Dataset, share: float) -> list[TableDelta]:
    changing = Dataset(dataset.folder, dataset.tables, (share,), dataset.is_servable)
    deltas = []
    for table in range(NUM_FEATURES):
        ids = changing.changed(table, 1)
        # The values that the rows have: so the golden requests' scores stay.
        deltas.append(TableDelta(f"c{table:02}", dataset.tables.rows, ids, [dataset.rows(table, ids, 0)]))
    return deltas


def _export(dataset: Dataset, folder: Path, share: float) -> Export:
    deltas, golden, store = _deltas(dataset, share), golden_requests(dataset, 0), VersionStore(folder)
    parts = dataset.folder / "parts"
    content = DeltaContent(dense=parts / "dense.onnx", transform=parts, num_dense=1, tables=deltas, golden=golden)
    begin = time.time()
    version = store.write_delta(content, store.read(store.names()[-1]))
    return Export(version.name, begin, (folder / VERSIONS / version.name).stat().st_ctime)
