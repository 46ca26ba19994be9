"""The step `features` on a GPU, in a real Triton: `pytest -m gpu tests/serving/triton_backend`.

native/test_sanitizers.py runs the backend on an emulated one.
"""

from collections.abc import Iterator

import grpc
import pytest

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.model_repository import features_step, write_ensemble
from rankhouse.serving.triton_server import TritonServer
from tests.kernels.device_memory import find_cuda
from tests.serving.small_version import ROWS, raw_batch
from tests.serving.triton_backend.inference import Inference, raw_arrays

pytestmark = pytest.mark.triton


@pytest.fixture(scope="module")
def gpu_triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    if find_cuda() is None:
        pytest.skip("needs an NVIDIA GPU and a build with CUDA")
    run_dir = tmp_path_factory.mktemp("triton")
    with TritonServer(run_dir / "models", run_dir=run_dir, engine_options={"device": "0"}) as server:
        yield server


@pytest.mark.gpu
def test_embeddings_have_the_cpus_bits(gpu_triton: TritonServer, version: Version) -> None:
    answers = []
    with Inference(gpu_triton.grpc_url) as inference:
        for name, device in (("on-cpu", None), ("on-gpu", 0)):
            write_ensemble(name, [features_step(version, device=device)], repository=gpu_triton.repository)
            inference.load(f"{name}.features")
            answers.append(inference.infer(f"{name}.features", raw_arrays(raw_batch(ROWS))))
    on_cpu, on_gpu = ({name: array.tobytes() for name, array in answer.items()} for answer in answers)
    assert on_gpu == on_cpu


def test_a_model_on_a_gpu_that_the_engine_was_not_told_of_is_refused(
    triton: TritonServer, inference: Inference, version: Version
) -> None:
    write_ensemble("nowhere", [features_step(version, device=0)], repository=triton.repository)
    with pytest.raises(grpc.RpcError, match=r"the engine has no GPU|invalid or unsupported gpu id"):
        inference.load("nowhere.features")
