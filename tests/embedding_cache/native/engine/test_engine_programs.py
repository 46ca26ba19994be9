"""The engine from C and C++, and the same under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rankhouse.embedding_cache import library

ROOT = Path(__file__).parents[4]
HERE = Path(__file__).parent
STORES = ROOT / "tests/embedding_cache/format"
INCLUDES = [f"-I{folder}" for folder in (ROOT, ROOT / "kernels/include", ROOT / "embedding_cache/native/include")]
PROGRAMS = {"engine.c": (), "stress_engine.cc": ("200",)}

pytestmark = pytest.mark.timeout(900)


def build_libraries(folder: Path, sanitizers: str) -> Path:
    cmake = shutil.which("cmake", path=Path(sys.executable).parent) or "cmake"
    options = {"RANKHOUSE_SANITIZE": sanitizers, "RANKHOUSE_TENSORFLOW": "OFF", "RANKHOUSE_CUDA": "OFF"}
    definitions = [f"-D{name}={value}" for name, value in options.items()]
    configure = [cmake, "-S", ROOT, "-B", folder, f"-DPython_EXECUTABLE={sys.executable}", *definitions]
    subprocess.run(configure, check=True, timeout=120, capture_output=True)
    build = [cmake, "--build", folder, "--target", "rankhouse_engine", "--parallel", "2"]
    output = subprocess.run(build, timeout=800, capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stdout[-4000:] + output.stderr[-4000:]
    return folder


@pytest.fixture(scope="module", params=["address,undefined", "thread"])
def sanitized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    return build_libraries(tmp_path_factory.mktemp("sanitized"), request.param), request.param


@pytest.mark.parametrize("source", PROGRAMS)
def test_nothing_is_found(sanitized: tuple[Path, str], tmp_path: Path, source: str) -> None:
    libraries, sanitizers = sanitized
    program = tmp_path / "program"
    language = ["cc", "-std=c11"] if source.endswith(".c") else ["c++", "-std=c++17"]
    strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-g1", "-O1", f"-fsanitize={sanitizers}", *INCLUDES]
    engine = libraries / "embedding_cache/librankhouse_engine.so"
    linked = [engine, libraries / "librankhouse_kernels.so", "-lpthread", f"-Wl,-rpath,{libraries}:{engine.parent}"]
    subprocess.run([*language, *strict, HERE / source, "-o", program, *linked], check=True, timeout=300)
    options = {"UBSAN_OPTIONS": "print_stacktrace=1", "TSAN_OPTIONS": "second_deadlock_stack=1"}
    result = subprocess.run(
        [program, STORES, *PROGRAMS[source]], env={**os.environ, **options}, capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-8000:]


def test_declarations_follow_the_header() -> None:
    text = (ROOT / "embedding_cache/native/include/rankhouse/engine.h").read_text()
    declared = set(re.findall(r"RH_API \S+ (rh_\w+)\(", text))
    assert declared == {*library._FUNCTIONS, "rh_engine_abi_version"}
    assert f"#define RH_ENGINE_ABI_VERSION {library.ABI_VERSION}\n" in text
    statuses = set(map(int, re.findall(r"  RH_[A-Z_]+ = (\d+)", text)))
    assert statuses <= set(library._ERRORS)
