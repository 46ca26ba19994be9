"""One version in Triton and one gateway in front of it, for all tests of a session."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.model_repository import write_models
from rankhouse.serving.triton_client import TritonClient
from rankhouse.serving.triton_server import TritonServer
from tests.serving.gateway.rolling import TwoVersions, load, two_versions
from tests.serving.gateway.running import RunningGateway
from tests.serving.small_version import Weights, write_version

SEED = 7


@pytest.fixture(scope="session")
def served_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of its own, so that no other test loads or unloads its version."""
    return tmp_path_factory.mktemp("served-store")


@pytest.fixture(scope="session")
def served_version(served_store: Path) -> Version:
    return write_version(served_store, seed=SEED)


@pytest.fixture(scope="session")
def weights() -> Weights:
    """The truth about the served version."""
    return Weights(SEED)


@pytest.fixture(scope="session")
def loaded_triton(triton: TritonServer, served_version: Version) -> TritonServer:
    async def load() -> None:
        async with TritonClient(triton.grpc_url) as client:
            await client.load(write_models(served_version, repository=triton.repository))

    asyncio.run(load())
    return triton


@pytest.fixture(scope="session")
def gateway(served_store: Path, loaded_triton: TritonServer) -> Iterator[RunningGateway]:
    with RunningGateway(served_store, loaded_triton.grpc_url, max_candidates=50, max_in_flight=1000) as running:
        yield running


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=60.0) as client:
        yield client


@pytest.fixture(scope="session")
def versions(tmp_path_factory: pytest.TempPathFactory, triton: TritonServer) -> TwoVersions:
    """Two versions that Triton has loaded."""
    made = two_versions(tmp_path_factory.mktemp("two-versions"), 11, 12)
    load(triton, made.stable, made.candidate)
    return made
