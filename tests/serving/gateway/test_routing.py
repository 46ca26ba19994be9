"""Several versions at once, over real sockets and a real Triton: who is answered by which."""

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest

from rankhouse.serving.control.assignment import RoutingTable
from rankhouse.serving.control.model_state import ModelState, ReplicaReport
from rankhouse.serving.gateway.messages import ScoreRequest
from rankhouse.serving.gateway_client import RestClient, request_message
from rankhouse.serving.ranking_pb2_grpc import RankingStub
from rankhouse.serving.triton_server import TritonServer
from tests.serving.gateway.rolling import SECONDS, TwoVersions, eventually, patient_store, put
from tests.serving.gateway.running import RunningGateway
from tests.serving.small_version import MODEL, ROWS

KEYS = [f"user-{number}" for number in range(40)]
BODY = {"candidates": list(ROWS)}


@pytest.fixture(scope="module")
def state(versions: TwoVersions) -> ModelState:
    return versions.rolling(weight=30.0)


@pytest.fixture(scope="module")
def table(versions: TwoVersions, state: ModelState) -> RoutingTable:
    return RoutingTable.of(state, versions.weights, revision=1)


@pytest.fixture(scope="module")
def rolling(
    versions: TwoVersions, state: ModelState, triton: TritonServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningGateway]:
    url = f"sqlite:///{tmp_path_factory.mktemp('state')}/state.db"
    put(patient_store(url), state)
    settings = {"state_url": url, "version": versions.stable.name, "request_key_feature": "city"}
    with RunningGateway(versions.store, triton.grpc_url, **settings) as gateway:
        eventually(lambda: len(described(gateway)["versions"]) == 2)
        yield gateway


def described(gateway: RunningGateway) -> dict[str, Any]:
    return dict(httpx.get(f"{gateway.url}/v1/models/{MODEL}", timeout=60.0).json())


def post(gateway: RunningGateway, body: dict[str, Any], **headers: str | bytes) -> httpx.Response:
    named = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    in_bytes = [(name, value.encode() if isinstance(value, str) else value) for name, value in named]
    return httpx.post(gateway.score_url, json=body, headers=in_bytes, timeout=60.0)


def test_rest_grpc_and_the_table_agree(rolling: RunningGateway, table: RoutingTable, versions: TwoVersions) -> None:
    answered = set()
    with grpc.insecure_channel(rolling.grpc_address) as channel:
        stub = RankingStub(channel)
        for key in KEYS:
            route = table.version_for(key)
            rest = post(rolling, BODY | {"key": key})
            reply, call = stub.Score.with_call(request_message(MODEL, ScoreRequest(list(ROWS), key=key)), timeout=60.0)
            heads = [rest.headers, dict(call.trailing_metadata())]
            for head in heads:
                assert (head["x-rankhouse-version"], head["x-rankhouse-arm"]) == (route.version, route.arm)
                assert head.get("x-rankhouse-rollout", "") == route.rollout
            assert rest.json()["version"] == reply.version == route.version
            expected = versions.weights[route.version].scores(ROWS)
            np.testing.assert_allclose(rest.json()["scores"], expected, atol=1e-6)
            np.testing.assert_allclose(reply.scores, expected, atol=1e-6)
            answered.add(route.arm)
    assert answered == {"stable", "candidate"}


def test_a_key_is_found_in_the_body_the_head_the_context_or_nowhere(
    rolling: RunningGateway, table: RoutingTable
) -> None:
    def version_of(body: dict[str, Any], **headers: str | bytes) -> str:
        return str(post(rolling, {"candidates": [{}]} | body, **headers).json()["version"])

    users = {table.version_for(key).version: key for key in ("7", *KEYS)}
    assert len(users) == 2
    for version, key in users.items():
        other = next(each for name, each in users.items() if name != version)
        assert version_of({}, x_rankhouse_key=key) == version
        assert version_of({"key": key}, x_rankhouse_key=other) == version
        assert version_of({"context": {"city": key}}) == version
        assert version_of({"context": {"city": other}, "key": key}) == version
        assert version_of({}, x_request_id=key) == version
    assert version_of({"key": 7}) == version_of({"key": "7"}) == table.version_for("7").version
    assert version_of({}, x_rankhouse_key="köln".encode()) == table.version_for("köln").version
    metrics = httpx.get(f"{rolling.url}/metrics", timeout=60.0).text
    assert "rankhouse_requests_without_key_total 2.0" in metrics


def test_a_version_can_be_asked_for(rolling: RunningGateway, versions: TwoVersions) -> None:
    for name, weights in versions.weights.items():
        answer = post(rolling, BODY, x_rankhouse_version=name)
        assert (answer.json()["version"], answer.headers["x-rankhouse-arm"]) == (name, "override")
        np.testing.assert_allclose(answer.json()["scores"], weights.scores(ROWS), atol=1e-6)


