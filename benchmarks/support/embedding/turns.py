"""Lets the processes of the benchmark take turns: one works, the others wait for a command."""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from benchmarks.support.embedding.cells import Cell, TableShape, make_gradient, make_ids
from benchmarks.support.process import Figure, Process

WORKER = "benchmarks.support.embedding.worker"
# How many tables' worth of memory a process needs: rows and what optimizers keep. Keras has two kinds of state, and
# torch's optimizers make their own, and FBGEMM tables too, before they are given ours.
COPIES = {"native": (1, 2), "torch": (1, 3), "tensorflow": (1, 3)}
# What the process at work may need besides: rows that TensorFlow gathers, gradients.
OTHER_BYTES = 5 << 30


@dataclass(frozen=True)
class Kind:
    """A process: whose candidates it has, and what its environment has besides ours."""

    kind: str
    environment: tuple[tuple[str, str], ...] = ()


class Turns:
    """Measures cells at one number of threads. Collects into `figures` as it goes."""

    def __init__(
        self,
        kinds: Sequence[Kind],
        *,
        num_threads: int,
        rounds: int,
        seconds: float,
        figures: list[Figure[Cell]],
        progress: Callable[[str], None],
    ) -> None:
        self._num_threads, self._rounds, self._seconds = num_threads, rounds, seconds
        self._figures, self._progress = figures, progress
        self._kinds = kinds
        self._processes: dict[Kind, Process] = {}
        self._folder = tempfile.TemporaryDirectory()

    def __enter__(self) -> "Turns":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._folder.cleanup()

    def measure(self, cells: Iterable[Cell]) -> None:
        """Measures cells, those with the same tables together.

        Where the tables of all processes do not fit the memory at once, one process after the other has its own; one
        whose own do not is left out.

        Raises:
            ProcessError: A process failed.
        """
        for tables, group in groupby(cells, key=lambda cell: cell.tables):
            group_cells = list(group)
            for kinds in self._together(tables):
                processes = [self._process(kind) for kind in kinds]
                for process in processes:
                    self._progress(f"{group_cells[0].label}: {process.kind} makes tables")
                    process.ask("tables", tables=asdict(tables))
                for cell in group_cells:
                    self._measure(cell, processes)
                self._end()  # frameworks keep the memory of tables that are gone, more than the machine may have

    def _process(self, kind: Kind) -> Process:
        if kind not in self._processes:
            self._processes[kind] = Process(WORKER, kind.kind, self._num_threads, dict(kind.environment))
        return self._processes[kind]

    def _end(self) -> None:
        for process in self._processes.values():
            process.end()
        self._processes.clear()

    def _together(self, tables: TableShape) -> list[Sequence[Kind]]:
        """Returns which processes have the tables at the same time."""
        alone = [tables.num_bytes * COPIES[kind.kind][tables.training] + OTHER_BYTES for kind in self._kinds]
        need = sum(alone) - OTHER_BYTES * (len(alone) - 1)
        if need <= available_bytes():
            return [self._kinds]
        return [[kind] for kind, need in zip(self._kinds, alone, strict=True) if need <= available_bytes()]

    def _measure(self, cell: Cell, processes: Sequence[Process]) -> None:
        self._progress(f"{cell.label} threads={self._num_threads}")
        folder = Path(self._folder.name)
        np.save(folder / "ids.npy", make_ids(cell))
        np.save(folder / "gradient.npy", make_gradient(cell))
        timed: list[tuple[Process, int, Figure[Cell]]] = []
        for process in processes:
            answer = process.ask("cell", cell=asdict(cell), folder=str(folder))
            for number, made in enumerate(answer["candidates"]):
                timed.append((process, number, Figure(cell, self._num_threads, made["name"], made["note"])))
        self._figures += [figure for _, _, figure in timed]
        timed = [turn for turn in timed if turn[0].agrees(turn[1], turn[2], self._expected(turn[2]))]
        for _ in range(self._rounds):
            for process, number, figure in timed:
                process.time(number, figure, self._seconds)

    def _expected(self, figure: Figure[Cell]) -> Path:
        """Returns the file of what all candidates that do the same should compute."""
        rule = "row-wise" if "row-wise" in figure.candidate else "plain"
        return Path(self._folder.name) / f"{figure.cell.label} {rule}.npy"


def available_bytes() -> int:
    """Returns how much memory the system could give."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
