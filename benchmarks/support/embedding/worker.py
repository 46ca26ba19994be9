"""One process of the benchmark: has the candidates of one framework, and does what it is told on its standard input.

    python -m benchmarks.support.embedding.worker KIND THREADS

A command is a line of JSON and so is its answer, {"error": ...} where it failed. What frameworks print goes to standard
error.
"""

import json
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support.embedding.candidate import SLOW_SECONDS, Candidate, Candidates, compared_rows, touched_rows
from benchmarks.support.embedding.cells import Cell, TableShape

# A candidate's calls before it is timed; fewer where one takes as long as the timing should.
WARMUP_CALLS = 3
# Threads of the candidate before may still spin.
REST_SECONDS = 0.01


def main() -> None:
    """Answers commands until standard input ends."""
    kind, num_threads = sys.argv[1], int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = Worker(kind, num_threads)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(worker, command.pop("do"))(**command)
        except Exception:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")


class Worker:
    """What the commands do."""

    def __init__(self, kind: str, num_threads: int) -> None:
        self._candidates = _candidates(kind, num_threads)
        self._tables: TableShape | None = None
        self._made: list[Candidate] = []

    def tables(self, tables: dict[str, Any] | None) -> dict[str, Any]:
        """Makes tables, unless they are there."""
        wanted = None if tables is None else TableShape(**tables)
        if wanted != self._tables:
            self._made, self._tables = [], None
            self._candidates.set_tables(wanted)
            self._tables = wanted
        return {}

    def cell(self, cell: dict[str, Any], folder: str) -> dict[str, Any]:
        """Makes the candidates of a cell for the batches in a folder."""
        self._made, self._ids = [], np.load(Path(folder) / "ids.npy")
        self._cell = Cell(**{**cell, "tables": TableShape(**cell["tables"])})
        self._made = self._candidates.make(self._cell, self._ids, np.load(Path(folder) / "gradient.npy"))
        return {"candidates": [{"name": made.name, "note": made.note} for made in self._made]}

    def result(self, candidate: int, path: str) -> dict[str, Any]:
        """Writes what a candidate computes, for the comparison with the others. Two batches, so that state counts."""
        made = self._made[candidate]
        touched = touched_rows(self._ids[:2]) if self._cell.tables.training else []
        made.reset(touched)
        made.run(0)
        made.run(1)
        np.save(path, made.result(compared_rows(touched)))
        return {}

    def time(self, candidate: int, seconds: float) -> dict[str, Any]:
        """Times calls for about so long, and at least one; a call that takes over SLOW_SECONDS, once."""
        run, num_batches = self._made[candidate].run, self._cell.num_batches
        time.sleep(REST_SECONDS)
        for batch in range(WARMUP_CALLS):
            start = time.perf_counter()
            run(batch % num_batches)
            took = time.perf_counter() - start
            if took > SLOW_SECONDS:
                return {"seconds": [took]}
            if took > seconds:
                break
        taken: list[float] = []
        while sum(taken) < seconds:
            batch = (WARMUP_CALLS + len(taken)) % num_batches
            start = time.perf_counter()
            run(batch)
            taken.append(time.perf_counter() - start)
        return {"seconds": taken}


def _candidates(kind: str, num_threads: int) -> Candidates:
    # Each needs an environment that the others may not have.
    if kind == "native":
        from benchmarks.support.embedding.native_candidates import NativeCandidates

        return NativeCandidates(num_threads)
    if kind == "tensorflow":
        from benchmarks.support.embedding.tensorflow_candidates import TensorflowCandidates

        return TensorflowCandidates(num_threads)
    from benchmarks.support.embedding.torch_candidates import TorchCandidates

    return TorchCandidates(num_threads)


if __name__ == "__main__":
    main()
