"""Lookups on a GPU where no GPU is: see tests/kernels/test_cuda_emulation.py for what this proves and what not."""

from pathlib import Path

import pytest

from tests.kernels.emulated_cuda import run_gpu_tests
from tests.sanitized import ROOT, SANITIZERS, SanitizedLibraries


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sanitized", SANITIZERS[:1], indirect=True)
def test_lookups_pass_their_tests_in_emulation(sanitized: SanitizedLibraries) -> None:
    redis = ROOT / "tests/embedding_cache/redis_tier/test_device_rows_cuda.py"
    run_gpu_tests(sanitized.engine, [Path(__file__).with_name("test_device_lookup_cuda.py"), redis])
