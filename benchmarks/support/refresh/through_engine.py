"""Refreshes through the engine: a thread in C looks up without a pause, this one opens, switches and closes."""

import ctypes
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.support.embedding.cells import Cell, make_ids
from benchmarks.support.engine.dataset import Dataset
from benchmarks.support.engine.timed_calls import Caller
from benchmarks.support.engine.version_calls import NativeEngine, VersionCalls, make_executor
from benchmarks.support.refresh.figures import Refresh

REST_SECONDS, SETTLE_SECONDS = 2.0, 0.2
# A refresh is over in milliseconds: so that there are requests to judge it by, it is done so many times in a round.
REFRESHES_OF_ROUND = 20
# More than there can be in a round.
MOST_LOOKUPS = 1 << 23
FIRST_ANSWER_SECONDS = 30.0


@dataclass(frozen=True)
class Chain:
    """The versions to switch between. Their names are found beforehand."""

    engine: NativeEngine
    store: Path
    names: list[str]

    def open(self, number: int) -> ctypes.c_void_p:
        """Opens one."""
        return self.engine.open(self.store, self.names[number])


class Lookups:
    """A thread that looks batches up in the current version.

    Args:
        calls: Of any version; they are made of the current one.
        version: The first one.
    """

    def __init__(self, calls: VersionCalls, version: ctypes.c_void_p) -> None:
        self._calls = calls
        self.version = version
        self.caller = Caller(calls.timed.of(version.value or 0), MOST_LOOKUPS)

    def between(self, begin: int, end: int) -> npt.NDArray[np.float64]:
        """Returns the seconds of lookups that were under way at some moment between two, in nanoseconds."""
        made = self.caller.made()
        first = max(0, int(np.searchsorted(made[:, 0], begin)) - 1)
        own = made[first : int(np.searchsorted(made[:, 0], end))]
        return own[own[:, 0] + own[:, 1] > begin, 1] * 1e-9

    def switch(self, version: ctypes.c_void_p) -> float:
        """Switches to a version; returns the seconds until its first answer, after which the one before is not used.

        Raises:
            TimeoutError: None came in half a minute.
        """
        calls, num_made = self._calls.timed.of(version.value or 0), len(self.caller.made())
        since = time.perf_counter_ns()
        number, self.version = self.caller.change(calls), version
        while time.perf_counter_ns() - since < FIRST_ANSWER_SECONDS * 1e9:
            own = self.caller.made(num_made)
            first = int(np.searchsorted(own[:, 2], number))
            if first < len(own):
                return float(own[first, 0] + own[first, 1] - since) * 1e-9
            time.sleep(0.0001)
        raise TimeoutError(f"no lookup of the new version within {FIRST_ANSWER_SECONDS:g} s")


def time_engine(dataset: Dataset, *, candidates: int, rounds: int) -> list[Refresh]:
    """Returns a refresh for each share and round."""
    ids = make_ids(Cell(dataset.tables, candidates, 1, "zipf"))[..., 0]
    refreshes = []
    names = [dataset.version(number).name for number in range(len(dataset.shares) + 1)]
    chain = Chain(NativeEngine({"num_threads": 1}), dataset.store, names)
    calls = VersionCalls(ctypes.c_void_p(), ids, dataset.tables.dim, make_executor(1))
    for number, share in enumerate(dataset.shares):
        for _ in range(rounds):
            lookups = Lookups(calls, chain.open(number))
            try:
                refreshes.append(_refresh(chain, lookups, number, share))
            finally:
                chain.engine.close(lookups.version)
    chain.engine.destroy()
    return refreshes


def _refresh(chain: Chain, lookups: Lookups, number: int, share: float) -> Refresh:
    """Switches from a version to the one after it and back, again and again."""
    during: list[npt.NDArray[np.float64]] = []
    taken: dict[str, list[float]] = {"open": [], "close": [], "back": [], "back_closed": []}
    with lookups.caller.going_on():
        time.sleep(SETTLE_SECONDS)
        rest = time.perf_counter_ns()
        time.sleep(REST_SECONDS)
        at_rest = lookups.between(rest, time.perf_counter_ns())
        for _ in range(REFRESHES_OF_ROUND):
            old, begin = lookups.version, time.perf_counter_ns()
            new = chain.open(number + 1)
            opened = time.perf_counter_ns()
            lookups.switch(new)
            switched = time.perf_counter_ns()
            chain.engine.close(old)
            end = time.perf_counter_ns()
            taken["open"].append((opened - begin) * 1e-9)
            taken["close"].append((end - switched) * 1e-9)
            time.sleep(SETTLE_SECONDS)
            during.append(lookups.between(begin, end))

            again = time.perf_counter_ns()
            old = chain.open(number)
            opened = time.perf_counter_ns()
            taken["back_closed"].append((opened - again) * 1e-9 + lookups.switch(old))
            time.sleep(SETTLE_SECONDS)
            lookups.switch(new)
            taken["back"].append(lookups.switch(old))
            chain.engine.close(new)
            time.sleep(SETTLE_SECONDS)
    medians = {f"{name}_seconds": float(np.median(seconds)) for name, seconds in taken.items()}
    num_failed = lookups.caller.num_failed
    return Refresh("engine", share, at_rest, np.concatenate(during), **medians, num_failed=num_failed)
