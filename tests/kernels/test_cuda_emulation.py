"""The CUDA operations where no GPU is: compiled for the host, with emulated threads, and tested as on a GPU.

This proves the kernels' logic: their results, bit for bit, and (by AddressSanitizer and UBSan) that they stay within
their arrays and read aligned addresses. It does not prove that they run on the hardware: races, the memory model and
speed need a GPU. See cuda_emulation/cuda_runtime.h.
"""

from pathlib import Path

from tests.kernels.emulated_cuda import ROOT, build, run_gpu_tests


def test_the_cuda_operations_pass_their_tests_in_emulation(tmp_path: Path) -> None:
    library = build(tmp_path, [*(ROOT / "kernels/core").glob("*.cc"), *(ROOT / "kernels/cuda").glob("*.cu")])
    tests = (ROOT / "tests/kernels").glob("test_cuda*.py")
    run_gpu_tests(library, [path for path in tests if path != Path(__file__)])
