"""The engine from C and C++, under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""

import re
from pathlib import Path

import pytest

from rankhouse.embedding_cache import library
from tests.sanitized import ROOT, SanitizedLibraries, run

HERE = Path(__file__).parent
STORES = ROOT / "tests/embedding_cache/format"
PROGRAMS = {"engine.c": (), "stress_engine.cc": ("200",)}


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("source", PROGRAMS)
def test_nothing_is_found(sanitized: SanitizedLibraries, tmp_path: Path, source: str) -> None:
    run(sanitized.program([HERE / source], tmp_path), STORES, *PROGRAMS[source])


def test_declarations_follow_the_header() -> None:
    text = (ROOT / "embedding_cache/native/include/rankhouse/engine.h").read_text()
    declared = set(re.findall(r"RH_API \S+ (rh_\w+)\(", text))
    assert declared == {*library._FUNCTIONS, "rh_engine_abi_version"}
    assert f"#define RH_ENGINE_ABI_VERSION {library.ABI_VERSION}\n" in text
    statuses = set(map(int, re.findall(r"  RH_[A-Z_]+ = (\d+)", text)))
    assert statuses <= set(library._ERRORS)
