"""What bounds a request, and what happens at the bound."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.errors import AddressError
from rankhouse.serving.gateway.messages import ScoreRequest
from rankhouse.serving.gateway_client import request_message
from rankhouse.serving.ranking_pb2_grpc import RankingStub
from rankhouse.serving.triton_server import TritonServer
from tests.serving.gateway.half_request import HalfRequest
from tests.serving.gateway.running import RunningGateway
from tests.serving.small_version import MODEL, write_version

NOBODY = "127.0.0.1:1"
ONE = {"candidates": [{}]}


@contextmanager
def code_of(gateway: RunningGateway, request: ScoreRequest, **call: Any) -> Iterator[grpc.RpcError]:
    with grpc.insecure_channel(gateway.grpc_address) as channel, pytest.raises(grpc.RpcError) as caught:
        RankingStub(channel).Score(request_message(MODEL, request), **{"timeout": 30.0, **call})
    yield caught.value


def test_a_body_may_not_be_too_large(served_store: Path, served_version: Version) -> None:
    large = {"candidates": [{"city": "o" * 2000}]}
    with RunningGateway(served_store, NOBODY, max_body_bytes=1000) as gateway:
        response = httpx.post(gateway.score_url, json=large, timeout=60.0)
        assert (response.status_code, response.json()["type"]) == (413, "urn:rankhouse:problem:body-too-large")
        assert "more than 1000 bytes" in response.json()["detail"]
        in_chunks = httpx.post(gateway.score_url, content=iter([b" " * 600] * 2), timeout=60.0)
        assert in_chunks.status_code == 413
        with code_of(gateway, ScoreRequest(**large)) as error:
            assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_headers_may_not_be_too_large(served_store: Path, served_version: Version) -> None:
    with RunningGateway(served_store, NOBODY, max_header_bytes=1000) as gateway:
        response = httpx.get(f"{gateway.url}/healthz", headers={"x-large": "x" * 1000}, timeout=60.0)
        assert (response.status_code, response.json()["type"]) == (431, "urn:rankhouse:problem:headers-too-large")


def test_headers_without_an_end_are_not_kept(gateway: RunningGateway) -> None:
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as client, pytest.raises(ConnectionError):
        client.sendall(b"GET /healthz HTTP/1.1\r\n" + b"x-more: xxxxxxxx\r\n" * 1_000_000)
    assert httpx.get(f"{gateway.url}/healthz", timeout=60.0).status_code == 200


def test_too_many_requests_at_a_time_are_refused(
    served_store: Path, served_version: Version, loaded_triton: TritonServer
) -> None:
    with RunningGateway(served_store, loaded_triton.grpc_url, max_in_flight=1) as gateway:
        with HalfRequest(gateway.score_url) as half:
            response = httpx.post(gateway.score_url, json=ONE, timeout=60.0)
            assert (response.status_code, response.json()["type"]) == (503, "urn:rankhouse:problem:overloaded")
            assert response.headers["retry-after"] == "1"
            with code_of(gateway, ScoreRequest(**ONE)) as error:
                assert error.code() is grpc.StatusCode.UNAVAILABLE
            assert half.finish().startswith("HTTP/1.1 200 ")
        assert httpx.post(gateway.score_url, json=ONE, timeout=60.0).status_code == 200


def test_an_answer_must_come_in_time(served_store: Path, served_version: Version) -> None:
    with RunningGateway(served_store, NOBODY, request_timeout_seconds=1e-6) as gateway:
        response = httpx.post(gateway.score_url, json=ONE, timeout=60.0)
        assert (response.status_code, response.json()["type"]) == (504, "urn:rankhouse:problem:deadline")
        with code_of(gateway, ScoreRequest(**ONE)) as error:
            assert error.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_body_must_come_in_time(served_store: Path, served_version: Version) -> None:
    with (
        RunningGateway(served_store, NOBODY, request_timeout_seconds=0.2) as gateway,
        HalfRequest(gateway.score_url, is_awaited=False) as half,
    ):
        assert half.read().startswith("HTTP/1.1 504 ")


def test_without_triton_nothing_is_ready_but_the_process_lives(served_store: Path, served_version: Version) -> None:
    with RunningGateway(served_store, NOBODY) as gateway:
        response = httpx.get(f"{gateway.url}/readyz", timeout=60.0)
        assert (response.status_code, response.json()["type"]) == (503, "urn:rankhouse:problem:not-ready")
        assert httpx.get(f"{gateway.url}/healthz", timeout=60.0).status_code == 200
        assert httpx.post(gateway.score_url, json=ONE, timeout=60.0).json()["type"] == "urn:rankhouse:problem:not-ready"
        with code_of(gateway, ScoreRequest(**ONE)) as error:
            assert error.code() is grpc.StatusCode.UNAVAILABLE


def test_a_version_that_triton_has_not_loaded_is_not_ready(tmp_path: Path, triton: TritonServer) -> None:
    write_version(tmp_path, seed=8)
    with RunningGateway(tmp_path, triton.grpc_url) as gateway:
        assert httpx.get(f"{gateway.url}/readyz", timeout=60.0).status_code == 503
        assert httpx.post(gateway.score_url, json=ONE, timeout=60.0).status_code == 503


@pytest.mark.parametrize(("setting", "name"), [("port", "RANKHOUSE_PORT"), ("grpc_port", "RANKHOUSE_GRPC_PORT")])
def test_a_taken_port_is_an_error(
    served_store: Path, served_version: Version, gateway: RunningGateway, setting: str, name: str
) -> None:
    taken = int((gateway.url if setting == "port" else gateway.grpc_address).rsplit(":", 1)[1])
    with (
        pytest.raises(AddressError, match=rf"cannot listen on 127.0.0.1:{taken}; .* set {name}"),
        RunningGateway(served_store, NOBODY, **{setting: taken}),
    ):
        pass
