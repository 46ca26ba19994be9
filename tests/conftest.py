"""Places for objects: a process's memory, and two servers with the interface of S3. Libraries with sanitizers.

`make test` runs tests in two processes, each test file in one of them (pytest-xdist). What belongs to a session, as a
running Triton does, is there once in each; what takes minutes to build is shared.
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from hypothesis import HealthCheck, settings

from tests.object_servers import KEYS, moto, rclone
from tests.sanitized import SANITIZERS, SanitizedLibraries

# Neither how long an example takes decides a test, nor how long it takes to draw one.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

# What takes longest begins first, so that no process is left with it at the end; and beside compilers, which want every
# processor, what mostly waits: for pauses of rollouts, and for what was broken to be missed.
BEGIN_FIRST = (
    "tests/kernels/test_sanitizers.py",
    "tests/serving/faults/test_gateway_killed.py",
    "tests/kernels/test_library.py",
    "tests/serving/faults/test_triton_gone.py",
    "tests/kernels/test_instruction_sets.py",
    "tests/serving/faults/test_state_store_gone.py",
    "tests/kernels/test_cuda_emulation.py",
    "tests/serving/faults/",
    "tests/embedding_cache/native/",
    "tests/serving/triton_backend/native/",
    "tests/test_readme.py",
    "tests/training/",
    "tests/cli/",
    "tests/serving/",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Orders test files, where several processes take them in turns."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: _place_of(item.nodeid))


def _place_of(nodeid: str) -> int:
    return next((place for place, path in enumerate(BEGIN_FIRST) if nodeid.startswith(path)), len(BEGIN_FIRST))


@pytest.fixture(scope="session", params=SANITIZERS)
def sanitized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SanitizedLibraries:
    """The libraries with each kind of sanitizers; building them takes minutes."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # All processes' own ones lie there.
    return SanitizedLibraries.built(folder / f"sanitized-{request.param.replace(',', '-')}", request.param)


@pytest.fixture(scope="session")
def rclone_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rclone(tmp_path_factory.mktemp("rclone")) as address:
        yield address


@pytest.fixture(scope="session")
def moto_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with moto(tmp_path_factory.mktemp("moto")) as address:
        yield address


@pytest.fixture
def s3_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[pytest.MonkeyPatch]:
    """Hides the user's own settings of S3, and gives the servers' keys."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "no-such-file"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    clients = fsspec.get_filesystem_class("s3")
    clients.clear_instance_cache()
    yield monkeypatch
    clients.clear_instance_cache()


@pytest.fixture
def rclone_url(rclone_address: str, s3_environment: pytest.MonkeyPatch) -> str:
    """A folder in a new bucket of a server that keeps files, and does not create exclusively."""
    s3_environment.setenv("AWS_ENDPOINT_URL", rclone_address)
    return new_bucket()


@pytest.fixture
def moto_url(moto_address: str, s3_environment: pytest.MonkeyPatch) -> str:
    """A folder in a new bucket of a server that creates exclusively."""
    s3_environment.setenv("AWS_ENDPOINT_URL", moto_address)
    return new_bucket()


@pytest.fixture(params=["memory", "rclone_url", "moto_url"])
def url(request: pytest.FixtureRequest) -> str:
    """A new empty place in each kind of storage."""
    if request.param == "memory":
        return f"memory://{uuid.uuid4().hex}/store"
    found: str = request.getfixturevalue(request.param)
    return found


def new_bucket() -> str:
    bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    fsspec.filesystem("s3").mkdir(bucket)
    return f"s3://{bucket}/models/store"
