"""The steps without Triton: they are plain functions of arrays."""

import numpy as np
import pytest

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.errors import InvalidTensorsError
from rankhouse.serving.triton_models.dense import DenseStep
from rankhouse.serving.triton_models.embedding import EmbeddingStep
from rankhouse.serving.triton_models.step import Step
from rankhouse.serving.triton_models.transform import TransformStep
from tests.serving.small_version import ROWS, Weights, raw_batch

Arrays = dict[str, np.ndarray]


def raw_arrays() -> Arrays:
    raw = raw_batch(ROWS)
    texts = raw.text_values.tolist()
    return {
        "float_values": raw.float_values,
        "int_values": raw.int_values,
        "int_lengths": raw.int_lengths,
        "text_bytes": np.frombuffer(b"".join(texts), np.uint8),
        "text_sizes": np.array([len(text) for text in texts], np.int32),
        "text_lengths": raw.text_lengths,
    }


def test_the_steps_in_a_row_give_the_truth(version: Version) -> None:
    arrays = raw_arrays()
    steps: list[Step] = [TransformStep(version), EmbeddingStep(version), DenseStep(version)]
    for step in steps:
        arrays |= step(**{name: arrays[name] for name in step.inputs})
    np.testing.assert_allclose(arrays["scores"], Weights(0).scores(ROWS), rtol=0, atol=1e-6)
    assert {name: (str(arrays[name].dtype), arrays[name].shape) for name in ("dense", "lengths", "embeddings")} == {
        "dense": ("float32", (4, 2)),
        "lengths": ("int32", (5, 4)),
        "embeddings": ("float32", (4, 16)),
    }
    assert arrays["ids"].dtype == np.int64
    assert len(arrays["ids"]) == arrays["lengths"].sum()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"float_values": np.array([[0.0, -np.inf]] * 4)}, r"float_values\[0, 1\] is -inf; expected a finite number"),
        ({"text_sizes": np.array([1], np.int32)}, "expected as many as text_sizes add up to, 1"),
        ({"text_sizes": np.array([-1], np.int32)}, "each of them at least 1"),
        ({"text_bytes": np.empty(0, np.uint8)}, "text_bytes has 0 bytes"),
        ({"text_lengths": np.ones((4, 2), np.int32)}, "text_lengths has 2 columns; this model has 3"),
        ({"int_values": np.array([1], np.int64)}, "int_lengths add up to"),
    ],
)
def test_transform_refuses(version: Version, change: Arrays, message: str) -> None:
    with pytest.raises(InvalidTensorsError, match=message):
        TransformStep(version)(**(raw_arrays() | change))


@pytest.mark.parametrize(
    ("ids", "lengths", "message"),
    [
        (np.zeros(3, np.int64), np.ones((3, 1), np.int32), r"lengths has shape \[3, 1\]; expected \[5, B\]"),
        (np.zeros(4, np.int64), np.ones((5, 1), np.int32), "lengths add up to 5, there are 4 ids"),
        (np.zeros(3, np.int64), np.array([[1], [1], [1], [1], [-1]], np.int32), "expected one length of 0 or more"),
        (np.array([0, 0, 0, 0, 99]), np.ones((5, 1), np.int32), r"99"),
        (np.array([0, -1, 0, 0, 0]), np.ones((5, 1), np.int32), r"-1"),
    ],
)
def test_embedding_refuses(version: Version, ids: np.ndarray, lengths: np.ndarray, message: str) -> None:
    with pytest.raises(InvalidTensorsError, match=message):
        EmbeddingStep(version)(ids=ids, lengths=lengths)


@pytest.mark.parametrize("shape", [(2, 15), (3, 16)])
def test_dense_refuses_another_shape(version: Version, shape: tuple[int, int]) -> None:
    with pytest.raises(InvalidTensorsError, match=r"embeddings has shape .*; expected \(2, 16\)"):
        DenseStep(version)(dense=np.zeros((2, 2), np.float32), embeddings=np.zeros(shape, np.float32))
