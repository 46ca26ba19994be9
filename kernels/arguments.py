"""Checks that the NumPy views of the operations share."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankhouse.kernels.errors import ArgumentError


def check_array(
    array: NDArray[Any], name: str, dtype: type, ndim: int, *, shape: tuple[int, ...] | None = None
) -> None:
    """Raises ArgumentError for what cannot be handed to the library as it lies in memory.

    With a shape, the array must have it and be writeable: it is one that an operation writes.
    """
    if not isinstance(array, np.ndarray):
        raise ArgumentError(f"{name} is a {type(array).__name__}: expected a NumPy array")
    if array.dtype != dtype or array.ndim != ndim:
        raise ArgumentError(
            f"{name} is {array.dtype} of shape {array.shape}: expected {np.dtype(dtype)} with {ndim} dimension(s)"
        )
    if not (array.flags.c_contiguous and array.flags.aligned):
        raise ArgumentError(f"{name} is not contiguous: pass np.ascontiguousarray({name})")
    if shape is not None and (array.shape != shape or not array.flags.writeable):
        raise ArgumentError(f"{name} has shape {array.shape}: expected a writeable array of shape {shape}")
