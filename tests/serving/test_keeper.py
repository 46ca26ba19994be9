"""Children that die are started again; how long that takes decides nothing here."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rankhouse.serving import keeper as keeper_module
from rankhouse.serving.errors import ProcessFailedError
from rankhouse.serving.keeper import Keeper
from rankhouse.serving.processes import ChildProcess


class Sleeper:
    """A child that says its number and sleeps, or ends at once."""

    def __init__(self, folder: Path, *, is_lasting: bool) -> None:
        sleeping = "time.sleep(60)" if is_lasting else "sys.exit(3)"
        code = f"import sys, time; print('started', flush=True); {sleeping}"
        self.process = ChildProcess("the sleeper", [sys.executable, "-c", code], log_path=folder / "sleeper.log")

    def start(self) -> None:
        self.process.start()

    def stop(self) -> None:
        self.process.stop()


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Sleeper]:
    child = Sleeper(tmp_path, is_lasting=True)
    child.start()
    yield child
    child.stop()


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "_FIRST_PAUSE_SECONDS", 0.001)


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def kill(child: Sleeper) -> None:
    eventually(lambda: "started" in child.process.log_tail())
    assert child.process.pid is not None
    os.kill(child.process.pid, signal.SIGKILL)
    eventually(lambda: child.process.exit_status is not None)


def test_what_lives_is_left_alone(sleeper: Sleeper) -> None:
    pid = sleeper.process.pid
    Keeper([sleeper]).look()
    assert sleeper.process.pid == pid


def test_what_died_is_started_again_and_its_log_kept(sleeper: Sleeper, tmp_path: Path) -> None:
    pid, news = sleeper.process.pid, []
    kill(sleeper)
    Keeper([sleeper], on_death=news.append).look()
    assert sleeper.process.exit_status is None
    assert sleeper.process.pid != pid
    kept = tmp_path / "sleeper.died.log"
    assert kept.read_text() == "started\n"
    assert news == [f"the sleeper died (status -9); it is started again, and its log is kept as {kept}"]


def test_the_fifth_death_within_a_minute_is_the_last(sleeper: Sleeper) -> None:
    keeper = Keeper([sleeper], on_death=lambda line: None)
    for _ in range(4):
        kill(sleeper)
        keeper.look()
    kill(sleeper)
    with pytest.raises(
        ProcessFailedError, match=r"the sleeper died \(status -9\); that was death number 5 within 60 s"
    ):
        keeper.look()


def test_what_cannot_live_is_given_up(tmp_path: Path) -> None:
    child = Sleeper(tmp_path, is_lasting=False)
    child.start()
    keeper = Keeper([child], on_death=lambda line: None)

    def look() -> bool:
        keeper.look()
        return False

    with pytest.raises(ProcessFailedError, match=r"status 3.*\n.*started"):
        eventually(look)
