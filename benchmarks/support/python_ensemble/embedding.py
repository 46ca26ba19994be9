"""The second step: ids to pooled embeddings."""

from typing import Any

import numpy.typing as npt

from benchmarks.support.python_ensemble.lookup import EmbeddingEngine
from rankhouse.embedding_cache.errors import BatchError
from rankhouse.embedding_cache.format.version import Version
from rankhouse.kernels.errors import KernelError
from rankhouse.serving.errors import InvalidTensorsError


class EmbeddingStep:
    """Looks the version's embeddings up."""

    inputs = ("ids", "lengths")

    def __init__(self, version: Version) -> None:
        self._engine = EmbeddingEngine(version)

    def __call__(self, **arrays: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Returns `embeddings` [B, E].

        Raises:
            InvalidTensorsError: Lengths have the wrong shape or do not add up, or an id is outside its table.
        """
        try:
            return {"embeddings": self._engine.lookup(arrays["ids"], arrays["lengths"])}
        except (BatchError, KernelError) as exc:
            raise InvalidTensorsError(str(exc)) from exc
