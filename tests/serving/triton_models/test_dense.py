"""The dense step without Triton: it is a plain function of arrays."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.errors import DensePartError, InvalidTensorsError
from rankhouse.serving.triton_models.dense import DensePart, DenseStep
from tests.serving.small_version import CATEGORICAL, ROWS, Weights, raw_batch, write_dense_part


def features(version: Version) -> dict[str, np.ndarray]:
    """What the first step gives for the rows, computed one by one."""
    batch = version.transform().apply(raw_batch(ROWS))
    embeddings = [Weights(0).pooled(feature, row.get(feature.name)) for row in ROWS for feature in CATEGORICAL]
    return {"dense": batch.dense, "embeddings": np.concatenate(embeddings).astype(np.float32).reshape(len(ROWS), -1)}


def test_the_dense_step_gives_the_truth(version: Version) -> None:
    outputs = DenseStep(version)(**features(version))
    np.testing.assert_allclose(outputs["scores"], Weights(0).scores(ROWS), rtol=0, atol=1e-6)


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
