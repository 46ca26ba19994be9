"""The C interface under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer, driven from C and C++.

The sanitized library is a build of its own: Python itself cannot load one.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankhouse.kernels import library

ROOT = Path(__file__).parents[2]
INCLUDE = ROOT / "kernels/include"
HERE = ROOT / "tests/kernels"

pytestmark = pytest.mark.timeout(900)


def build_library(folder: Path, sanitizers: str) -> Path:
    cmake = shutil.which("cmake", path=Path(sys.executable).parent) or "cmake"
    options = {"RANKHOUSE_SANITIZE": sanitizers, "RANKHOUSE_TENSORFLOW": "OFF", "RANKHOUSE_CUDA": "OFF"}
    definitions = [f"-D{name}={value}" for name, value in options.items()]
    configure = [cmake, "-S", ROOT, "-B", folder, f"-DPython_EXECUTABLE={sys.executable}", *definitions]
    subprocess.run(configure, check=True, timeout=120, capture_output=True)
    build = [cmake, "--build", folder, "--target", "rankhouse_kernels", "--parallel", "2"]
    output = subprocess.run(build, timeout=800, capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stdout + output.stderr
    return folder / "librankhouse_kernels.so"


def build_program(compiler: str, sources: list[Path], kernels: Path, sanitizers: str) -> Path:
    program = kernels.parent / sources[0].stem
    strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-std=c11" if compiler == "cc" else "-std=c++17"]
    checked = [f"-fsanitize={sanitizers}", "-fno-sanitize-recover=all", "-g1", "-O1"]
    linked = [f"-I{INCLUDE}", kernels, "-lpthread", f"-Wl,-rpath,{kernels.parent}"]
    subprocess.run([compiler, *strict, *checked, *sources, "-o", program, *linked], check=True, timeout=300)
    return program


def run(program: Path, *arguments: str) -> None:
    # Longer than any allocation that the machine could grant fails here as it does there.
    options = {"ASAN_OPTIONS": "allocator_may_return_null=1", "UBSAN_OPTIONS": "print_stacktrace=1"}
    result = subprocess.run(
        [program, *arguments], env={**os.environ, **options}, capture_output=True, text=True, timeout=300, check=False
    )
    assert result.returncode == 0, result.stderr[-8000:]


@pytest.fixture(scope="module", params=["address,undefined", "thread"])
def sanitized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return build_library(tmp_path_factory.mktemp("sanitized"), request.param), request.param


def test_nothing_is_found_in_c_programs_and_random_calls(sanitized: tuple[Path, str]) -> None:
    kernels, sanitizers = sanitized
    for source in sorted(HERE.glob("*.c")):
        run(build_program("cc", [source], kernels, sanitizers))
    program = build_program("c++", sorted((HERE / "fuzz").glob("*.cc")), kernels, sanitizers)
    run(program, "1", "20", "20")


def test_every_function_is_called() -> None:
    text = "".join(path.read_text() for path in (*HERE.glob("*.c"), *(HERE / "fuzz").glob("*.cc")))
    called = set(re.findall(r"\b(rh_\w+)\b", text))
    assert {*library._FUNCTIONS, "rh_abi_version", "rh_last_error"} - called == set()
