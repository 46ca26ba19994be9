"""Memory that caches share, where one cannot be made: what versions that are open have then."""

from pathlib import Path

import pytest

from tests.sanitized import ROOT, SANITIZERS, SanitizedLibraries, run

PARTS = [
    *(ROOT / "embedding_cache/native" / name for name in ("engine/divided_caches.cc", "engine/manifest.cc")),
    *(ROOT / "embedding_cache/native" / name for name in ("engine/files.cc", "format/json.cc")),
    *(ROOT / "kernels" / name for name in ("core/status.cc", "core/rows.cc")),
]


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("sanitized", SANITIZERS[:1], indirect=True)
def test_a_cache_that_cannot_be_made_leaves_the_others_as_they_were(
    sanitized: SanitizedLibraries, tmp_path: Path
) -> None:
    source = Path(__file__).with_name("check_divided_caches.cc")
    run(sanitized.program_of_parts([source], PARTS, tmp_path, options=["-lcrypto"]))
