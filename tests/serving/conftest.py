"""One Triton server for all tests of a session, because starting one takes seconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.triton_server import TritonServer
from tests.serving.small_version import write_version


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="session")
def version(store: Path) -> Version:
    """The small version with seed 0."""
    return write_version(store)


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """A running server that has loaded nothing; each test loads what it needs."""
    run_dir = tmp_path_factory.mktemp("triton")
    with TritonServer(run_dir / "models", run_dir=run_dir) as server:
        yield server
