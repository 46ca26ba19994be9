"""The CUDA operations where no GPU is: compiled for the host, with emulated threads, and tested as on a GPU.

This proves the kernels' logic: their results, bit for bit, and (by AddressSanitizer and UBSan) that they stay within
their arrays and read aligned addresses. It does not prove that they run on the hardware: races, the memory model and
speed need a GPU. See cuda_emulation/cuda_runtime.h.
"""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.kernels.device_memory import EMULATED_LIBRARY

ROOT = Path(__file__).parents[2]
SANITIZERS = "-fsanitize=address,undefined"
FLAGS = [
    *("-std=c++17", "-O1", "-g1", "-fPIC", "-ffp-contract=off", SANITIZERS, "-fno-sanitize-recover=undefined"),
    *("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas"),
    *(f"-I{ROOT / path}" for path in ("tests/kernels/cuda_emulation", "kernels", "kernels/include")),
]


def build(folder: Path) -> Path:
    sources = [*(ROOT / "kernels/core").glob("*.cc"), *(ROOT / "kernels/cuda").glob("*.cu")]

    def compile_one(source: Path) -> Path:
        compiled = folder / f"{source.name}.o"
        subprocess.run(["g++", *FLAGS, "-x", "c++", "-c", source, "-o", compiled], check=True, timeout=400)
        return compiled

    with ThreadPoolExecutor(2) as pool:
        compiled = list(pool.map(compile_one, sources))
    library = folder / "emulated.so"
    subprocess.run(["g++", "-shared", SANITIZERS, *compiled, "-o", library], check=True, timeout=100)
    return library


def path_of(library: str) -> str:
    found = subprocess.run(
        ["g++", f"-print-file-name={library}"], capture_output=True, text=True, check=True, timeout=60
    )
    return found.stdout.strip()


def test_the_cuda_operations_pass_their_tests_in_emulation(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        EMULATED_LIBRARY: str(build(tmp_path)),
        # AddressSanitizer must be there before anything else; exceptions need the C++ library at once.
        "LD_PRELOAD": f"{path_of('libasan.so')}:{path_of('libstdc++.so')}",
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    tests = [path for path in (ROOT / "tests/kernels").glob("test_cuda*.py") if path != Path(__file__)]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *tests],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-4000:]
    assert " passed" in run.stdout
    assert "skipped" not in run.stdout