def test_a_version_that_is_not_there_cannot_be_asked_for(rolling: RunningGateway) -> None:
    answer = post(rolling, BODY, x_rankhouse_version="000099-00000000")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:rankhouse:problem:no-such-version")
    assert "x-rankhouse-version" not in answer.headers
    message, metadata = request_message(MODEL, ScoreRequest([{}])), (("x-rankhouse-version", "000099-00000000"),)
    with grpc.insecure_channel(rolling.grpc_address) as channel, pytest.raises(grpc.RpcError) as caught:
        RankingStub(channel).Score(message, metadata=metadata, timeout=60.0)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("as_number", [True, False])
def test_a_request_can_ask_for_a_version_as_new_as_it_knows(
    rolling: RunningGateway, table: RoutingTable, versions: TwoVersions, as_number: bool
) -> None:
    newest = versions.candidate.name
    key = next(key for key in KEYS if table.version_for(key).arm == "stable")
    least = int(newest.split("-")[0]) if as_number else newest
    assert post(rolling, BODY | {"key": key, "min_version": least}).json()["version"] == newest
    assert post(rolling, BODY | {"key": key, "min_version": 1}).json()["version"] == versions.stable.name


def test_a_version_that_is_not_there_yet_is_worth_waiting_for(rolling: RunningGateway) -> None:
    answer = post(rolling, BODY | {"min_version": 3})
    assert (answer.status_code, answer.json()["type"]) == (503, "urn:rankhouse:problem:version-not-there-yet")
    assert answer.headers["retry-after"] == "1"
    with grpc.insecure_channel(rolling.grpc_address) as channel, pytest.raises(grpc.RpcError) as caught:
        RankingStub(channel).Score(request_message(MODEL, ScoreRequest([{}], min_version="3")), timeout=60.0)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize(
    ("fields", "path"),
    [({"min_version": "newest"}, "min_version"), ({"min_version": -1}, "min_version"), ({"key": "x" * 513}, "key")],
)
def test_a_wrong_field_is_refused(rolling: RunningGateway, fields: dict[str, Any], path: str) -> None:
    answer = post(rolling, BODY | fields)
    assert (answer.status_code, answer.json()["path"]) == (422, path)


def test_the_choice_of_versions_can_be_switched_off(versions: TwoVersions, triton: TritonServer) -> None:
    settings = {"version": versions.stable.name, "allow_version_override": False}
    with RunningGateway(versions.store, triton.grpc_url, **settings) as gateway:
        answer = post(gateway, BODY, x_rankhouse_version=versions.stable.name)
        assert (answer.status_code, answer.json()["path"]) == (422, "X-Rankhouse-Version")


def test_an_error_says_which_version_refused(rolling: RunningGateway, versions: TwoVersions) -> None:
    answer = post(rolling, {"candidates": [{"city": 3}]}, x_rankhouse_version=versions.candidate.name)
    assert answer.status_code == 422
    assert answer.headers["x-rankhouse-version"] == versions.candidate.name


def test_routes_follow_the_state(versions: TwoVersions, triton: TritonServer, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    store = patient_store(url)
    settings = {"state_url": url, "version": versions.stable.name}
    with RunningGateway(versions.store, triton.grpc_url, **settings) as gateway:
        eventually(lambda: store.revision(MODEL) > 0)
        assert store.read(MODEL).state.stable == versions.stable.name
        revision = put(store, versions.state(stable=versions.candidate))
        eventually(lambda: post(gateway, BODY).json()["version"] == versions.candidate.name)
        eventually(
            lambda: (
                f"rankhouse_control_revision {revision:.1f}" in httpx.get(f"{gateway.url}/metrics", timeout=60.0).text
            )
        )
        reports: list[ReplicaReport] = []

        def is_reported() -> bool:
            reports[:] = store.replicas(MODEL)
            return [report.routing_revision for report in reports] == [revision]

        eventually(is_reported)
        (report,) = reports
        assert report.loaded == (versions.stable.name, versions.candidate.name)
        assert report.urls["rest"] == gateway.url
    assert store.replicas(MODEL) == []


def test_answers_are_of_one_allowed_version_while_versions_change_places(
    versions: TwoVersions, triton: TritonServer, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    store, names = patient_store(url), [versions.stable.name, versions.candidate.name]
    put(store, versions.rolling(weight=50.0))
    expected = {name: weights.scores(ROWS) for name, weights in versions.weights.items()}
    is_over, answered = threading.Event(), set[str]()

    def ask(key: int) -> None:
        with RestClient(gateway.url, timeout_seconds=60.0) as client:
            while not is_over.is_set():
                answer = client.score(MODEL, ScoreRequest(list(ROWS), key=key))
                np.testing.assert_allclose(answer.scores, expected[answer.version], atol=1e-6)
                answered.add(answer.version)

    with (
        RunningGateway(versions.store, triton.grpc_url, state_url=url, version=names[0]) as gateway,
        ThreadPoolExecutor(4) as pool,
    ):
        eventually(lambda: len(described(gateway)["versions"]) == 2)
        asking = [pool.submit(ask, key) for key in range(4)]
        try:
            deadline = time.monotonic() + SECONDS
            for number in itertools.count():
                put(store, versions.state(stable=(versions.stable, versions.candidate)[number % 2]))
                time.sleep(0.05)
                if number >= 20 and (answered == set(names) or time.monotonic() > deadline):
                    break
        finally:
            is_over.set()
        for future in asking:
            future.result()
        assert answered == set(names)
