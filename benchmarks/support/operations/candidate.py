"""One way to do an operation."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# Our candidates' name.
NAME = "Rankhouse"
# Of large outputs so many rows are compared.
NUM_COMPARED = 256


@dataclass(frozen=True)
class Candidate:
    """`run` works on a batch; `result` gives what the last run came to, the same of all candidates of a case.

    unique: the number of distinct keys, then keys rebuilt from unique and inverse. vocabulary-lookup: ids.
    vocabulary-observe: the number of known keys. The others: rows of what they write.
    """

    name: str
    run: Callable[[int], object]
    result: Callable[[], np.ndarray]


def rebuilt(unique: np.ndarray, inverse: np.ndarray) -> np.ndarray:
    """Returns what the candidates for unique come to."""
    return np.concatenate([[len(unique)], unique[inverse[:NUM_COMPARED].astype(np.int64)]])
