"""What a replica starts by while the store is gone."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankhouse.serving.control.last_known_state import LastKnownState
from rankhouse.serving.control.state_store import Stored
from rankhouse.serving.errors import CorruptStateError, StoreFullError
from tests.embedding_cache.redis_tier.servers import until
from tests.serving.control.states_of_models import begun, spec, stable_at


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "last_state.json"


def test_the_last_state_comes_back(path: Path) -> None:
    kept = LastKnownState(path)
    assert kept.read("m") is None
    for revision, state in ((3, stable_at(1)), (4, begun(stable_at(1), spec(2)))):
        kept.write(Stored(state, revision))
        assert kept.read("m") == Stored(state, revision)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "content", [b"", b"4", b"4\n", b"x\n{}", b"4\n{}", b'4\n{"model": "m", "colour": 1}', b"\xff\n\xff"]
)
def test_damage_is_told(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(CorruptStateError, match=r"the last known state .*last_state\.json cannot be read: .*remove it"):
        LastKnownState(path).read("m")


def test_another_model_is_told(path: Path) -> None:
    LastKnownState(path).write(Stored(stable_at(1), 1))
    with pytest.raises(CorruptStateError, match="is of model m, not other; remove it"):
        LastKnownState(path).read("other")


def test_a_folder_that_is_gone_is_told(path: Path) -> None:
    with pytest.raises(StoreFullError, match="cannot be kept in"):
        LastKnownState(path / "x").write(Stored(stable_at(1), 1))


def test_a_kill_leaves_a_whole_state(path: Path) -> None:
    code = f"""
from pathlib import Path
from rankhouse.serving.control.last_known_state import LastKnownState
from rankhouse.serving.control.state_store import Stored
from tests.serving.control.states_of_models import name, stable_at
kept = LastKnownState(Path({str(path)!r}))
for revision in range(1, 1_000_000):
    quarantined = {{name(number): "x" * 50 for number in range(revision % 50)}}
    kept.write(Stored(stable_at(1, quarantined=quarantined), revision))
"""
    for _ in range(5):
        path.unlink(missing_ok=True)
        writer = subprocess.Popen((sys.executable, "-c", code))
        try:
            until("it has written", lambda: (LastKnownState(path).read("m") or Stored(stable_at(1), 0)).revision > 5)
        finally:
            writer.send_signal(signal.SIGKILL)
            writer.wait(30)
        stored = LastKnownState(path).read("m")
        assert stored is not None
        assert len(stored.state.quarantined) == stored.revision % 50
