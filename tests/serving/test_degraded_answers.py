"""Rows in a Redis that stops answering: requests that got default rows say so, from Triton to the client."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import grpc
import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from rankhouse.cli.main import app
from rankhouse.embedding_cache.format.version import Version
from rankhouse.embedding_cache.redis_client import RedisClient
from rankhouse.embedding_cache.redis_push import push_version
from rankhouse.serving.errors import GatewayError, GoldenMismatchError, ModelLoadError
from rankhouse.serving.gateway.messages import ScoreRequest
from rankhouse.serving.gateway_client import GrpcClient, RestClient
from rankhouse.serving.golden import replay_golden
from rankhouse.serving.model_repository import features_step, write_models
from rankhouse.serving.triton_client import ScoreResult, TritonClient
from rankhouse.serving.triton_server import TritonServer
from tests.embedding_cache.redis_tier.servers import READER, WRITER, Certificates, Server, new_server, until
from tests.serving.gateway.running import RunningGateway
from tests.serving.small_version import MODEL, ROWS, Weights, raw_batch, write_version
from tests.serving.triton_backend.inference import Inference, as_element, raw_arrays, write_batched

pytestmark = pytest.mark.triton

T = TypeVar("T")


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("redis")
    server = new_server(folder / "node", Certificates.make(folder), is_cluster=False)
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextmanager
def triton_over(redis: Server, run_dir: Path, **options: str) -> Iterator[TritonServer]:
    """A server whose engine reads rows in Redis, and soon gives up."""
    engine_options = {
        "rows": "redis",
        "redis.url": f"redis://reader@{redis.name}",
        "redis.password_env": "READER_PASSWORD",
        "redis.deadline_ms": "1000",
        "redis.breaker_ms": "1",
        **options,
    }
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("READER_PASSWORD", READER)
        server = TritonServer(run_dir / "models", run_dir=run_dir, engine_options=engine_options)
        server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="module")
def triton(redis: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    """One that answers with default rows."""
    with triton_over(redis, tmp_path_factory.mktemp("triton"), if_tier_fails="default_row") as server:
        yield server


@pytest.fixture
def push(redis: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Version]:
    """Writes the small version with a seed, whose rows no other test has had cached, and pushes it."""
    monkeypatch.setenv("WRITER_PASSWORD", WRITER)

    def pushed(seed: int) -> Version:
        version = write_version(tmp_path / "store", seed=seed)
        with RedisClient(f"redis://writer@{redis.name}", password_env="WRITER_PASSWORD", deadline_ms=60_000) as writer:
            push_version(version, writer)
        return version

    return pushed


def call(triton: TritonServer, act: Callable[[TritonClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with TritonClient(triton.grpc_url) as client:
            return await act(client)

    return asyncio.run(run())


def patiently(act: Callable[[], T]) -> T:
    """Does what needs Redis, and again where that did not answer by the engine's short deadline."""
    results: list[T] = []

    def is_done() -> bool:
        try:
            results.append(act())
        except (ModelLoadError, GoldenMismatchError, grpc.RpcError) as exc:
            if "by the deadline" not in str(exc) and "default rows" not in str(exc):
                raise
        return bool(results)

    until("Redis answers", is_done)
    return results[0]


def load(triton: TritonServer, version: Version) -> str:
    name = write_models(version, repository=triton.repository)
    patiently(lambda: call(triton, lambda client: client.load(name)))
    return name


def score(triton: TritonServer, ensemble: str) -> ScoreResult:
    return call(triton, lambda client: client.score(ensemble, raw_batch(ROWS), timeout_seconds=60.0))


def test_scores_of_default_rows_are_marked_until_redis_answers(
    triton: TritonServer, redis: Server, push: Callable[[int], Version]
) -> None:
    ensemble, weights = load(triton, push(20)), Weights(20)
    right = weights.scores(ROWS)
    weights.tables = {name: np.zeros_like(rows) for name, rows in weights.tables.items()}
    with redis.paused():
        result = score(triton, ensemble)
    assert result.is_degraded
    np.testing.assert_allclose(result.scores, weights.scores(ROWS), rtol=0, atol=1e-6)
    until("Redis answers", lambda: not score(triton, ensemble).is_degraded)
    np.testing.assert_allclose(score(triton, ensemble).scores, right, rtol=0, atol=1e-6)
    with redis.paused():
        assert not score(triton, ensemble).is_degraded, "all of it is cached"


def test_the_mark_is_of_the_request_not_of_its_batch(
    triton: TritonServer, redis: Server, push: Callable[[int], Version]
) -> None:
    version = push(21)
    with Inference(triton.grpc_url) as inference:
        model = write_batched(version, features_step(version), repository=triton.repository)
        patiently(lambda: inference.load(model))
        cached, other = (as_element(raw_arrays(raw_batch([row]))) for row in ROWS[:2])
        until("Redis answers", lambda: not inference.infer(model, cached)["degraded"].any())
        right = inference.infer(model, cached)
        answered, executed = inference.executions(model)
        with redis.paused():
            calls = [inference.begin(model, arrays) for arrays in (cached, other, cached)]
            answers = [one.result() for one in calls]
        assert inference.executions(model) == (answered + 3, executed + 1)
    assert [answer["degraded"].tolist() for answer in answers] == [[[0]], [[1]], [[0]]]
    for answer in answers[::2]:
        np.testing.assert_array_equal(answer["embeddings"], right["embeddings"])


