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
        timeout=850,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["points"] >= 15
    assert found["old"] >= 1
    assert found["new"] >= 1
    assert ("between" in found) <= (story == "gc")


# A process that may not write files beyond a size, as on a disk that is almost full: the system itself refuses.
LIMITED = """
import resource, sys
from pathlib import Path
from rankhouse.embedding_cache.format.errors import StorageError
from rankhouse.embedding_cache.format.version import VersionStore
from tests.embedding_cache.crashes.stories import STORIES, contents, make_store

root, story, limit = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
before = contents(make_store(root))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
store = VersionStore(root / "store")
try:
    STORIES[story](store, root)
except StorageError as error:
    assert "cannot be written ([Errno 27] File too large); no version was changed" in str(error), error
    assert contents(store) == before
    assert not list(store.path.glob("*/.tmp-*"))
    print("refused")
else:
    print("written")
"""


@pytest.mark.parametrize("story", ["write", "write_delta", "compact"])
def test_a_writer_that_the_system_limits_leaves_the_old_state(story: str, tmp_path: Path) -> None:
    outcomes = []
    for limit in (100, 1000, 4100, 1 << 20):
        arguments = [str(tmp_path / str(limit)), story, str(limit)]
        done = subprocess.run(
            [sys.executable, "-c", LIMITED, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        outcomes.append(done.stdout.strip())
    assert outcomes == ["refused", "refused", "refused", "written"]
