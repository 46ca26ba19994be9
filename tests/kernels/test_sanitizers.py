"""The C interface under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer, driven from C and C++."""

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rankhouse.kernels import library
from tests.sanitized import SanitizedLibraries, run

HERE = Path(__file__).parent


@pytest.mark.timeout(1500)
def test_nothing_is_found_in_c_programs_and_random_calls(sanitized: SanitizedLibraries, tmp_path: Path) -> None:
    sources = sorted(HERE.glob("*.c"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for program in pool.map(lambda source: sanitized.program([source], tmp_path), sources):
            run(program)
    run(sanitized.program(sorted((HERE / "fuzz").glob("*.cc")), tmp_path), "1", "20", "20")


def test_every_function_is_called() -> None:
    text = "".join(path.read_text() for path in (*HERE.glob("*.c"), *(HERE / "fuzz").glob("*.cc")))
    called = set(re.findall(r"\b(rh_\w+)\b", text))
    assert {*library._FUNCTIONS, "rh_abi_version", "rh_last_error"} - called == set()
