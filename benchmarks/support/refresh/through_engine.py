"""Refreshes through the engine: one thread looks up without a pause, this one opens, switches and closes."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.support.embedding.cells import Cell, make_ids
from benchmarks.support.engine.dataset import Dataset
from benchmarks.support.refresh.figures import Refresh
from rankhouse.embedding_cache.engine import Engine, OpenVersion

REST_SECONDS, SETTLE_SECONDS = 2.0, 0.2
# A refresh is over in milliseconds: so that there are requests to judge it by, it is done so many times in a round.
REFRESHES_OF_ROUND = 20


@dataclass
class Lookups:
    """A thread that looks batches up in the current version. `done` has (version, due, seconds) of each."""

    batches: list[np.ndarray]
    lengths: np.ndarray
    version: OpenVersion
    done: list[tuple[OpenVersion, float, float]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    is_over: bool = False

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Keeps the thread at work for the time of a `with`."""
        thread = threading.Thread(target=self._work)
        thread.start()
        try:
            yield
        finally:
            self.is_over = True
            thread.join()

    def between(self, begin: float, end: float) -> list[float]:
        """Returns the seconds of lookups that were under way at some moment between two."""
        return [seconds for _, due, seconds in self.done if due + seconds > begin and due < end]

    def switch(self, version: OpenVersion) -> float:
        """Switches to a version; returns the seconds until its first answer, after which the one before is not used."""
        since, self.version = time.perf_counter(), version
        while True:
            for looked_up, due, seconds in self.done[-100:]:
                if looked_up is version and due >= since:
                    return due + seconds - since
            time.sleep(0.0001)

    def _work(self) -> None:
        while not self.is_over:
            version, batch = self.version, self.batches[len(self.done) % len(self.batches)]
            due = time.perf_counter()
            try:
                version.lookup(batch, self.lengths)
            except Exception as exc:
                self.failures.append(f"{type(exc).__name__}: {exc}")
            self.done.append((version, due, time.perf_counter() - due))


@dataclass(frozen=True)
class Chain:
    """The versions to switch between. Names are found beforehand: that is Python, which only one thread can run."""

    engine: Engine
    store: Path
    names: list[str]

    def open(self, number: int) -> OpenVersion:
        """Opens one."""
        return self.engine.open(self.store, self.names[number], verify=False)


def time_engine(dataset: Dataset, *, candidates: int, rounds: int) -> list[Refresh]:
    """Returns a refresh for each share and round."""
    ids = make_ids(Cell(dataset.tables, candidates, 1, "zipf"))[..., 0]
    batches = [np.ascontiguousarray(batch.ravel()) for batch in ids]
    lengths = np.ones(ids.shape[1:], np.int32)
    refreshes = []
    names = [dataset.version(number).name for number in range(len(dataset.shares) + 1)]
    chain = Chain(Engine(num_threads=1), dataset.store, names)
    for number, share in enumerate(dataset.shares):
        for _ in range(rounds):
            lookups = Lookups(batches, lengths, chain.open(number))
            try:
                refreshes.append(_refresh(chain, lookups, number, share))
            finally:
                lookups.version.close()
    return refreshes


def _refresh(chain: Chain, lookups: Lookups, number: int, share: float) -> Refresh:
    """Switches from a version to the one after it and back, again and again."""
    during: list[float] = []
    taken: dict[str, list[float]] = {"open": [], "close": [], "back": [], "back_closed": []}
    with lookups.going_on():
        time.sleep(SETTLE_SECONDS)
        rest = time.perf_counter()
        time.sleep(REST_SECONDS)
        at_rest = lookups.between(rest, time.perf_counter())
        for _ in range(REFRESHES_OF_ROUND):
            old, begin = lookups.version, time.perf_counter()
            new = chain.open(number + 1)
            taken["open"].append(time.perf_counter() - begin)
            lookups.switch(new)
            taken["back"].append(lookups.switch(old))
            lookups.switch(new)
            close = time.perf_counter()
            old.close()
            end = time.perf_counter()
            taken["close"].append(end - close)
            during += lookups.between(begin, end)
            time.sleep(SETTLE_SECONDS)
            again = time.perf_counter()
            old = chain.open(number)
            taken["back_closed"].append(time.perf_counter() - again + lookups.switch(old))
            new.close()
            time.sleep(SETTLE_SECONDS)
    means = {f"{name}_seconds": float(np.median(seconds)) for name, seconds in taken.items()}
    return Refresh("engine", share, at_rest, during, **means, num_failed=len(lookups.failures))
