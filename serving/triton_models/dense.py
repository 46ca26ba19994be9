"""The third step: dense features and embeddings to scores."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.errors import DensePartError, InvalidTensorsError

Floats = npt.NDArray[np.float32]

_INPUTS, _OUTPUT = ("dense", "embeddings"), "scores"


class DensePart:
    """A dense part in ONNX Runtime. Any thread may use it.

    Attributes:
        path: The file.
        widths: The width of each input, `dense` and `embeddings`.
    """

    def __init__(self, path: Path) -> None:
        """Loads an ONNX file.

        Raises:
            DensePartError: It cannot be loaded, or has other inputs and outputs than a dense part.
        """
        options = onnxruntime.SessionOptions()
        # Requests are small and the other steps have their own processes: more threads, or threads that spin while
        # they wait, take the cores from them.
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        self.path = path
        try:
            self._session = onnxruntime.InferenceSession(path, sess_options=options, providers=["CPUExecutionProvider"])
        except Exception as exc:  # ONNX Runtime raises a class of its own for each status.
            raise DensePartError(f"{path}: cannot be loaded by ONNX Runtime: {exc}") from exc
        inputs = {value.name: (value.type, value.shape) for value in self._session.get_inputs()}
        outputs = [value.name for value in self._session.get_outputs()]
        is_right = set(inputs) == set(_INPUTS) and _OUTPUT in outputs
        if not is_right or not all(_is_matrix(*value) for value in inputs.values()):
            raise DensePartError(
                f"{path}: has the inputs {inputs} and outputs {outputs}; expected float32 dense [B, width] and "
                "embeddings [B, width], with B free and each width a number, and scores"
            )
        self.widths = {name: int(shape[1]) for name, (_, shape) in inputs.items()}

    def scores(self, dense: Floats, embeddings: Floats) -> Floats:
        """Maps float32 [B, num_dense] and float32 [B, E] to scores, float32 [B].

        Raises:
            DensePartError: It cannot be run on B rows, or gives another number of scores.
        """
        try:
            (scores,) = self._session.run([_OUTPUT], {"dense": dense, "embeddings": embeddings})
            flat: Floats = scores.reshape(len(dense))
        except Exception as exc:  # As above.
            raise DensePartError(
                f"{self.path}: does not give {len(dense)} scores for {len(dense)} rows: {exc}"
            ) from exc
        return flat


class DenseStep:
    """Runs the version's dense part."""

    inputs = _INPUTS

    def __init__(self, version: Version) -> None:
        self._part = DensePart(version.dense_path)
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
        return {"scores": self._part.scores(arrays["dense"], arrays["embeddings"])}


def _is_matrix(dtype: str, shape: list[int | str | None]) -> bool:
    return dtype == "tensor(float)" and len(shape) == 2 and isinstance(shape[1], int) and not isinstance(shape[0], int)
