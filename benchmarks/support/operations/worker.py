"""One process of the benchmark of operations: has the candidates of one framework.

python -m benchmarks.support.operations.worker KIND THREADS
"""

import sys
from typing import Any, Protocol

import numpy as np

from benchmarks.support.commands import serve, time_calls
from benchmarks.support.operations.candidate import Candidate
from benchmarks.support.operations.cases import Case, make_arrays


class Operations(Protocol):
    """The candidates of one process."""

    def make(self, case: Case, arrays: dict[str, np.ndarray]) -> list[Candidate]:
        """Returns the candidates for a case."""


class Worker:
    """What the commands do."""

    def __init__(self, kind: str, num_threads: int) -> None:
        self._operations = _operations(kind, num_threads)
        self._made: list[Candidate] = []

    def case(self, case: dict[str, Any]) -> dict[str, Any]:
        """Makes the candidates of a case; none frees what was there."""
        self._made = []
        chosen = Case(**case)
        arrays = make_arrays(chosen)
        self._num_batches = len(arrays["rows" if "rows" in arrays else "keys" if "keys" in arrays else "bottom"])
        self._made = self._operations.make(chosen, arrays)
        return {"candidates": [made.name for made in self._made]}

    def result(self, candidate: int, path: str) -> dict[str, Any]:
        """Writes what a candidate computes, for the comparison with the others."""
        self._made[candidate].run(0)
        np.save(path, self._made[candidate].result())
        return {}

    def time(self, candidate: int, seconds: float) -> dict[str, Any]:
        """Times a candidate."""
        return {"seconds": time_calls(self._made[candidate].run, self._num_batches, seconds)}


def _operations(kind: str, num_threads: int) -> Operations:
    # Each needs an environment that the others may not have.
    if kind == "native":
        from benchmarks.support.operations.native import NativeOperations

        return NativeOperations(num_threads)
    if kind == "tensorflow":
        from benchmarks.support.operations.in_tensorflow import TensorflowOperations

        return TensorflowOperations(num_threads)
    from benchmarks.support.operations.in_torch import TorchOperations

    return TorchOperations(num_threads)


if __name__ == "__main__":
    serve(lambda: Worker(sys.argv[1], int(sys.argv[2])))
