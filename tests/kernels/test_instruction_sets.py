"""The library gives the same bits whatever vectors it uses: builds for narrower ones agree with the installed one.

The random driver, fuzz/, makes the same calls of each, checks them, and prints one number for all outputs together.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankhouse.kernels import library
from tests.sanitized import compiled, linked

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests/kernels"

pytestmark = pytest.mark.timeout(1500)


def build_library(folder: Path, bits: int) -> Path:
    cmake = shutil.which("cmake", path=Path(sys.executable).parent) or "cmake"
    options = {"RANKHOUSE_MAX_VECTOR_BITS": bits, "RANKHOUSE_TENSORFLOW": "OFF", "RANKHOUSE_CUDA": "OFF"}
    definitions = [f"-D{name}={value}" for name, value in options.items()]
    configure = [cmake, "-S", ROOT, "-B", folder, f"-DPython_EXECUTABLE={sys.executable}", *definitions]
    subprocess.run(configure, check=True, timeout=600, capture_output=True)
    build = [cmake, "--build", folder, "--target", "rankhouse_kernels", "--parallel", "2"]
    output = subprocess.run(build, timeout=6000, capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stdout + output.stderr
    return folder


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("driver") / "fuzz"
    sources = sorted((HERE / "fuzz").glob("*.cc"))
    objects = compiled(sources, program.parent, ["-O1", f"-I{ROOT / 'kernels/include'}"])
    return linked(program, objects, [library.find("librankhouse_kernels.so"), "-lpthread"])


def outputs_of(driver: Path, kernels: Path) -> str:
    # Enough rounds for every rule, kind, row type and combiner.
    run = subprocess.run(
        [driver, "1", "500", "0"],
        env={**os.environ, "LD_LIBRARY_PATH": str(kernels)},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-8000:]
    return run.stdout


@pytest.fixture(scope="module")
def installed(driver: Path) -> str:
    """What the installed library puts out."""
    return outputs_of(driver, library.find("librankhouse_kernels.so").parent)


@pytest.mark.parametrize("bits", [256, 128])
def test_narrower_vectors_give_the_same_bits(bits: int, driver: Path, installed: str, tmp_path: Path) -> None:
    assert outputs_of(driver, build_library(tmp_path, bits)) == installed
