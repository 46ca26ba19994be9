"""The parent's end of a benchmark's process, and what it measured. One process works while the others wait."""

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Generic, TypeVar

import numpy as np

from benchmarks.support.commands import SLOW_SECONDS
from benchmarks.support.peers import CHECKOUT, FRAMEWORKS, STORES, peers_python

ANSWER_SECONDS = 600
# Kinds of processes that run in an environment of their own.
ENVIRONMENTS = {"torch": FRAMEWORKS, "stores": STORES}
TOLERANCE = 1e-4

CellType = TypeVar("CellType")


class ProcessError(Exception):
    """A process of a benchmark ended or does not answer."""


class CommandError(ProcessError):
    """A process could not do what it was told, and goes on; the message is its own."""


@dataclass
class Figure(Generic[CellType]):
    """What one candidate took for a cell, seconds per call."""

    cell: CellType
    threads: int
    candidate: str
    note: str = ""
    calls: list[list[float]] = field(default_factory=list)  # by round

    @property
    def milliseconds(self) -> float:
        """The median over rounds of their medians; not a number where nothing could be measured."""
        return median(median(seconds) for seconds in self.calls) * 1e3 if self.calls else float("nan")

    @property
    def text(self) -> str:
        """The milliseconds to three digits, with * where it is one call's."""
        if not self.calls:
            return "see below"
        digits = f"{self.milliseconds:.3g}" if self.milliseconds < 100 else f"{self.milliseconds:.0f}"
        return digits + ("*" if sum(map(len, self.calls)) == 1 else "")


class Process:
    """A Python module that serves commands (`commands.serve`)."""

    def __init__(
        self,
        module: str,
        kind: str,
        num_threads: int,
        environment: Mapping[str, str],
    ) -> None:
        self.kind = kind
        python = peers_python(ENVIRONMENTS[kind]) if kind in ENVIRONMENTS else Path(sys.executable)
        self._process = subprocess.Popen(
            [str(python), "-m", module, kind, str(num_threads)],
            cwd=CHECKOUT,
            env={**os.environ, "OMP_NUM_THREADS": str(num_threads), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer.

        Raises:
            CommandError: It could not do it.
            ProcessError: It ended, or gave no answer in time.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_SECONDS)
            line = self._process.stdout.readline() if ready else ""
        except BrokenPipeError:
            line = ""
        if not line:
            raise ProcessError(f"the {self.kind} process gave no answer to {do!r}; its messages are above")
        answer = json.loads(line)
        if "error" in answer:
            raise CommandError(f"the {self.kind} process failed in {do!r}:\n{answer['error']}")
        return dict(answer)

    def time(self, number: int, figure: Figure[Any], seconds: float) -> None:
        """Adds a round of a candidate to its figure, unless the first one said that it is slow."""
        if not (figure.calls and figure.calls[0][0] > SLOW_SECONDS):
            figure.calls.append(self.ask("time", candidate=number, seconds=seconds)["seconds"])

    def agrees(self, number: int, figure: Figure[Any], expected: Path) -> bool:
        """Compares what a candidate computes with a file, made by the first that comes; notes what is wrong."""
        path = expected.with_name("result.npy")
        try:
            self.ask("result", candidate=number, path=str(path))
        except CommandError as exc:
            figure.note = f"fails: {str(exc).splitlines()[-1]}"
            return False
        result = np.load(path).astype(np.float64)
        if not expected.exists():
            np.save(expected, result)
        wanted = np.load(expected)
        if result.shape != wanted.shape:
            figure.note = f"computes something else: {result.shape} instead of {wanted.shape}"
            return False
        error = float(np.max(np.abs(result - wanted) / (np.abs(wanted) + np.sqrt(np.mean(np.square(wanted))))))
        if not error <= TOLERANCE:
            figure.note = f"computes something else: relative error {error:.1e}"
        return error <= TOLERANCE

    def __enter__(self) -> "Process":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