def test_a_batch_waits_for_one_deadline_however_many_requests_it_has(
    triton: TritonServer, redis: Server, push: Callable[[int], Version]
) -> None:
    version = push(25)
    failures = "rankhouse_embedding_tier_failures_total"
    lookups = f'rankhouse_embedding_lookups_total{{model="{MODEL}",version="{version.name}"'
    with Inference(triton.grpc_url) as inference:
        model = write_batched(version, features_step(version), repository=triton.repository)
        patiently(lambda: inference.load(model))
        # Counters reach Triton's metrics by and by: this copy has the failures of the tests before.
        until("the version is in a copy", lambda: lookups in httpx.get(triton.metrics_url, timeout=60.0).text)
        before = counter(triton, failures)
        with redis.paused():
            calls = [inference.begin(model, as_element(raw_arrays(raw_batch([row])))) for row in ROWS[:3]]
            assert all(call.result()["degraded"].all() for call in calls)
        assert inference.executions(model) == (3, 1)
        until("the counters are copied", lambda: counter(triton, lookups) == 4)
        until("the failure is counted", lambda: counter(triton, failures) > before)
        assert counter(triton, failures) == before + 1, "Redis is asked once, for all of them"


def counter(triton: TritonServer, name: str) -> float:
    """The sum of those of Triton's counters whose name and labels have this part."""
    lines = httpx.get(triton.metrics_url, timeout=60.0).text.splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if name in line and not line.startswith("#"))


def test_clients_are_told_and_prometheus_counts(
    triton: TritonServer, redis: Server, push: Callable[[int], Version]
) -> None:
    version = push(22)
    load(triton, version)
    request = ScoreRequest(list(ROWS))
    counter = f'rankhouse_degraded_answers_total{{model="{MODEL}",version="{version.name}"}}'
    with (
        RunningGateway(version.store, triton.grpc_url) as gateway,
        RestClient(gateway.url, timeout_seconds=60.0) as rest,
        GrpcClient(gateway.grpc_address, timeout_seconds=60.0) as over_grpc,
    ):
        with redis.paused():
            assert rest.score(MODEL, request).degraded
            assert over_grpc.score(MODEL, request).degraded
        until("Redis answers", lambda: not rest.score(MODEL, request).degraded)
        degraded = httpx.get(f"{gateway.url}/metrics", timeout=60.0).text.split(counter)[1].split()[0]
        assert float(degraded) >= 2
        answer = httpx.post(gateway.score_url, json={"candidates": list(ROWS)}, timeout=60.0).json()
        assert answer["degraded"] is False
        assert not over_grpc.score(MODEL, request).degraded
        assert f"{counter} {degraded}\n" in httpx.get(f"{gateway.url}/metrics", timeout=60.0).text


def test_rankhouse_score_says_so(
    triton: TritonServer, redis: Server, push: Callable[[int], Version], tmp_path: Path
) -> None:
    version, file = push(26), tmp_path / "rows.csv"
    load(triton, version)
    file.write_text("city,item\noslo,7\nrome,1\n")
    with RunningGateway(version.store, triton.grpc_url) as gateway:

        def score_file(*arguments: str) -> str:
            command = ["score", str(file), "--url", gateway.url, "--as-candidates", "1", *arguments]
            result = CliRunner().invoke(app, command, terminal_width=200)
            assert result.exit_code == 0, result.output
            return result.stdout

        with redis.paused():
            assert "degraded: in 2 of 2 answers default rows stand in for embeddings" in score_file()
            lines = score_file("--json", "--grpc", gateway.grpc_address).splitlines()
            assert [json.loads(line)["degraded"] for line in lines] == [True, True]
        until("Redis answers", lambda: "degraded" not in score_file())
        assert [json.loads(line)["degraded"] for line in score_file("--json").splitlines()] == [False, False]


def test_golden_requests_answered_with_default_rows_prove_nothing(
    triton: TritonServer, redis: Server, push: Callable[[int], Version]
) -> None:
    version = push(23)
    ensemble = load(triton, version)
    with redis.paused(), pytest.raises(GoldenMismatchError, match="golden request 0 was answered with default rows"):
        call(triton, lambda client: replay_golden(client, ensemble, version))
    until("Redis answers", lambda: not score(triton, ensemble).is_degraded)
    report = patiently(lambda: call(triton, lambda client: replay_golden(client, ensemble, version)))
    assert report.num_requests == 1


def test_without_the_option_there_is_no_answer(redis: Server, push: Callable[[int], Version], tmp_path: Path) -> None:
    version = push(24)
    with triton_over(redis, tmp_path) as triton:
        load(triton, version)
        with (
            RunningGateway(version.store, triton.grpc_url) as gateway,
            RestClient(gateway.url, timeout_seconds=60.0) as rest,
            redis.paused(),
            pytest.raises(GatewayError, match="by the deadline"),
        ):
            rest.score(MODEL, ScoreRequest(list(ROWS)))


def test_without_the_option_the_requests_of_a_batch_learn_which_node_was_silent(
    redis: Server, push: Callable[[int], Version], tmp_path: Path
) -> None:
    version = push(28)
    with triton_over(redis, tmp_path) as triton, Inference(triton.grpc_url) as inference:
        model = write_batched(version, features_step(version), repository=triton.repository)
        patiently(lambda: inference.load(model))
        cached, *others = (as_element(raw_arrays(raw_batch([row]))) for row in ROWS[:3])
        patiently(lambda: inference.infer(model, cached))
        answered, executed = inference.executions(model)
        with redis.paused():
            calls = [inference.begin(model, arrays) for arrays in (*others, cached)]
            for call in calls[:2]:
                with pytest.raises(grpc.RpcError, match=f"by the deadline: no answer from {redis.name}"):
                    call.result()
            assert not calls[2].result()["degraded"].any()
        assert inference.executions(model) == (answered + 1, executed + 1)
