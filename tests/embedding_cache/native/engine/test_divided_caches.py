"""Memory that caches share, where one cannot be made: what versions that are open have then."""

import subprocess
from pathlib import Path

import pytest

from tests.sanitized import ROOT

SOURCES = [
    Path(__file__).with_name("check_divided_caches.cc"),
    *(ROOT / "embedding_cache/native" / name for name in ("engine/divided_caches.cc", "engine/manifest.cc")),
    *(ROOT / "embedding_cache/native" / name for name in ("engine/files.cc", "format/json.cc")),
    *(ROOT / "kernels" / name for name in ("core/status.cc", "core/rows.cc")),
]
FOLDERS = (".", "kernels", "kernels/include", "embedding_cache/native", "embedding_cache/native/include")


@pytest.mark.timeout(300)
def test_a_cache_that_cannot_be_made_leaves_the_others_as_they_were(tmp_path: Path) -> None:
    program = tmp_path / "check"
    options = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-g1", "-O1", "-fsanitize=address,undefined"]
    included = [f"-I{ROOT / folder}" for folder in FOLDERS]
    subprocess.run(
        ["c++", *options, "-fno-sanitize-recover=all", *included, *SOURCES, "-lcrypto", "-o", program],
        check=True, timeout=240,
    )  # fmt: skip
    result = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
