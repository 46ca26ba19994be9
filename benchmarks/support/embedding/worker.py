"""One process of the benchmark: has the candidates of one framework.

python -m benchmarks.support.embedding.worker KIND THREADS
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support.commands import serve, time_calls
from benchmarks.support.embedding.candidate import Candidate, Candidates, compared_rows, touched_rows
from benchmarks.support.embedding.cells import Cell, TableShape


class Worker:
    """What the commands do."""

    def __init__(self, kind: str, num_threads: int) -> None:
        self._candidates = _candidates(kind, num_threads)
        self._made: list[Candidate] = []

    def tables(self, tables: dict[str, Any]) -> dict[str, Any]:
        """Makes the tables, once."""
        self._candidates.set_tables(TableShape(**tables))
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
        """Times a candidate."""
        return {"seconds": time_calls(self._made[candidate].run, self._cell.num_batches, seconds)}


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
    serve(lambda: Worker(sys.argv[1], int(sys.argv[2])))
