import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.errors import (
    InvalidTensorsError,
    ModelLoadError,
    TritonError,
    TritonTimeoutError,
    TritonUnavailableError,
    UnknownModelError,
)
from rankhouse.serving.model_repository import write_models
from rankhouse.serving.processes import free_ports
from rankhouse.serving.triton_client import ScoreResult, TritonClient
from rankhouse.serving.triton_server import TritonServer
from tests.serving.small_version import ROWS, Weights, raw_batch, write_version

pytestmark = pytest.mark.triton

T = TypeVar("T")


def call(triton: TritonServer, act: Callable[[TritonClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with TritonClient(triton.grpc_url) as client:
            return await act(client)

    return asyncio.run(run())


def score(triton: TritonServer, ensemble: str, raw: RawBatch, *, timeout_seconds: float = 60.0) -> np.ndarray:
    result = call(triton, lambda client: client.score(ensemble, raw, timeout_seconds=timeout_seconds))
    assert not result.is_degraded
    return result.scores


@pytest.fixture(scope="module")
def ensemble(triton: TritonServer, version: Version) -> Iterator[str]:
    name = write_models(version, repository=triton.repository)
    call(triton, lambda client: client.load(name))
    yield name
    call(triton, lambda client: client.unload(name))


def test_scores_are_those_of_the_truth(triton: TritonServer, ensemble: str) -> None:
    np.testing.assert_allclose(score(triton, ensemble, raw_batch(ROWS)), Weights(0).scores(ROWS), rtol=0, atol=1e-6)


def test_each_answer_says_how_many_of_its_values_are_unknown(triton: TritonServer, ensemble: str) -> None:
    async def score_all(client: TritonClient) -> list[int]:
        calls = [client.score(ensemble, raw_batch([row] * 3), timeout_seconds=60.0) for row in ROWS]
        return [result.num_unknown for result in await asyncio.gather(*calls)]

    # "atlantis" and 1; "zz" and three times 5: see `small_version.ROWS`.
    assert call(triton, score_all) == [0, 6, 12, 0]


@pytest.mark.parametrize("num_rows", [0, 1, 700])
def test_any_number_of_rows(triton: TritonServer, ensemble: str, num_rows: int) -> None:
    rows = [ROWS[index % len(ROWS)] for index in range(num_rows)]
    np.testing.assert_allclose(score(triton, ensemble, raw_batch(rows)), Weights(0).scores(rows), rtol=0, atol=1e-6)


def test_many_requests_at_once_each_get_their_own_scores(triton: TritonServer, ensemble: str) -> None:
    batches = [[ROWS[(first + k) % len(ROWS)] for k in range(1 + first % 5)] for first in range(60)]

    async def score_all(client: TritonClient) -> list[ScoreResult]:
        calls = [client.score(ensemble, raw_batch(rows), timeout_seconds=60.0) for rows in batches]
        return list(await asyncio.gather(*calls))

    for rows, result in zip(batches, call(triton, score_all), strict=True):
        np.testing.assert_allclose(result.scores, Weights(0).scores(rows), rtol=0, atol=1e-6)


def test_two_versions_side_by_side(triton: TritonServer, ensemble: str, store: Path) -> None:
    other = write_models(write_version(store, seed=1), repository=triton.repository)
    call(triton, lambda client: client.load(other))
    try:
        for name, seed in ((ensemble, 0), (other, 1)):
            np.testing.assert_allclose(
                score(triton, name, raw_batch(ROWS)), Weights(seed).scores(ROWS), rtol=0, atol=1e-6
            )
    finally:
        call(triton, lambda client: client.unload(other))
    with pytest.raises(UnknownModelError, match="has no available versions"):
        score(triton, other, raw_batch(ROWS))
    assert call(triton, lambda client: client.is_ready(ensemble))


def altered(name: str, array: np.ndarray) -> RawBatch:
    """A batch that contradicts itself, as only a client of another make could send it."""
    raw = raw_batch(ROWS)
    object.__setattr__(raw, name, array)
    return raw


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("float_values", np.zeros((4, 3)), r"unexpected shape for input 'float_values'"),
        ("float_values", np.full((4, 2), np.inf), r"float_values\[0, 0\] is inf; expected a finite number"),
        (
            "int_lengths",
            np.array([[8, 0, 0]] + [[0] * 3] * 3, np.int32),
            r"int_lengths has 3 columns; this model has 2 such features",
        ),
        ("int_lengths", np.zeros((4, 2), np.int32), r"int_lengths add up to"),
        ("int_lengths", np.full((4, 2), -1, np.int32), r"none of them negative"),
        ("int_lengths", np.zeros((3, 2), np.int32), r"int_lengths has shape .* and 4 rows"),
        ("int_lengths", np.array([[8, 0]] + [[0, 0]] * 3, np.int32), r"'item' has 8 values in a row"),
        ("text_values", np.array([b"rome", b""], object), r"text_sizes add up to, 4, each of them at least 1"),
        ("text_lengths", np.array([[2, 0, 0], [1, 0, 2], [2, 0, 1], [0, 0, 0]], np.int32), r"'city' has 2 values"),
    ],
)
def test_a_wrong_request_gets_its_own_error(
    triton: TritonServer, ensemble: str, name: str, array: np.ndarray, message: str
) -> None:
    with pytest.raises(InvalidTensorsError, match=message):
        score(triton, ensemble, altered(name, array))


def test_a_wrong_request_disturbs_no_other(triton: TritonServer, ensemble: str) -> None:
    wrong = altered("float_values", np.full((4, 2), -np.inf))

    async def score_both(client: TritonClient) -> list[ScoreResult | BaseException]:
        calls = [client.score(ensemble, raw, timeout_seconds=60.0) for raw in (wrong, raw_batch(ROWS)) * 10]
        return list(await asyncio.gather(*calls, return_exceptions=True))

    results = call(triton, score_both)
    for refused, result in zip(results[::2], results[1::2], strict=True):
        assert isinstance(refused, InvalidTensorsError)
        assert isinstance(result, ScoreResult)
        np.testing.assert_allclose(result.scores, Weights(0).scores(ROWS), rtol=0, atol=1e-6)


def test_no_answer_in_time(triton: TritonServer, ensemble: str) -> None:
    with pytest.raises(TritonTimeoutError, match="no answer within 1e-06 s"):
        score(triton, ensemble, raw_batch(ROWS * 5000), timeout_seconds=1e-6)


def test_no_server_there(version: Version) -> None:
    async def act() -> None:
        async with TritonClient(f"127.0.0.1:{free_ports('127.0.0.1', 0)[0]}") as client:
            assert not await client.is_ready()
            with pytest.raises(TritonUnavailableError, match="scoring with any at Triton 127"):
                await client.score("any", raw_batch(ROWS), timeout_seconds=60.0)

    asyncio.run(act())


class OtherServer(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Answers what no Triton of ours would."""

    def __init__(self, model: str, outputs: dict[str, np.ndarray]) -> None:
        self._reply = service_pb2.ModelInferResponse(model_name=model)
        for name, array in outputs.items():
            self._reply.outputs.add(name=name)
            self._reply.raw_output_contents.append(array.tobytes())

    async def ModelInfer(self, request: object, context: object) -> object:  # noqa: N802  (gRPC's name)
        return self._reply


SCORES = np.full(len(ROWS), 0.5, np.float32)
NONE = np.zeros(1, np.int32)


@pytest.mark.parametrize(
    ("model", "outputs", "message"),
    [
        (
            "small.2",
            {"scores": SCORES, "degraded": NONE, "unknown": NONE},
            r"'small\.2' answered at Triton .* where 'small\.1' was asked",
        ),
        (
            "",
            {"scores": SCORES, "degraded": NONE, "unknown": NONE},
            r"'' answered at Triton .* where 'small\.1' was asked",
        ),
        ("small.1", {"scores": SCORES}, r"small\.1 at Triton .* gave no 'degraded'; write its models again"),
        ("small.1", {"scores": SCORES, "degraded": NONE}, r"gave no 'unknown'; write its models again"),
        ("small.1", {"scores": SCORES[1:], "degraded": NONE, "unknown": NONE}, r"gave 3 scores for 4 rows"),
    ],
)
def test_an_answer_to_something_else_is_refused(model: str, outputs: dict[str, np.ndarray], message: str) -> None:
    async def act() -> None:
        server = grpc.aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(OtherServer(model, outputs), server)
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            async with TritonClient(f"127.0.0.1:{port}") as client:
                await client.score("small.1", raw_batch(ROWS), timeout_seconds=60.0)
        finally:
            await server.stop(None)

    with pytest.raises(TritonError, match=message):
        asyncio.run(act())


def test_an_unknown_model(triton: TritonServer) -> None:
    with pytest.raises(UnknownModelError, match=r"unknown model: 'nobody\.1'"):
        score(triton, "nobody.1", raw_batch(ROWS))
    with pytest.raises(ModelLoadError, match=r"loading nobody\.1 .* failed to poll from model repository"):
        call(triton, lambda client: client.load("nobody.1"))
    assert not call(triton, lambda client: client.is_ready("nobody.1"))


def test_a_version_that_vanished_does_not_load(triton: TritonServer, tmp_path: Path) -> None:
    version = write_version(tmp_path, seed=2)
    name = write_models(version, repository=triton.repository)
    shutil.rmtree(version.path)
    with pytest.raises(ModelLoadError, match=f"has no version '{version.name}'"):
        call(triton, lambda client: client.load(name))


def test_a_server_says_what_it_is(triton: TritonServer) -> None:
    assert call(triton, lambda client: client.metadata()).version.startswith("2.")
    assert call(triton, lambda client: client.is_ready())


def test_a_row_without_any_value_has_empty_tensors(triton: TritonServer, ensemble: str) -> None:
    raw = replace(
        raw_batch([{}]),
        float_values=np.full((1, 2), np.nan),
        text_values=np.empty(0, object),
        text_lengths=np.zeros((1, 3), np.int32),
    )
    np.testing.assert_allclose(score(triton, ensemble, raw), Weights(0).scores([{}]), rtol=0, atol=1e-6)
