import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankhouse.training.runs.stop import STOPPED, StopRequest


@pytest.fixture
def stop(tmp_path: Path) -> Iterator[StopRequest]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield StopRequest(tmp_path / "stop")
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_nobody_asks_at_first(stop: StopRequest) -> None:
    assert not stop


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_to_stop_however_often_it_comes_at_once(stop: StopRequest, number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    os.kill(os.getpid(), number)
    assert stop
    assert stop.exit_status == STOPPED


def test_a_file_asks_to_stop(stop: StopRequest, tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    assert stop
    assert stop.exit_status == 0


def test_a_later_signal_ends_the_process(tmp_path: Path) -> None:
    script = (
        "import time; from pathlib import Path; from rankhouse.training.runs.stop import StopRequest\n"
        f"stop = StopRequest(Path({str(tmp_path)!r}) / 'stop')\n"
        "print('ready', flush=True)\n"
        "while not stop: time.sleep(0.01)\n"
        "time.sleep(1.1); print('noticed', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for expected in ("ready\n", "noticed\n"):
            assert process.stdout.readline() == expected
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert process.returncode == 130
