"""Lets the processes of the benchmark take turns: one works, the others wait for a command."""

import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.support.embedding.candidate import SLOW_SECONDS
from benchmarks.support.embedding.cells import Cell, TableShape, make_gradient, make_ids
from benchmarks.support.embedding.peers import CHECKOUT, peers_python

ANSWER_SECONDS = 600
TOLERANCE = 1e-4
# How many tables' worth of memory a process needs: rows and what optimizers keep. Keras has two kinds of state.
COPIES = {"native": (1, 2), "torch": (1, 2), "tensorflow": (1, 3)}
# What the process at work may need besides: rows that TensorFlow gathers, gradients.
OTHER_BYTES = 5 << 30


class WorkerError(Exception):
    """A process of the benchmark failed; the message is its own."""


@dataclass(frozen=True)
class Kind:
    """A process: whose candidates it has, and what its environment has besides ours."""

    kind: str
    environment: tuple[tuple[str, str], ...] = ()


@dataclass
class Figure:
    """What one candidate took for a cell, seconds per call."""

    cell: Cell
    threads: int
    candidate: str
    note: str = ""
    calls: list[list[float]] = field(default_factory=list)  # by round

    @property
    def milliseconds(self) -> float:
        """The median over rounds of their medians; not a number where nothing could be measured."""
        return median(median(seconds) for seconds in self.calls) * 1e3 if self.calls else float("nan")


class Worker:
    """The parent's end of one process."""

    def __init__(self, kind: Kind, num_threads: int) -> None:
        self.kind = kind
        python = peers_python() if kind.kind == "torch" else Path(sys.executable)
        self._process = subprocess.Popen(
            [str(python), "-m", "benchmarks.support.embedding.worker", kind.kind, str(num_threads)],
            cwd=CHECKOUT,
            env={**os.environ, "OMP_NUM_THREADS": str(num_threads), **dict(kind.environment)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer.

        Raises:
            WorkerError: It failed, or gave no answer in time.
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
            raise WorkerError(f"the {self.kind.kind} process gave no answer to {do!r}; its messages are above")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"the {self.kind.kind} process failed in {do!r}:\n{answer['error']}")
        return dict(answer)

    def end(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Turns:
    """Measures cells at one number of threads. Collects into `figures` as it goes."""

    def __init__(
        self,
        kinds: Sequence[Kind],
        *,
        num_threads: int,
        rounds: int,
        seconds: float,
        figures: list[Figure],
        progress: Callable[[str], None],
    ) -> None:
        self._num_threads, self._rounds, self._seconds = num_threads, rounds, seconds
        self._figures, self._progress = figures, progress
        self._workers = [Worker(kind, num_threads) for kind in kinds]
        self._folder = tempfile.TemporaryDirectory()

    def __enter__(self) -> "Turns":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.end()
        self._folder.cleanup()

    def measure(self, cells: Iterable[Cell]) -> None:
        """Measures cells, those with the same tables together.

        Where the tables of all processes do not fit the memory at once, each process in turn has its own; one whose own
        do not is left out.

        Raises:
            WorkerError: A process failed.
        """
        for tables, group in groupby(cells, key=lambda cell: cell.tables):
            group_cells = list(group)
            for worker in self._workers:
                worker.ask("tables", tables=None)
            for workers in self._together(tables):
                for worker in workers:
                    self._progress(f"{group_cells[0].label}: {worker.kind.kind} makes tables")
                    worker.ask("tables", tables=asdict(tables))
                for cell in group_cells:
                    self._measure(cell, workers)
                if len(workers) < len(self._workers):
                    for worker in workers:
                        worker.ask("tables", tables=None)

    def _together(self, tables: TableShape) -> list[list[Worker]]:
        needs = [tables.num_bytes * COPIES[worker.kind.kind][tables.training] for worker in self._workers]
        available = available_bytes()
        if sum(needs) + OTHER_BYTES < available:
            return [self._workers]
        return [[worker] for worker, need in zip(self._workers, needs, strict=True) if need + OTHER_BYTES < available]

    def _measure(self, cell: Cell, workers: Sequence[Worker]) -> None:
        self._progress(f"{cell.label} threads={self._num_threads}")
        folder = Path(self._folder.name)
        np.save(folder / "ids.npy", make_ids(cell))
        np.save(folder / "gradient.npy", make_gradient(cell))
        timed: list[tuple[Worker, int, Figure]] = []
        for worker in workers:
            answer = worker.ask("cell", cell=asdict(cell), folder=str(folder))
            for number, made in enumerate(answer["candidates"]):
                timed.append((worker, number, Figure(cell, self._num_threads, made["name"], made["note"])))
        self._figures += [figure for _, _, figure in timed]
        timed = [turn for turn in timed if self._agrees(*turn)]
        for _ in range(self._rounds):
            for worker, number, figure in timed:
                if not (figure.calls and figure.calls[0][0] > SLOW_SECONDS):
                    figure.calls.append(worker.ask("time", candidate=number, seconds=self._seconds)["seconds"])

    def _agrees(self, worker: Worker, number: int, figure: Figure) -> bool:
        """Compares what a candidate computes with the first that computes the same."""
        rule = "row-wise" if "row-wise" in figure.candidate else "plain"
        expected_path = Path(self._folder.name) / f"{figure.cell.label} {rule}.npy"
        path = Path(self._folder.name) / "result.npy"
        worker.ask("result", candidate=number, path=str(path))
        result = np.load(path)
        if not expected_path.exists():
            np.save(expected_path, result)
        expected = np.load(expected_path)
        scale = np.abs(expected) + np.sqrt(np.mean(np.square(expected)))
        error = float(np.max(np.abs(result - expected) / scale))
        if error <= TOLERANCE:
            return True
        figure.note = f"computes something else: relative error {error:.1e}"
        return False


def available_bytes() -> int:
    """Returns how much memory the system could give."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
