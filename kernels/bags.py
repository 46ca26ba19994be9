"""What both views of the operations (NumPy's and the reference) take and give besides plain arrays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class FixedHotness:
    """Bags of equal size, given in the place of offsets: every bag of feature f holds `per_feature[f]` ids."""

    per_feature: tuple[int, ...]


@dataclass(frozen=True)
class SparseGradient:
    """The gradient of one table: the rows that a batch touched, each once.

    ids: int64 [U], increasing. rows: float32 [U, D].
    """

    ids: NDArray[np.int64]
    rows: NDArray[np.float32]


@dataclass(frozen=True)
class BadIds:
    """The ids of a batch that were no rows of one table, whatever the table's policy made of them.

    `count` is their number. The rest is about the first, the one with the lowest feature, sample and position in its
    bag, and says nothing where there is none.
    """

    count: int
    feature: int
    sample: int
    position: int
    id: int
