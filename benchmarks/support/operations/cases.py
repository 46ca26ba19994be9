"""What is measured of the operations beside lookup, and their inputs. K batches come first in shapes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

NUM_BATCHES = 8
NUM_EMBEDDINGS = 26
ZIPF_EXPONENT = 1.05
NUM_KNOWN_KEYS = 1_000_000


@dataclass(frozen=True)
class Case:
    """An operation on so many keys, samples or rows."""

    operation: str
    count: int
    dim: int = 0

    @property
    def label(self) -> str:
        """The words that --filter selects by."""
        width = f" dim={self.dim}" if self.dim else ""
        return f"{self.operation} {self.count}{width}"


def every_case() -> Iterator[Case]:
    """Yields all cases."""
    for operation in ("unique", "vocabulary-lookup", "vocabulary-observe"):
        yield from (Case(operation, count) for count in (65_536, 1_000_000))
    for operation in ("interaction", "interaction-backward"):
        for dim in (16, 128):
            yield from (Case(operation, count, dim) for count in (2048, 16_384))
    for operation in ("quantize", "dequantize"):
        yield from (Case(operation, count, dim) for count, dim in ((1_000_000, 16), (100_000, 128)))


def make_arrays(case: Case) -> dict[str, np.ndarray]:
    """Returns the inputs of a case by name, from the same seed everywhere.

    unique, vocabulary-*: keys int64 [K, N], Zipf-distributed over `known` [NUM_KNOWN_KEYS], keys of 64 bits.
    interaction*: bottom [K, B, D], embeddings [K, B, F * D], grad [B, D + V * (V - 1) / 2], V = F + 1 vectors.
    quantize, dequantize: rows [K, N, D], K is 1.
    """
    random = np.random.default_rng(2027)
    if case.operation.startswith("interaction"):
        vectors, count, dim = NUM_EMBEDDINGS + 1, case.count, case.dim
        shapes = {
            "bottom": (NUM_BATCHES, count, dim),
            "embeddings": (NUM_BATCHES, count, NUM_EMBEDDINGS * dim),
            "grad": (count, dim + vectors * (vectors - 1) // 2),
        }
        return {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    if case.operation in ("quantize", "dequantize"):
        return {"rows": random.standard_normal((1, case.count, case.dim), dtype=np.float32)}
    known = np.unique(random.integers(np.iinfo(np.int64).min, np.iinfo(np.int64).max, 2 * NUM_KNOWN_KEYS))
    known = random.permutation(known)[:NUM_KNOWN_KEYS]
    shares = np.cumsum(np.arange(1, NUM_KNOWN_KEYS + 1, dtype=np.float64) ** -ZIPF_EXPONENT)
    drawn = np.searchsorted(shares, random.random((NUM_BATCHES, case.count)) * shares[-1])
    return {"known": known, "keys": known[drawn]}
