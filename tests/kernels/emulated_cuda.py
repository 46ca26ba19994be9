"""Runs of GPU tests over libraries whose CUDA operations are compiled for the host; see cuda_emulation/."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.kernels.device_memory import EMULATED_LIBRARY

ROOT = Path(__file__).parents[2]


def path_of(library: str) -> str:
    found = subprocess.run(
        ["g++", f"-print-file-name={library}"], capture_output=True, text=True, check=True, timeout=300
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
