from collections.abc import Iterator

import pytest

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.model_repository import write_models
from rankhouse.serving.triton_server import TritonServer
from tests.serving.triton_backend.inference import Inference


@pytest.fixture(scope="session")
def inference(triton: TritonServer) -> Iterator[Inference]:
    with Inference(triton.grpc_url) as connection:
        yield connection


@pytest.fixture(scope="session")
def features(triton: TritonServer, version: Version, inference: Inference) -> str:
    """The loaded model of the first step."""
    name = f"{write_models(version, repository=triton.repository)}.features"
    inference.load(name)
    return name
