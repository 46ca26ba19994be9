"""An operation that is stopped at any point leaves the old state or the new one, and can be done again."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.embedding_cache.crashes.stories import STORIES

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("faults") / "libfaults.so"
    source = Path(__file__).with_name("faults.c")
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source], check=True)
    return library


@pytest.mark.parametrize("fault", ["torn", "power", "full", "refused"])
@pytest.mark.parametrize("story", STORIES)
def test_leaves_the_old_state_or_the_new(story: str, fault: str, faults: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.embedding_cache.crashes.every_point", story, fault, str(tmp_path)],
        env={**os.environ, "LD_PRELOAD": str(faults)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["points"] >= 15
    assert found["old"] >= 1
    assert found["new"] >= 1
    assert ("between" in found) <= (story == "gc")
