"""Calls that are timed inside C, one by one, and a thread that makes them: compiles timed_calls.c and calls it."""

import ctypes
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

SOURCE = Path(__file__).with_suffix(".c")
BUILT = Path(__file__).parents[3] / "build" / "bench" / "timed_calls.so"
# Calls that one timing makes at most.
MOST_CALLS = 1 << 20
MOST_ARGUMENTS = 5


class Kind(IntEnum):
    """Whose arguments a call has."""

    ENGINE_LOOKUP = 0
    GATHER_LOOP = 1
    STORE_LOOKUP = 2


class _Work(ctypes.Structure):
    _fields_: ClassVar = [("calls", ctypes.c_void_p), ("num_calls", ctypes.c_int64), ("number", ctypes.c_int64)]


@cache
def _load() -> ctypes.CDLL:
    BUILT.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-O3", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread"]
    subprocess.run(["cc", *flags, str(SOURCE), "-o", str(BUILT)], check=True)
    library = ctypes.CDLL(str(BUILT))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
        ("time_calls", number, (pointer, number, number, pointer, number)),
        ("start_calling", pointer, (pointer, pointer, number)),
        ("change_work", None, (pointer, pointer)),
        ("num_made", number, (pointer,)),
        ("stop_calling", number, (pointer,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class TimedCalls:
    """Calls of one function, each with arguments of its own.

    Args:
        kind: Whose arguments they are.
        function: The function, from a library that ctypes has loaded.
        arguments: Of each call: addresses, and integers. What they point to must live as long as this.
    """

    def __init__(self, kind: Kind, function: Any, arguments: Sequence[Sequence[int]]) -> None:
        # A timed_call each: 8 bytes for each of its seven members.
        self._calls = np.zeros((len(arguments), 2 + MOST_ARGUMENTS), np.int64)
        self._calls[:, :2] = kind, ctypes.cast(function, ctypes.c_void_p).value
        self._calls[:, 2 : 2 + len(arguments[0])] = arguments

    def of(self, version: int) -> "TimedCalls":
        """Returns the same calls with another first argument."""
        other = copy(self)
        other._calls = self._calls.copy()
        other._calls[:, 2] = version
        return other

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def address(self) -> int:
        """Where they lie, for C."""
        return int(self._calls.ctypes.data)

    def time(self, seconds: float) -> list[float]:
        """Makes them in turn for about so long, at least one; returns what each took, seconds.

        Raises:
            RuntimeError: One failed.
        """
        taken = np.zeros(MOST_CALLS, np.int64)
        count = _load().time_calls(self.address, len(self), int(seconds * 1e9), taken.ctypes.data, len(taken))
        if count < 0:
            raise RuntimeError("a call that was timed failed")
        return [float(each) * 1e-9 for each in taken[:count]]


class Caller:
    """A thread that makes calls without a pause. It needs nothing of Python, and so never waits for it.

    Args:
        calls: What it begins with.
        most: Calls that it makes at most, and then rests.
    """

    def __init__(self, calls: TimedCalls, most: int) -> None:
        self._library = _load()
        # Begin, duration and work of each call; written once, so that no page of it is new to the thread.
        self._made: npt.NDArray[np.int64] = np.full((most, 3), -1, np.int64)
        self._work: list[tuple[_Work, TimedCalls]] = []
        self._first = calls
        self.num_failed = 0

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Keeps the thread at work for the time of a `with`."""
        work = self._add(self._first)
        self._caller = self._library.start_calling(ctypes.byref(work), self._made.ctypes.data, len(self._made))
        try:
            yield
        finally:
            self.num_failed = self._library.stop_calling(self._caller)

    def change(self, calls: TimedCalls) -> int:
        """Has it go on with other calls; returns the number that `made` knows them by."""
        work = self._add(calls)
        self._library.change_work(self._caller, ctypes.byref(work))
        return int(work.number)

    def made(self, since: int = 0) -> npt.NDArray[np.int64]:
        """Gives the calls made so far from a number on: int64 [n, 3], begin and duration in ns, number of the work."""
        return self._made[since : self._library.num_made(self._caller)]

    def _add(self, calls: TimedCalls) -> _Work:
        work = _Work(calls.address, len(calls), len(self._work))
        self._work.append((work, calls))
        return work
