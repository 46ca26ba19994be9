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
