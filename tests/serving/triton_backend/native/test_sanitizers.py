"""The backend under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer, in a stub of a server."""

import re
import subprocess
from pathlib import Path

import pytest

from rankhouse.serving.model_repository import dense_step
from tests.sanitized import ROOT, SANITIZERS, SanitizedLibraries, run
from tests.serving.small_version import write_delta, write_version

HERE = Path(__file__).parent
DRIVERS = ("drive_backend.cc", "drive_device.cc", "loaded_model.cc", "stub_server.cc")
SOURCES = [*(HERE / name for name in DRIVERS), *(ROOT / "serving/triton_backend").glob("*.cc")]


@pytest.fixture(scope="module")
def program(sanitized: SanitizedLibraries, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sanitized.program(SOURCES, tmp_path_factory.mktemp("program"))


@pytest.mark.timeout(1500)
def test_nothing_is_found(program: Path, tmp_path: Path) -> None:
    version = write_version(tmp_path / "store")
    library = dense_step(version, backends=None).parameters["onnxruntime"]
    printed = run(program, "backend", library, version.store, version.name)
    raw_answered, raw_refused, dense_answered, dense_refused = map(int, re.findall(r"\d+", printed))
    assert raw_answered > 1000
    assert raw_refused > 1000
    assert dense_answered > 1000
    assert dense_refused > 1000


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("sanitized", SANITIZERS[:1], indirect=True)
def test_a_gpu_gives_the_same_bits(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an emulated GPU: see tests/kernels/test_cuda_emulation.py for what this proves and what not."""
    driver = ROOT / "tests/kernels/cuda_emulation/driver.cc"
    as_library = ["-shared", "-fPIC", "-fvisibility=hidden", "-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run(["c++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", str(driver), *as_library], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    store = tmp_path / "store"
    versions = [write_version(store, seed=seed, spare_rows=10) for seed in range(8)]
    versions.append(write_delta(store, versions[-1], seed=9))
    printed = run(program, "device", "", store, *(version.name for version in versions))
    assert "all on the GPU as on the CPU" in printed
