"""The steps without Triton: they are plain functions of arrays."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.errors import DensePartError, InvalidTensorsError
from rankhouse.serving.triton_models.dense import DensePart, DenseStep
from rankhouse.serving.triton_models.embedding import EmbeddingStep
from rankhouse.serving.triton_models.step import Step
from rankhouse.serving.triton_models.transform import TransformStep
from tests.serving.small_version import ROWS, Weights, raw_batch, write_dense_part

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


def test_a_dense_part_says_what_it_takes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    dense, embeddings = (random.normal(size=(width, 1)).astype(np.float32) for width in (2, 5))
    write_dense_part(tmp_path / "dense.onnx", dense, embeddings)
    part = DensePart(tmp_path / "dense.onnx")
    assert part.widths == {"dense": 2, "embeddings": 5}
    inputs = [random.normal(size=(3, width)).astype(np.float32) for width in (2, 5)]
    expected = 1 / (1 + np.exp(-(inputs[0] @ dense + inputs[1] @ embeddings)[:, 0]))
    np.testing.assert_allclose(part.scores(*inputs), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "fault", ["no file", "no ONNX", "another input", "another output", "fixed batch", "free width"]
)
def test_what_is_no_dense_part_is_refused(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "dense.onnx"
    write_dense_part(path, np.ones((2, 1), np.float32), np.ones((5, 1), np.float32))
    model = onnx.load(path)
    shape = model.graph.input[0].type.tensor_type.shape
    if fault == "another input":
        model.graph.input[0].name = model.graph.node[0].input[0] = "continuous"
    elif fault == "another output":
        model.graph.output[0].name = model.graph.node[-1].output[0] = "logits"
    elif fault == "fixed batch":
        shape.dim[0].dim_value = 8
    elif fault == "free width":
        shape.dim[1].dim_param = "W"
    onnx.save(model, path)
    if fault == "no ONNX":
        path.write_bytes(b"no ONNX")
    if fault == "no file":
        path.unlink()
    message = "cannot be loaded by ONNX Runtime" if fault.startswith("no ") else r"expected float32 dense \[B, width\]"
    with pytest.raises(DensePartError, match=f"{path}: .*{message}"):
        DensePart(path)
