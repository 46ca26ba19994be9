"""The dense part as ONNX, held against TensorFlow.

The only importer of tf2onnx, and in training the only one of ONNX Runtime, which is what serves the file.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import tensorflow as tf
import tf2onnx

from rankhouse.training.errors import ExportError

Floats = npt.NDArray[np.float32]

# The newest that tf2onnx 1.17 writes; Triton's and PyPI's ONNX Runtime have read it since 2023.
OPSET = 18

# Both sides compute in float32 and may add in another order.
TOLERANCE = 1e-6


def write_onnx(model: Callable[..., tf.Tensor], path: Path, *, num_dense: int, embeddings_dim: int) -> None:
    """Writes a model that maps (dense, embeddings) to logits as an ONNX file that gives probabilities.

    Args:
        model: Called with (float32 [B, num_dense], float32 [B, E]), gives logits [B]. It must be made of operations
            that have an ONNX form.
        path: The file.
        num_dense: How many continuous features there are.
        embeddings_dim: E, the summed widths of the categorical features.

    Raises:
        ExportError: The model uses what ONNX lacks, or ONNX Runtime scores otherwise than TensorFlow.
    """
    signature = [
        tf.TensorSpec([None, num_dense], tf.float32, name="dense"),
        tf.TensorSpec([None, embeddings_dim], tf.float32, name="embeddings"),
    ]

    @tf.function(input_signature=signature)  # type: ignore[untyped-decorator]
    def scores(dense: tf.Tensor, embeddings: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"scores": tf.sigmoid(model((dense, embeddings)))}

    try:
        with _quiet():
            proto, _ = tf2onnx.convert.from_function(scores, input_signature=signature, opset=OPSET)
        # An operation that tf2onnx does not know stays in as it is.
        onnx.checker.check_model(proto)
    except Exception as exc:  # tf2onnx raises whatever its passes raise.
        raise ExportError(f"the dense part cannot be written as ONNX: {exc}") from exc
    proto.producer_name, proto.producer_version = "rankhouse", version("rankhouse")
    proto.doc_string = "The dense part of a ranking model: continuous features and pooled embeddings to probabilities."
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "B"
    path.write_bytes(proto.SerializeToString())
    _compare(path, scores, num_dense=num_dense, embeddings_dim=embeddings_dim)


class OnnxScorer:
    """Scores with an ONNX file as the serving side does. One thread may use it at a time."""

    def __init__(self, path: Path) -> None:
        self._session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def score(self, dense: Floats, embeddings: Floats) -> Floats:
        """Maps float32 [B, num_dense] and float32 [B, E] to probabilities, float32 [B]."""
        scores: Floats = self._session.run(["scores"], {"dense": dense, "embeddings": embeddings})[0]
        return scores


def _compare(path: Path, scores: Any, *, num_dense: int, embeddings_dim: int) -> None:
    scorer, random = OnnxScorer(path), np.random.default_rng(0)
    for num_samples in (0, 1, 64):
        dense = random.standard_normal((num_samples, num_dense), np.float32)
        # About as large as trained rows are: ten times as large ones make scores whose rounding alone differs by more.
        embeddings = random.standard_normal((num_samples, embeddings_dim), np.float32) / 10
        expected = scores(tf.constant(dense), tf.constant(embeddings))["scores"].numpy()
        found = scorer.score(dense, embeddings)
        if found.shape != (num_samples,):
            raise ExportError(
                f"the dense part gives {list(found.shape)} scores for {num_samples} samples; expected [B]"
            )
        # Written so that a NaN on either side is refused.
        if not (np.abs(found - expected) <= TOLERANCE).all():
            raise ExportError(
                f"ONNX Runtime and TensorFlow differ by {np.abs(found - expected).max():.3g} on random input; expected "
                f"at most {TOLERANCE:g}: are the model's weights finite?"
            )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences tf2onnx, which logs each of its passes, and TensorFlow's C++, which greets from below Python's streams.

    What goes wrong becomes an error of ours.
    """
    logger = logging.getLogger("tf2onnx")
    level, stderr = logger.level, os.dup(2)
    logger.setLevel(logging.CRITICAL)
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        logger.setLevel(level)
