"""The third step: dense features and embeddings to scores."""

from typing import Any

import numpy.typing as npt
import onnxruntime

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.errors import InvalidTensorsError


class DenseStep:
    """Runs the version's dense part in ONNX Runtime."""

    inputs = ("dense", "embeddings")

    def __init__(self, version: Version) -> None:
        options = onnxruntime.SessionOptions()
        # Requests are small and the other steps have their own processes: more threads, or threads that spin while
        # they wait, take the cores from them.
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            version.dense_path, sess_options=options, providers=["CPUExecutionProvider"]
        )
        self._widths = {"dense": version.num_dense, "embeddings": version.embeddings_dim}

    def __call__(self, **arrays: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Returns `scores` [B]; a score that is no number is the caller's to refuse, who can name its row.

        Raises:
            InvalidTensorsError: The arrays have the wrong shape.
        """
        num_rows = len(arrays["dense"])
        for name, width in self._widths.items():
            if arrays[name].shape != (num_rows, width):
                raise InvalidTensorsError(f"{name} has shape {arrays[name].shape}; expected ({num_rows}, {width})")
        (scores,) = self._session.run(["scores"], arrays)
        return {"scores": scores.reshape(num_rows)}
