import asyncio
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rankhouse.cli.main import app
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.serving.supervisor import READY_FILE
from rankhouse.serving.triton_client import TritonClient
from rankhouse.serving.triton_server import TritonServer
from tests.serving.small_version import MODEL, ROWS, Weights, write_delta, write_version

pytestmark = pytest.mark.triton


@contextmanager
def serving(store: Path | str, run_dir: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Runs `rankhouse serve` on free ports, and ends it however the test ends."""
    command = [sys.executable, "-m", "rankhouse.cli.main", "serve", "--store", store, "--model", MODEL]
    command += ["--port", "0", "--grpc-port", "0", "--admin-port", "0", "--run-dir", run_dir, *options]
    # Whoever is asked here answers rightly, and not within a time.
    environment = os.environ | {"COLUMNS": "200", "RANKHOUSE_REQUEST_TIMEOUT_SECONDS": "60"}
    with subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def wait_until_ready(process: subprocess.Popen[str], run_dir: Path) -> dict[str, str]:
    """Waits for the file that says so, and for what is printed after it; returns the file's content."""
    deadline = time.monotonic() + 300
    while not ((run_dir / READY_FILE).exists() and select.select([process.stdout], [], [], 0)[0]):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    document: dict[str, str] = json.loads((run_dir / READY_FILE).read_text())
    return document


def score(rest_url: str) -> list[float]:
    body = json.dumps({"context": {}, "candidates": ROWS}).encode()
    request = urllib.request.Request(
        f"{rest_url}/v1/models/{MODEL}/score", body, {"content-type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=60) as reply:
        scores: list[float] = json.load(reply)["scores"]
        return scores


def answers_as(rest_url: str, weights: Weights) -> bool:
    """Whether there is an answer, which then is right. That a child died may be noticed a moment after its death."""
    try:
        found = score(rest_url)
    except urllib.error.HTTPError as exc:
        exc.close()
        if exc.code != 503:
            raise
        return False
    except OSError:  # Nobody listens.
        return False
    np.testing.assert_allclose(found, weights.scores(ROWS), rtol=0, atol=1e-6)
    return True


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=60) as reply:
            status: int = reply.status
            return status
    except urllib.error.HTTPError as exc:
        exc.close()
        return exc.code
    except OSError:  # Nobody listens.
        return 0


def eventually(process: subprocess.Popen[str], is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not is_so():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)


def pids(parent: int, program: str) -> list[int]:
    return [pid for pid in children_of(parent) if program in Path(f"/proc/{pid}/cmdline").read_text()]


def kill(parent: int, program: str) -> None:
    (pid,) = pids(parent, program)
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 300
    while pid in children_of(parent):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def assert_free(url: str) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_server((host, int(port))):
        pass


def test_serves_from_a_bucket(rclone_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    version = write_version(tmp_path / "writer", url=rclone_url)
    monkeypatch.setenv("RANKHOUSE_CACHE", str(tmp_path / "mirrors"))
    with serving(rclone_url, tmp_path / "run") as process:
        ready = wait_until_ready(process, tmp_path / "run")
        np.testing.assert_allclose(score(ready["rest_url"]), Weights(0).scores(ROWS), rtol=0, atol=1e-6)
        process.terminate()
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    (mirror,) = (tmp_path / "mirrors").iterdir()
    assert VersionStore(mirror).names() == [version.name]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serves_the_latest_version_until_it_is_asked_to_stop(
    store: Path, version: Version, tmp_path: Path, number: int
) -> None:
    with serving(version.store, tmp_path, "--version", version.name) as process:
        ready = wait_until_ready(process, tmp_path)
        np.testing.assert_allclose(score(ready["rest_url"]), Weights(0).scores(ROWS), rtol=0, atol=1e-6)
        children = children_of(process.pid)
        assert len(children) == 2, "Triton and the gateway"
        process.send_signal(number)
        output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert ready["rest_url"] in output
    assert re.search(r"golden +2 scores, at most \d\.\de-\d\d from the trainer's", output)
    assert not any(map(is_running, children))
    assert not (tmp_path / READY_FILE).exists()
    for url in ("rest_url", "grpc_url", "triton_url"):
        assert_free(ready[url])


@pytest.mark.parametrize("victim", ["tritonserver", "rankhouse.serving.gateway"])
def test_a_dead_child_is_started_again(version: Version, tmp_path: Path, victim: str) -> None:
    with serving(version.store, tmp_path, "--version", version.name) as process:
        ready = wait_until_ready(process, tmp_path)
        children = children_of(process.pid)
        kill(process.pid, victim)
        eventually(process, lambda: len(set(children_of(process.pid)) - set(children)) == 1)
        eventually(process, lambda: answers_as(ready["rest_url"], Weights(0)))
        eventually(process, lambda: status_of(f"{ready['rest_url']}/readyz") == 200)
        process.terminate()
        output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert re.search(
        r"(Triton|the gateway) died \(status -9\); it is started again, and its log is kept as .*died.log", output
    )
    assert len(list(tmp_path.glob("*.died.log"))) == 1


def test_a_version_without_one_of_its_steps_is_loaded_again(version: Version, tmp_path: Path) -> None:
    async def unload_step() -> None:
        async with TritonClient(ready["triton_url"]) as client:
            await client.unload(f"{MODEL}.{ready['version']}.dense")

    with serving(version.store, tmp_path, "--version", version.name) as process:
        ready = wait_until_ready(process, tmp_path)
        asyncio.run(unload_step())
        log = tmp_path / "gateway.log"
        eventually(process, lambda: f"Triton does not have {version.name} any more" in log.read_text())
        eventually(process, lambda: answers_as(ready["rest_url"], Weights(0)))
        eventually(process, lambda: status_of(f"{ready['rest_url']}/readyz") == 200)


def test_a_new_version_is_served_without_a_restart(tmp_path: Path) -> None:
    store, run_dir = tmp_path / "store", tmp_path / "run"
    first = write_version(store, seed=1)
    with serving(store, run_dir) as process:
        ready = wait_until_ready(process, run_dir)
        second = write_delta(store, first, seed=2)
        eventually(process, lambda: wait_until_ready(process, run_dir)["version"] == second.name)
        np.testing.assert_allclose(score(ready["rest_url"]), Weights(2).scores(ROWS), rtol=0, atol=1e-6)
        damaged = write_delta(store, second, seed=3, wrong_by=1.0)
        log = run_dir / "gateway.log"
        eventually(process, lambda: f"version {damaged.name} is quarantined" in log.read_text())
        process.terminate()
        output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert "a new version in the store is served as soon as it is proven" in output
    # What was found out stays: the next one begins with the version that was served.
    with serving(store, run_dir, "--refresh", "manual") as process:
        assert wait_until_ready(process, run_dir)["version"] == second.name
        process.terminate()
        output, _ = process.communicate(timeout=300)
    assert "new versions wait for you" in output


def test_a_taken_port_is_found_before_anything_starts(version: Version, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with serving(version.store, tmp_path / "run", "--port", port) as process:
            _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in errors
    assert not (tmp_path / "run").exists()


def test_wrong_golden_scores_take_no_traffic(tmp_path: Path) -> None:
    write_version(tmp_path / "store", wrong_by=2e-5)
    with serving(tmp_path / "store", tmp_path / "run") as process:
        output, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert re.search(r"takes no traffic: golden request 0, candidate \d scores 0\.\d+ here and 0\.\d+ at the", errors)
    assert "/docs" not in output


def test_a_damaged_version_takes_no_traffic(tmp_path: Path) -> None:
    version = write_version(tmp_path / "store")
    content = bytearray(version.dense_path.read_bytes())
    content[-1] ^= 1
    version.dense_path.write_bytes(content)
    with serving(tmp_path / "store", tmp_path / "run") as process:
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "no version can be served" in errors
    assert "dense.onnx: its content was altered" in errors
    assert not (tmp_path / "run" / READY_FILE).exists()


def test_a_server_that_already_runs(version: Version, tmp_path: Path, triton: TritonServer) -> None:
    options = ("--triton-url", triton.grpc_url, "--triton-repository", str(triton.repository))
    with serving(version.store, tmp_path, "--version", version.name, *options) as process:
        ready = wait_until_ready(process, tmp_path)
        assert ready["triton_url"] == triton.grpc_url
        np.testing.assert_allclose(score(ready["rest_url"]), Weights(0).scores(ROWS), rtol=0, atol=1e-6)
        assert len(children_of(process.pid)) == 1
        process.terminate()
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert triton.process.exit_status is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--triton-url", "127.0.0.1:1"), "--triton-url and --triton-repository go together"),
        (("--triton-url", "127.0.0.1:1", "--triton-bin", "/bin/true"), "not both"),
        (("--engine", "num_threads"), "expected name=value"),
        (("--engine", "device=0"), "expected --device N"),
        (("--version", "000001-aaaaaaaa", "--refresh", "direct"), "is served and no other"),
        (("--refresh", "always"), "expected direct, rollout or manual"),
        (("--refresh", "rollout"), "--refresh rollout and --rollout FILE go together"),
        (
            ("--triton-url", "127.0.0.1:1", "--triton-repository", "/tmp", "--engine", "num_threads=1"),
            "--engine goes to a Triton that starts here",
        ),
    ],
)
def test_options_that_contradict_each_other(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    command = ["serve", "--store", str(tmp_path), "--model", MODEL, "--run-dir", str(tmp_path / "run"), *options]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, command)
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--triton-bin", "/nowhere/tritonserver"), "/nowhere/tritonserver is not an executable file"),
        (("--version", "000009-00000000"), "has no version '000009-00000000'"),
        (("--engine", "num_thread=1"), "num_threads"),
        (("--device", "1000"), "'device' is 1000, but "),
        (("--state", "mysql://127.0.0.1/0"), "begins with 'mysql'"),
        (("--state", "redis://127.0.0.1:1/0"), "127.0.0.1:1"),
        (("--triton-url", "127.0.0.1:1", "--triton-repository", "/tmp"), "at Triton 127.0.0.1:1: "),
    ],
)
def test_what_is_not_there_is_named(version: Version, tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    with serving(version.store, tmp_path / "run", *options) as process:
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 1
    assert message in errors
