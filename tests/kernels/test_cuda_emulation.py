"""The CUDA operations where no GPU is: compiled for the host, with emulated threads, and tested as on a GPU.

This proves the kernels' logic: their results, bit for bit, and (by AddressSanitizer and UBSan) that they stay within
their arrays and read aligned addresses. It does not prove that they run on the hardware: races, the memory model and
speed need a GPU. See cuda_emulation/cuda_runtime.h.
"""

from pathlib import Path

import pytest

from tests.kernels.emulated_cuda import run_gpu_tests
from tests.sanitized import SANITIZERS, SanitizedLibraries


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sanitized", SANITIZERS[:1], indirect=True)
def test_the_cuda_operations_pass_their_tests_in_emulation(sanitized: SanitizedLibraries) -> None:
    here = Path(__file__)
    tests = [path for path in here.parent.glob("test_cuda*.py") if path != here]
    run_gpu_tests(sanitized.kernels, tests)
