import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rankhouse.serving.errors import AddressError, ProcessFailedError
from rankhouse.serving.processes import ChildProcess, address, answers_ok, free_ports

# Says its own and its child's process id; both ignore SIGTERM where asked to.
FAMILY = """
import signal, subprocess, sys, time
if sys.argv[1] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
deaf_child = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", deaf_child])
print(child.pid, flush=True)
time.sleep(600)
"""


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("kind", ["polite", "deaf"])
def test_stop_leaves_neither_the_process_nor_its_children(tmp_path: Path, kind: str) -> None:
    process = ChildProcess("a family", [sys.executable, "-c", FAMILY, kind], log_path=tmp_path / "log")
    process.start()
    wait_for(lambda: process.log_tail() != "")
    grandchild = int(process.log_tail())
    assert is_alive(grandchild)
    process.stop(grace_seconds=0.5 if kind == "deaf" else 60.0)
    process.stop()
    assert process.exit_status == (-signal.SIGKILL if kind == "deaf" else -signal.SIGTERM)
    wait_for(lambda: not is_alive(grandchild))


def test_a_killed_starter_takes_its_children_along(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from rankhouse.serving.processes import ChildProcess\n"
        "child = ChildProcess('child', ['/bin/sleep', '600'], log_path=Path(sys.argv[1])); child.start()\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, tmp_path / "log"], stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout
        child = int(starter.stdout.readline())
        assert is_alive(child)
        starter.kill()
    wait_for(lambda: not is_alive(child))


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    process = ChildProcess("nothing", ["/nowhere/program"], log_path=tmp_path / "log")
    with pytest.raises(ProcessFailedError, match="nothing cannot be started: /nowhere/program: No such file"):
        process.start()
    process.stop()
    assert process.pid is None


def test_a_process_that_dies_shows_the_end_of_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('first'); print('last words'); raise SystemExit(3)"]
    process = ChildProcess("it", command, log_path=tmp_path / "log")
    process.start()
    with pytest.raises(ProcessFailedError, match=r"it died at its start \(status 3\); .*\n(.*\n)*last words"):
        process.wait_until(lambda: False, timeout_seconds=60)


def test_a_process_that_is_not_ready_in_time(tmp_path: Path) -> None:
    process = ChildProcess("it", ["/bin/sleep", "600"], log_path=tmp_path / "log")
    process.start()
    try:
        with pytest.raises(ProcessFailedError, match=r"it was not ready within 0\.1 s"):
            process.wait_until(lambda: False, timeout_seconds=0.1)
    finally:
        process.stop()


def test_a_taken_port_and_a_foreign_address_are_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressError, match=f"port {port}: Address already in use; choose another or 0"):
            free_ports("127.0.0.1", 0, port)
    assert free_ports("127.0.0.1", port) == [port]
    with pytest.raises(AddressError, match=r"cannot listen on 192\.0\.2\.1 port 0"):
        free_ports("192.0.2.1", 0)


def test_free_ports_are_free_and_answer_nothing() -> None:
    ports = free_ports("127.0.0.1", *[0] * 50)
    assert len(set(ports)) == 50
    assert not answers_ok("127.0.0.1", ports[0], "/")
    with socket.create_server(("127.0.0.1", ports[0])):
        pass


def test_an_ipv6_address_is_in_brackets() -> None:
    assert address("127.0.0.1", 80) == "127.0.0.1:80"
    assert address("::1", 80) == "[::1]:80"


def test_a_process_has_a_session_of_its_own(tmp_path: Path) -> None:
    process = ChildProcess("it", ["/bin/sleep", "600"], log_path=tmp_path / "log")
    process.start()
    assert process.pid is not None
    try:
        assert os.getsid(process.pid) == process.pid != os.getsid(0)
    finally:
        process.stop()
