"""The last step in a real server, in our backend and in Python."""

import subprocess
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.model_repository import (
    StepModel,
    dense_step,
    features_step,
    python_dense_step,
    write_ensemble,
)
from rankhouse.serving.triton_server import TritonServer
from tests.serving.small_version import ROWS, Weights, raw_batch, write_dense_part, write_version
from tests.serving.triton_backend.inference import Inference, as_element, raw_arrays, write_batched

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def step(version: Version) -> StepModel:
    step = dense_step(version, backends=None)
    assert step.backend == "rankhouse"
    return step


@pytest.fixture(scope="module")
def dense(triton: TritonServer, inference: Inference, step: StepModel) -> str:
    write_ensemble("alone", [step], repository=triton.repository)
    inference.load("alone.dense")
    return "alone.dense"


def random_features(version: Version, num_rows: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(num_rows)
    widths = {"dense": version.num_dense, "embeddings": version.embeddings_dim}
    return {name: random.normal(size=(num_rows, width)).astype(np.float32) for name, width in widths.items()}


def truth(features: dict[str, np.ndarray]) -> np.ndarray:
    weights = Weights(0)
    logits = features["dense"] @ weights.dense[:, 0] + features["embeddings"] @ weights.embeddings[:, 0]
    scores: np.ndarray = 1 / (1 + np.exp(-logits))
    return scores


@pytest.mark.parametrize("num_rows", [0, 1, 700])
def test_any_number_of_rows(inference: Inference, dense: str, version: Version, num_rows: int) -> None:
    features = random_features(version, num_rows)
    scores = inference.infer(dense, features)["scores"]
    assert scores.shape == (num_rows,)
    np.testing.assert_allclose(scores, truth(features), rtol=0, atol=1e-6)


def test_the_python_step_gives_the_same_answer(triton: TritonServer, inference: Inference, version: Version) -> None:
    steps = {"native": dense_step(version, backends=None), "in-python": python_dense_step(version)}
    answers = []
    for name, step in steps.items():
        write_ensemble(name, [features_step(version), step], repository=triton.repository)
        inference.load(name)
        answers.append(inference.infer(name, raw_arrays(raw_batch(ROWS)))["scores"])
    np.testing.assert_array_equal(*answers)
    np.testing.assert_allclose(answers[0], Weights(0).scores(ROWS), rtol=0, atol=1e-6)


def test_requests_of_a_batch_get_their_own_scores_and_a_wrong_one_fails_alone(
    triton: TritonServer, inference: Inference, version: Version, step: StepModel
) -> None:
    model = write_batched(version, step, repository=triton.repository)
    inference.load(model)
    # Small ones are joined, large ones not.
    requests = [random_features(version, num_rows) for num_rows in (1, 2, 0, 3, 700, 5, 60, 10, 1)]
    wrong = random_features(version, 4) | {"dense": np.zeros((3, version.num_dense), np.float32)}
    calls = [inference.begin(model, as_element(features)) for features in (*requests, wrong)]
    for features, call in zip(requests, calls, strict=False):
        np.testing.assert_allclose(call.result()["scores"], truth(features)[None], rtol=0, atol=1e-6)
    with pytest.raises(grpc.RpcError, match=r"embeddings has shape \(4, 16\); expected \(3, 16\)"):
        calls[-1].result()
    answered, executed = inference.executions(model)
    assert answered == len(requests)
    assert executed < 5


@pytest.mark.parametrize(
    ("library", "message"),
    [("/nowhere/libonnxruntime.so", "cannot be loaded: /nowhere"), ("libm.so.6", "is no library of ONNX Runtime")],
)
def test_what_is_no_onnx_runtime_is_refused(
    triton: TritonServer, inference: Inference, step: StepModel, library: str, message: str
) -> None:
    wrong = replace(step, parameters={**step.parameters, "onnxruntime": library})
    write_ensemble("wrong", [wrong], repository=triton.repository)
    with pytest.raises(grpc.RpcError, match=message):
        inference.load("wrong.dense")


# What a release that no longer has the first version of the interface would export.
NEWER_RUNTIME = """
#include <stddef.h>
#include <stdint.h>
static const void* api(uint32_t version) { return version < 100 ? NULL : "api"; }
static const char* version(void) { return "2.0.7"; }
struct base { const void* (*api)(uint32_t); const char* (*version)(void); };
const struct base* OrtGetApiBase(void) { static const struct base base = {api, version}; return &base; }
"""


def test_a_newer_onnx_runtime_is_refused_with_its_release(
    triton: TritonServer, inference: Inference, step: StepModel, tmp_path: Path
) -> None:
    library = tmp_path / "libonnxruntime.so"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=NEWER_RUNTIME, text=True, check=True, timeout=60)
    wrong = replace(step, parameters={**step.parameters, "onnxruntime": str(library)})
    write_ensemble("wrong", [wrong], repository=triton.repository)
    message = f"{library} is ONNX Runtime 2.0.7, which no longer has version 1 of its interface"
    with pytest.raises(grpc.RpcError, match=message):
        inference.load("wrong.dense")


def test_a_dense_part_that_is_no_model_is_refused(triton: TritonServer, inference: Inference, tmp_path: Path) -> None:
    version = write_version(tmp_path, seed=8)
    content = version.dense_path.read_bytes()
    version.dense_path.write_bytes(b"x" * len(content))
    write_ensemble("wrong", [dense_step(version, backends=None)], repository=triton.repository)
    with pytest.raises(grpc.RpcError, match=r"dense.onnx"):
        inference.load("wrong.dense")


def test_a_dense_part_of_other_inputs_says_so(triton: TritonServer, inference: Inference, tmp_path: Path) -> None:
    version = write_version(tmp_path, seed=9)
    size = version.dense_path.stat().st_size
    write_dense_part(version.dense_path, np.ones((3, 1), np.float32), np.ones((15, 1), np.float32))
    assert version.dense_path.stat().st_size == size, "else it would be refused for its size"
    write_ensemble("other", [dense_step(version, backends=None)], repository=triton.repository)
    inference.load("other.dense")
    with pytest.raises(grpc.RpcError, match="dense"):
        inference.infer("other.dense", random_features(version, 2))
