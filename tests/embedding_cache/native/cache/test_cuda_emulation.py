"""The GPU's row cache where no GPU is: see tests/kernels/test_cuda_emulation.py for what this proves and what not."""

from pathlib import Path

import pytest

from tests.kernels.emulated_cuda import ROOT, build, run_gpu_tests

CACHE = ROOT / "embedding_cache/native/cache"
KERNELS = ("device", "device_lookup", "pooled_lookup", "sort")


@pytest.mark.timeout(900)
def test_the_row_cache_passes_its_tests_in_emulation(tmp_path: Path) -> None:
    sources = [
        *(ROOT / "kernels/core").glob("*.cc"),
        *(ROOT / f"kernels/cuda/{name}.cu" for name in KERNELS),
        *(CACHE / "capacity.cc", *CACHE.glob("*.cu")),
    ]
    library = build(tmp_path, sources, [CACHE.parent, CACHE.parent / "include"])
    run_gpu_tests(library, [Path(__file__).with_name("test_row_cache_cuda.py")])
