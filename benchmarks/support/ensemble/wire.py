"""Requests as tensors: the six of serving's ensembles, and raw columns for the whole model as one step."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import np_to_triton_dtype

from rankhouse.embedding_cache.format.feature import Feature
from rankhouse.embedding_cache.format.raw import RawBatch

Tensors = dict[str, np.ndarray]


def ensemble_tensors(raw: RawBatch) -> Tensors:
    """Returns what ARCHITECTURE.md, "The Triton ensemble", says of a batch."""
    texts: list[bytes] = raw.text_values.tolist()
    return {
        "float_values": raw.float_values,
        "int_values": raw.int_values,
        "int_lengths": raw.int_lengths,
        "text_bytes": np.frombuffer(b"".join(texts), dtype=np.uint8),
        "text_sizes": np.array([len(text) for text in texts], dtype=np.int32),
        "text_lengths": raw.text_lengths,
    }


def whole_model_tensors(features: Sequence[Feature], rows: Sequence[Mapping[str, Any]]) -> Tensors:
    """Returns raw columns: float64 [B, num_dense], NaN where missing, and texts [B, F], empty where missing."""
    continuous = [feature.name for feature in features if feature.kind == "continuous"]
    categorical = [feature.name for feature in features if feature.kind == "categorical"]
    floats = np.array([[row.get(name) for name in continuous] for row in rows], dtype=np.float64)
    texts = np.array([[(row.get(name) or "").encode() for name in categorical] for row in rows], dtype=object)
    return {"float_values": floats, "texts": texts}


def infer_inputs(tensors: Tensors) -> list[InferInput]:
    """Returns tensors as tritonclient sends them."""
    inputs = []
    for name, array in tensors.items():
        tensor = InferInput(name, array.shape, np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    return inputs


def scores(url: str, model: str, tensors: Tensors) -> np.ndarray:
    """Scores one request, float32 [B].

    Raises:
        tritonclient.utils.InferenceServerException: There is no answer.
    """
    with InferenceServerClient(url) as client:
        found: np.ndarray = client.infer(model, infer_inputs(tensors)).as_numpy("scores")
        return found.ravel()
