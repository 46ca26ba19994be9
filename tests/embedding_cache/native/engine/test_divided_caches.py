"""Memory that caches share, where one cannot be made: what versions that are open have then."""

from pathlib import Path

import pytest

from tests.sanitized import ROOT, compiled, linked, run

SOURCES = [
    Path(__file__).with_name("check_divided_caches.cc"),
    *(ROOT / "embedding_cache/native" / name for name in ("engine/divided_caches.cc", "engine/manifest.cc")),
    *(ROOT / "embedding_cache/native" / name for name in ("engine/files.cc", "format/json.cc")),
    *(ROOT / "kernels" / name for name in ("core/status.cc", "core/rows.cc")),
]
FOLDERS = (".", "kernels", "kernels/include", "embedding_cache/native", "embedding_cache/native/include")


@pytest.mark.timeout(1500)
def test_a_cache_that_cannot_be_made_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    checked = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    options = ["-Wall", "-Wextra", "-Werror", "-g1", "-O1", *checked, *(f"-I{ROOT / folder}" for folder in FOLDERS)]
    run(linked(tmp_path / "check", compiled(SOURCES, tmp_path, options), [*checked, "-lcrypto"]))
