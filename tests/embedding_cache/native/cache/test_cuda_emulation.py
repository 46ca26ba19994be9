"""The GPU's row cache where no GPU is: see tests/kernels/test_cuda_emulation.py for what this proves and what not."""

from pathlib import Path

import pytest

from tests.kernels.emulated_cuda import run_gpu_tests
from tests.sanitized import SANITIZERS, SanitizedLibraries


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sanitized", SANITIZERS[:1], indirect=True)
def test_the_row_cache_passes_its_tests_in_emulation(sanitized: SanitizedLibraries) -> None:
    run_gpu_tests(sanitized.engine, [Path(__file__).with_name("test_row_cache_cuda.py")])
