"""The form of a step: named arrays in, named arrays out, over one version."""

from typing import Any, Protocol

import numpy.typing as npt

from rankhouse.embedding_cache.format.version import Version


class Step(Protocol):
    """One step of the ensemble. Pure: it knows no Triton, so it runs anywhere.

    Attributes:
        inputs: The names of its arrays, which are the arguments of the call.
    """

    inputs: tuple[str, ...]

    def __init__(self, version: Version) -> None: ...

    def __call__(self, **arrays: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Computes the outputs.

        Raises:
            InvalidTensorsError: The arrays are not what the step takes.
        """
        ...
