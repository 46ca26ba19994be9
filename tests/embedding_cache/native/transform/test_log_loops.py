"""Logarithms with vectors and without, on a processor that has both."""

import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[3] / "embedding_cache/native"


@pytest.mark.skipif(" fma " not in Path("/proc/cpuinfo").read_text(), reason="the processor has no fused products")
def test_both_loops_give_the_same_bits(tmp_path: Path) -> None:
    objects = []
    sources = {"log_plain": [], "log_avx2": ["-mavx2", "-mfma"]}
    for source, options in [
        *((NATIVE / "transform" / f"{name}.cc", options) for name, options in sources.items()),
        (HERE / "log_loops.cc", []),
    ]:
        objects.append(tmp_path / f"{source.stem}.o")
        flags = ["-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", *options, f"-I{NATIVE}"]
        subprocess.run(["c++", *flags, "-c", source, "-o", objects[-1]], check=True, timeout=600)
    subprocess.run(["c++", *objects, "-o", tmp_path / "log_loops", "-lm"], check=True, timeout=600)
    subprocess.run([tmp_path / "log_loops"], check=True, timeout=600)
