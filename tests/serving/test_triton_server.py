import asyncio
import socket
import urllib.request
from pathlib import Path

import pytest

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving import triton_server
from rankhouse.serving.errors import AddressError, ProcessFailedError, ProgramMissingError
from rankhouse.serving.model_repository import features_step, python_dense_step, write_ensemble
from rankhouse.serving.processes import free_ports
from rankhouse.serving.triton_client import TritonClient
from rankhouse.serving.triton_server import TritonPorts, TritonServer, installed_program, packaged_program
from tests.embedding_cache.redis_tier.servers import until

pytestmark = pytest.mark.triton


def processes_of(session: int) -> list[int]:
    """The living processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, its_session = stat.read_text().rsplit(")")[-1].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(its_session) == session and state != "Z":
            found.append(int(stat.parent.name))
    return found


def test_stop_leaves_no_process_no_port_and_no_shared_memory(tmp_path: Path, version: Version) -> None:
    with TritonServer(tmp_path / "models", run_dir=tmp_path) as server:
        pid = server.process.pid
        assert pid is not None

        async def load() -> None:
            async with TritonClient(server.grpc_url) as client:
                write_ensemble(
                    "any", (features_step(version), python_dense_step(version)), repository=server.repository
                )
                await client.load("any")

        asyncio.run(load())
        assert len(processes_of(pid)) == 2, "the server and the process of the Python step"
        with urllib.request.urlopen(server.metrics_url, timeout=60) as reply:
            assert b"nv_inference_request_success" in reply.read()
        assert list(Path("/dev/shm").glob(f"{server.memory_prefix}*"))
    until("all processes are gone", lambda: processes_of(pid) == [])
    assert not list(Path("/dev/shm").glob(f"{server.memory_prefix}*"))
    for port in (server.ports.http, server.ports.grpc, server.ports.metrics):
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = TritonServer(tmp_path / "models", run_dir=tmp_path, ports=TritonPorts(grpc=port))
        with pytest.raises(AddressError, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use"):
            server.start()
    assert server.process.pid is None


def test_a_server_that_dies_shows_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        # As when somebody takes the port just after it was found free.
        monkeypatch.setattr(TritonPorts, "chosen", lambda ports, host: ports)
        free = free_ports("127.0.0.1", 0, 0)
        server = TritonServer(tmp_path / "models", run_dir=tmp_path, ports=TritonPorts(free[0], port, free[1]))
        with pytest.raises(ProcessFailedError, match=rf"Triton died at its start(.*\n)*.*{port}"):
            server.start()
    pid = server.process.pid
    assert pid is not None
    until("all processes are gone", lambda: processes_of(pid) == [])


def test_a_missing_binary(tmp_path: Path) -> None:
    with pytest.raises(ProgramMissingError, match="/nowhere/tritonserver is not an executable file"):
        TritonServer(tmp_path / "models", run_dir=tmp_path, binary=Path("/nowhere/tritonserver")).start()


def test_a_binary_without_a_python_backend(tmp_path: Path) -> None:
    binary = tmp_path / "bin" / "tritonserver"
    binary.parent.mkdir()
    binary.touch(mode=0o755)
    with pytest.raises(ProgramMissingError, match=f"has no Python backend: expected it in {tmp_path}/backends/python"):
        installed_program(binary, run_dir=tmp_path / "run")


def test_another_binary_is_used_with_its_own_backends(tmp_path: Path) -> None:
    packaged = packaged_program(run_dir=tmp_path / "packaged")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tritonserver").write_text(
        f'#!/bin/sh\nLD_LIBRARY_PATH={":".join(map(str, packaged.libraries))} exec {packaged.binary} "$@"\n'
    )
    (tmp_path / "bin" / "tritonserver").chmod(0o755)
    (tmp_path / "backends").symlink_to(packaged.backends)
    binary = tmp_path / "bin" / "tritonserver"
    ports = TritonPorts(http=free_ports("127.0.0.1", 0)[0])
    with TritonServer(tmp_path / "models", run_dir=tmp_path / "run", binary=binary, ports=ports) as server:
        assert server.ports.http == ports.http
        assert server.process.exit_status is None


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_server.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ProgramMissingError, match=r"pip install nvidia-pytriton==0\.7\.0"):
        packaged_program(run_dir=tmp_path)


def test_a_python_without_a_stub_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_server.sysconfig, "get_python_version", lambda: "4.2")
    with pytest.raises(ProgramMissingError, match=r"runs models in Python .*3\.11.*, not in 4\.2"):
        packaged_program(run_dir=tmp_path)
