"""gRPC, from the socket to Triton and back."""

from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from rankhouse.serving.errors import GatewayError
from rankhouse.serving.gateway.messages import ScoreRequest
from rankhouse.serving.gateway_client import request_message
from rankhouse.serving.ranking_pb2_grpc import RankingStub
from tests.serving.gateway.bad_requests import BAD_REQUESTS, BadRequest
from tests.serving.gateway.running import RunningGateway
from tests.serving.small_version import MODEL, ROWS, Weights

TIMEOUT = 60.0


@pytest.fixture
def channel(gateway: RunningGateway) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(gateway.grpc_address) as channel:
        yield channel


@pytest.fixture
def stub(channel: grpc.Channel) -> Any:
    return RankingStub(channel)


def refused(stub: Any, message: Any, **call: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as caught:
        stub.Score(message, **{"timeout": TIMEOUT, **call})
    return caught.value


def details_of(error: Any) -> tuple[str, str]:
    """The kind and the field that an error's trailing metadata name."""
    trailing = dict(error.trailing_metadata())
    info, violation = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    for packed in status_pb2.Status.FromString(trailing["grpc-status-details-bin"]).details:
        for message in (info, violation):
            if packed.Is(message.DESCRIPTOR):
                packed.Unpack(message)
    return info.reason, violation.field_violations[0].field if violation.field_violations else ""


def test_scores_are_those_of_rest_and_of_the_model(stub: Any, client: httpx.Client, weights: Weights) -> None:
    request = {
        "context": {"home": "rome"},
        "candidates": [{"age": 1}, {"tags": ["a", "zz"], "clicked": [7, -3]}],
        "top_k": 1,
    }
    reply = stub.Score(request_message(MODEL, ScoreRequest(**request)), timeout=TIMEOUT)
    answer = client.post(f"/v1/models/{MODEL}/score", json=request).json()
    assert (reply.model, reply.version, list(reply.scores)) == (answer["model"], answer["version"], answer["scores"])
    assert [(place.index, place.score) for place in reply.ranking] == [
        (place["index"], place["score"]) for place in answer["ranking"]
    ]
    np.testing.assert_allclose(
        reply.scores, weights.scores([request["context"] | row for row in request["candidates"]]), atol=1e-6
    )


def test_every_kind_of_value_arrives(stub: Any, weights: Weights) -> None:
    reply = stub.Score(request_message(MODEL, ScoreRequest(list(ROWS))), timeout=TIMEOUT)
    np.testing.assert_allclose(reply.scores, weights.scores(ROWS), atol=1e-6)


def test_a_value_that_is_not_set_is_missing(stub: Any) -> None:
    request = ScoreRequest([{}, {"age": None, "city": None, "tags": None}, {"city": "", "tags": []}])
    assert len(set(stub.Score(request_message(MODEL, request), timeout=TIMEOUT).scores)) == 1


@pytest.mark.parametrize("bad", BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_a_wrong_request_is_refused(stub: Any, bad: BadRequest) -> None:
    message = request_message(MODEL, ScoreRequest(**bad.request))
    error: Any = refused(stub, message, metadata=(("x-request-id", "mine"),))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert details_of(error) == (bad.kind, bad.path)
    assert error.details().startswith(f"{bad.path}: ")
    assert bad.message in error.details()
    assert dict(error.trailing_metadata())["x-request-id"] == "mine"


def test_an_unknown_model_is_refused(stub: Any) -> None:
    error: Any = refused(stub, request_message("other", ScoreRequest([{}])))
    assert error.code() is grpc.StatusCode.NOT_FOUND
    assert details_of(error) == ("no-such-model", "model")


def test_a_strange_request_id_is_refused(stub: Any) -> None:
    error: Any = refused(stub, request_message(MODEL, ScoreRequest([{}])), metadata=(("x-request-id", "a b"),))
    assert details_of(error) == ("invalid-field", "X-Request-Id")


def test_a_request_id_is_echoed(stub: Any) -> None:
    message = request_message(MODEL, ScoreRequest([{}]))
    assert stub.Score(message, timeout=TIMEOUT, metadata=(("x-request-id", "mine"),)).request_id == "mine"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "is a dict; expected a number, a text or a list of integers or of texts"),
        ([1, "a"], "is a list; expected a number"),
        (2**63, "is 9223372036854775808; expected a 64-bit integer"),
        ([-(2**63) - 1], "is -9223372036854775809; expected a 64-bit integer"),
    ],
)
def test_a_value_that_no_feature_has_is_not_sent(value: Any, message: str) -> None:
    with pytest.raises(GatewayError, match=f"feature 'age' {message}"):
        request_message(MODEL, ScoreRequest([{"age": value}]))


def test_missing_values_in_lists_are_not_sent() -> None:
    message = request_message(MODEL, ScoreRequest([{"tags": ["a", None], "clicked": [None, 7], "city": [None]}]))
    features = message.candidates[0].features
    assert list(features["tags"].text_list.values) == ["a"]
    assert list(features["clicked"].int64_list.values) == [7]
    assert not features["city"].text_list.values


@pytest.mark.parametrize("service", ["", "rankhouse.v1.Ranking"])
def test_health_is_that_of_the_ensemble(channel: grpc.Channel, service: str) -> None:
    reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=service), timeout=TIMEOUT)
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_knows_the_service(channel: grpc.Channel) -> None:
    requests = iter([reflection_pb2.ServerReflectionRequest(file_containing_symbol="rankhouse.v1.Ranking")])
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    (reply,) = stub.ServerReflectionInfo(requests, timeout=TIMEOUT)
    assert b"rankhouse.v1" in b"".join(reply.file_descriptor_response.file_descriptor_proto)
