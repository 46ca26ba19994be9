"""The gateway as a process of its own: its start, its end, its refusals."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.gateway.http_server import listening_socket
from rankhouse.serving.processes import ChildProcess, free_ports
from rankhouse.serving.triton_server import TritonServer
from tests.serving.gateway.half_request import HalfRequest
from tests.serving.small_version import MODEL

SECONDS = 300.0
COMMAND = [sys.executable, "-m", "rankhouse.serving.gateway"]


def environment(**settings: Any) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RANKHOUSE_")}
    return inherited | {f"RANKHOUSE_{name.upper()}": str(value) for name, value in settings.items()}


def eventually(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def answers(url: str, status: int) -> bool:
    try:
        return httpx.get(url, timeout=60.0).status_code == status
    except httpx.TransportError:
        return status == 0


def test_sigterm_drains(
    served_store: Path, served_version: Version, loaded_triton: TritonServer, tmp_path: Path
) -> None:
    (port,) = free_ports("127.0.0.1", 0)
    settings = {"triton_url": loaded_triton.grpc_url, "port": port, "grpc_port": 0, "drain_seconds": 5.0}
    process = ChildProcess(
        "gateway",
        COMMAND,
        log_path=tmp_path / "gateway.log",
        environment=environment(store=served_store, model=MODEL, request_timeout_seconds=SECONDS, **settings),
    )
    url = f"http://127.0.0.1:{port}"
    try:
        process.start()
        eventually(lambda: answers(f"{url}/readyz", 200))
        with HalfRequest(f"{url}/v1/models/{MODEL}/score") as half:
            assert process.pid
            os.kill(process.pid, signal.SIGTERM)
            eventually(lambda: answers(f"{url}/readyz", 503))
            # Still served, as balancers may not have looked yet.
            answer = httpx.post(f"{url}/v1/models/{MODEL}/score", json={"candidates": [{}]}, timeout=60.0)
            assert answer.status_code == 200
            eventually(lambda: answers(f"{url}/readyz", 0))
            assert half.finish().startswith("HTTP/1.1 200 ")
        eventually(lambda: process.exit_status is not None)
        assert process.exit_status == 0, process.log_tail()
    finally:
        process.stop()
    log = process.log_tail(100)
    assert f"model = {MODEL}" in log
    assert f"serves {served_version.name}" in log
    assert "Traceback" not in log


def test_answers_do_not_wait_for_nagle() -> None:
    with listening_socket("127.0.0.1", 0) as listener:
        # What asyncio looks at before it sets TCP_NODELAY on the connections.
        assert listener.proto == socket.IPPROTO_TCP


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": MODEL, "prot": 1}, "error: the environment variable RANKHOUSE_PROT is not a setting"),
        ({"model": "other"}, "error: "),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(
    served_store: Path, served_version: Version, settings: dict[str, Any], message: str
) -> None:
    done = subprocess.run(
        COMMAND,
        env=environment(store=served_store, **settings),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1
