"""Libraries of CUDA operations compiled for the host, and runs of GPU tests over them; see cuda_emulation/."""

import os
import subprocess
import sys
from collections.abc import Sequence
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


def build(folder: Path, sources: Sequence[Path], include_folders: Sequence[Path] = ()) -> Path:
    """Compiles the sources into a library in the folder, and returns its path."""
    includes = [f"-I{path}" for path in include_folders]

    def compile_one(source: Path) -> str:
        compiled = str(folder / f"{source.name}.o")
        command = ["g++", *FLAGS, *includes, "-x", "c++", "-c", str(source), "-o", compiled]
        subprocess.run(command, check=True, timeout=400)
        return compiled

    with ThreadPoolExecutor(2) as pool:
        compiled = list(pool.map(compile_one, sources))
    library = folder / "emulated.so"
    subprocess.run(["g++", "-shared", SANITIZERS, *compiled, "-o", str(library)], check=True, timeout=100)
    return library


def path_of(library: str) -> str:
    found = subprocess.run(
        ["g++", f"-print-file-name={library}"], capture_output=True, text=True, check=True, timeout=60
    )
    return found.stdout.strip()


def run_gpu_tests(library: Path, tests: Sequence[Path]) -> None:
    """Runs the tests marked gpu in these files on the library; all must pass, and none be skipped."""
    environment = {
        **os.environ,
        EMULATED_LIBRARY: str(library),
        # AddressSanitizer must be there before anything else; exceptions need the C++ library at once.
        "LD_PRELOAD": f"{path_of('libasan.so')}:{path_of('libstdc++.so')}",
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
    }
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *map(str, tests)],
        cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-4000:]
    assert " passed" in run.stdout
    assert "skipped" not in run.stdout
