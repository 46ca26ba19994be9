"""The backend under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer, in a stub of a server."""

import re
from pathlib import Path

import pytest

from rankhouse.serving.model_repository import dense_step
from tests.sanitized import ROOT, SanitizedLibraries, run
from tests.serving.small_version import write_version

HERE = Path(__file__).parent
SOURCES = [HERE / "drive_backend.cc", HERE / "stub_server.cc", *(ROOT / "serving/triton_backend").glob("*.cc")]


@pytest.mark.timeout(1500)
def test_nothing_is_found(sanitized: SanitizedLibraries, tmp_path: Path) -> None:
    version = write_version(tmp_path / "store")
    library = dense_step(version, backends=None).parameters["onnxruntime"]
    program = sanitized.program(SOURCES, tmp_path)
    printed = run(program, version.store, version.name, library, "1", "2000")
    raw_answered, raw_refused, dense_answered, dense_refused = map(int, re.findall(r"\d+", printed))
    assert raw_answered > 1000
    assert raw_refused > 1000
    assert dense_answered > 1000
    assert dense_refused > 1000
