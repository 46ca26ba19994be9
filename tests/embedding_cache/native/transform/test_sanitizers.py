"""The compiled transform under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer.

Two programs: one in C that calls every function, and one that opens damaged files, which it holds in memory of exactly
their size; so it is made of the sources, all but the one that maps files.
"""

import re
from pathlib import Path

import pytest

from rankhouse.embedding_cache.format.version import VersionStore
from tests.sanitized import ROOT, SANITIZERS, SanitizedLibraries, run

HERE = Path(__file__).parent
NATIVE = ROOT / "embedding_cache/native"
KERNELS = ROOT / "kernels"
STORES = ROOT / "tests/embedding_cache/format"
# What of the other folders the transform's sources need.
NEEDED = ("core/status.cc", "cpu/memory.cc", "cpu/parallel.cc", "cpu/scratch.cc")

pytestmark = pytest.mark.timeout(1500)


def fuzzer(sanitized: SanitizedLibraries, folder: Path) -> Path:
    sources = [HERE / "fuzz.cc", HERE / "memory_files.cc"]
    parts = [*(NATIVE / "transform").glob("*.cc"), NATIVE / "format/json.cc", NATIVE / "format/tensor_file.cc"]
    parts += [KERNELS / name for name in NEEDED]
    return sanitized.program_of_parts(sources, parts, folder, options=[f"-I{ROOT / 'tests/kernels'}", f"-I{HERE}"])


def test_nothing_is_found_in_a_c_program(sanitized: SanitizedLibraries, tmp_path: Path) -> None:
    (folder,) = (STORES / "golden/versions").iterdir()
    run(sanitized.program([HERE / "transform.c"], tmp_path), folder)


@pytest.mark.parametrize("sanitized", SANITIZERS[:1], indirect=True)
def test_damaged_files_are_refused_or_read_within_their_bounds(sanitized: SanitizedLibraries, tmp_path: Path) -> None:
    version = VersionStore(STORES / "golden_chain").open("000003-b7a8a7ab")
    found = run(fuzzer(sanitized, tmp_path), "1", "4000", version.path / "transform.json", *version.vocabulary_files)
    opened, applied = map(int, re.findall(r"\d+", found))
    assert 4000 > opened > 100
    assert applied > 100


def test_every_function_is_called() -> None:
    declared = set(re.findall(r"RH_API \w+ (rh_\w+)\(", (NATIVE / "include/rankhouse/transform.h").read_text()))
    called = set(re.findall(r"\b(rh_\w+)\(", (HERE / "transform.c").read_text()))
    assert declared
    assert declared - called == set()
