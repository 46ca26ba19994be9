"""The first step: raw values to the model's input."""

from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.errors import TransformError
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.errors import InvalidTensorsError


class TransformStep:
    """Applies the version's compiled transform. The arrays are those of ARCHITECTURE.md, "The Triton ensemble"."""

    inputs = ("float_values", "int_values", "int_lengths", "text_bytes", "text_sizes", "text_lengths")

    def __init__(self, version: Version) -> None:
        self._transform = version.transform()

    def __call__(self, **arrays: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Returns `dense` [B, num_dense], `ids` [N] and `lengths` [F, B].

        Raises:
            InvalidTensorsError: An array has the wrong shape, lengths do not add up, or a value is infinite.
        """
        float_values = arrays["float_values"]
        infinite = np.argwhere(np.isinf(float_values))
        if len(infinite):
            row, column = infinite[0]
            raise InvalidTensorsError(
                f"float_values[{row}, {column}] is {float_values[row, column]}; expected a finite number, or NaN where "
                "the value is missing"
            )
        try:
            raw = RawBatch(
                float_values=float_values,
                int_values=arrays["int_values"],
                int_lengths=arrays["int_lengths"],
                text_values=_split(arrays["text_bytes"], arrays["text_sizes"]),
                text_lengths=arrays["text_lengths"],
            )
            batch = self._transform.apply(raw)
        except TransformError as exc:
            raise InvalidTensorsError(str(exc)) from exc
        return {"dense": batch.dense, "ids": batch.ids, "lengths": batch.lengths}


def _split(text_bytes: npt.NDArray[Any], sizes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Cuts the texts apart: uint8 [total] and int32 [n] to an object array [n] of bytes."""
    if sizes.min(initial=1) < 1 or sizes.sum() != len(text_bytes):
        raise InvalidTensorsError(
            f"text_bytes has {len(text_bytes)} bytes; expected as many as text_sizes add up to, {sizes.sum()}, "
            "each of them at least 1"
        )
    joined = text_bytes.tobytes()
    ends = np.cumsum(sizes).tolist()
    texts = np.empty(len(sizes), dtype=object)
    texts[:] = [joined[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    return texts
