"""REST, from the socket to Triton and back."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest

from rankhouse.embedding_cache.format.version import Version
from tests.serving.gateway.bad_requests import BAD_REQUESTS, BadRequest
from tests.serving.gateway.running import RunningGateway
from tests.serving.small_version import FEATURES, MODEL, ROWS, Weights

SCORE = f"/v1/models/{MODEL}/score"


def test_scores_are_those_of_the_model(client: httpx.Client, weights: Weights, served_version: Version) -> None:
    answer = client.post(SCORE, json={"candidates": ROWS}).json()
    assert (answer["model"], answer["version"]) == (MODEL, served_version.name)
    np.testing.assert_allclose(answer["scores"], weights.scores(ROWS), atol=1e-6)


def test_the_ranking_lists_the_best(client: httpx.Client) -> None:
    answer = client.post(SCORE, json={"candidates": [*ROWS, *ROWS], "top_k": 3}).json()
    scores = answer["scores"]
    expected = sorted(range(len(scores)), key=lambda index: (-scores[index], index))[:3]
    assert [place["index"] for place in answer["ranking"]] == expected
    assert [place["score"] for place in answer["ranking"]] == [scores[index] for index in expected]


def test_without_top_k_all_are_ranked(client: httpx.Client) -> None:
    assert len(client.post(SCORE, json={"candidates": ROWS}).json()["ranking"]) == len(ROWS)


def test_the_context_is_shared_by_all_candidates(client: httpx.Client, weights: Weights) -> None:
    context, candidates = {"city": "oslo", "clicked": [7]}, [{"age": 3}, {"item": -3}]
    answer = client.post(SCORE, json={"context": context, "candidates": candidates}).json()
    np.testing.assert_allclose(answer["scores"], weights.scores([context | row for row in candidates]), atol=1e-6)


def test_null_and_empty_text_are_missing_values(client: httpx.Client) -> None:
    missing = [{}, {"age": None, "city": None, "tags": None}, {"city": "", "tags": []}, {"item": None, "clicked": []}]
    assert len(set(client.post(SCORE, json={"candidates": missing}).json()["scores"])) == 1


@pytest.mark.parametrize("bad", BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_a_wrong_request_is_refused(client: httpx.Client, bad: BadRequest) -> None:
    body = json.dumps(bad.request)
    response = client.post(SCORE, content=body, headers={"x-request-id": "mine"})
    assert (response.status_code, response.headers["content-type"]) == (422, "application/problem+json")
    problem = response.json()
    assert problem["type"] == f"urn:rankhouse:problem:{bad.kind}"
    assert (problem["path"], problem["status"], problem["request_id"]) == (bad.path, 422, "mine")
    assert problem["title"]
    assert bad.message in problem["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind"),
    [
        ("POST", SCORE, b"{", 400, "urn:rankhouse:problem:malformed-body"),
        ("POST", SCORE, b'{"candidates": [{"price": NaN}]}', 422, "urn:rankhouse:problem:wrong-value"),
        ("POST", SCORE, b'{"candidates": [{"price": 1e400}]}', 422, "urn:rankhouse:problem:wrong-value"),
        ("POST", SCORE, b'{"candidates": [{}], "topk": 1}', 422, "urn:rankhouse:problem:invalid-field"),
        ("POST", "/v1/models/other/score", b'{"candidates": [{}]}', 404, "urn:rankhouse:problem:no-such-model"),
        ("GET", "/v1/models/other", b"", 404, "urn:rankhouse:problem:no-such-model"),
        ("GET", "/v2", b"", 404, "about:blank"),
        ("GET", SCORE, b"", 405, "about:blank"),
    ],
)
def test_every_error_is_a_problem(
    client: httpx.Client, method: str, path: str, body: bytes, status: int, kind: str
) -> None:
    response = client.request(method, path, content=body)
    assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")
    assert response.json()["type"] == kind
    assert response.headers["x-request-id"] == response.json()["request_id"]


def test_a_request_id_is_echoed_or_made(client: httpx.Client) -> None:
    response = client.post(SCORE, json={"candidates": [{}]}, headers={"x-request-id": "mine"})
    assert (response.headers["x-request-id"], response.json()["request_id"]) == ("mine", "mine")
    response = client.post(SCORE, json={"candidates": [{}]})
    assert re.fullmatch(r"[0-9a-f]{32}", response.json()["request_id"])


def test_a_strange_request_id_is_refused(client: httpx.Client) -> None:
    problem = client.get("/healthz", headers={"x-request-id": "a b"}).json()
    assert (problem["status"], problem["path"]) == (422, "X-Request-Id")


def test_models_are_described(client: httpx.Client, served_version: Version) -> None:
    assert client.get("/v1/models").json() == {"models": [{"model": MODEL, "versions": [served_version.name]}]}
    model = client.get(f"/v1/models/{MODEL}").json()
    assert (model["version"], model["max_candidates"]) == (served_version.name, 50)
    assert model["features"] == [
        {key: getattr(f, key) for key in ("name", "kind", "dtype", "is_list")} for f in FEATURES
    ]


def test_health_and_readiness(client: httpx.Client) -> None:
    assert client.get("/healthz").json() == {"status": "alive"}
    assert client.get("/readyz").json() == {"status": "ready"}


def test_the_page_of_the_interface_needs_no_internet(client: httpx.Client) -> None:
    page = client.get("/docs").text
    assert not re.search(r"https?://", page)
    for path in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert client.get(path).status_code == 200


def test_the_examples_of_the_page_run(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            in_path = [parameter for parameter in operation.get("parameters", []) if parameter["in"] == "path"]
            parameters = {parameter["name"]: parameter["examples"]["served"]["value"] for parameter in in_path}
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
            response = client.request(method, path.format(**parameters), json=body)
            assert response.status_code == 200, f"{method} {path}: {response.text}"


def test_the_schemas_of_the_page_are_all_there(client: httpx.Client) -> None:
    document = client.get("/openapi.json").json()
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert {"ScoreRequest", "ScoreAnswer", "Problem", "ModelDescription"} <= named
    assert named <= set(document["components"]["schemas"])
    statuses = document["paths"]["/v1/models/{model}/score"]["post"]["responses"]
    assert document["components"]["schemas"]["ScoreAnswer"]["properties"]["degraded"]["type"] == "boolean"
    assert {"200", "400", "404", "413", "422", "503", "504"} <= set(statuses)


def test_metrics_count_requests(client: httpx.Client, served_version: Version) -> None:
    def counted(line: str) -> float:
        found = re.search(re.escape(line) + r" (\S+)", client.get("/metrics").text)
        return float(found[1]) if found else 0.0

    labels = f'{{arm="stable",model="{MODEL}",protocol="rest",status="%s",version="{served_version.name}"}}'
    lines = ["rankhouse_requests_total" + labels % status for status in (200, 422)]
    of_version = f'{{model="{MODEL}",version="{served_version.name}"}}'
    lines += [f"rankhouse_{name}_total{of_version}" for name in ("unknown_values", "values")]
    before = [counted(line) for line in lines]
    client.post(SCORE, json={"candidates": [{"city": "atlantis", "tags": ["zz", "a"]}, {}]})
    client.post(SCORE, json={"candidates": []})
    added = [counted(line) - count for line, count in zip(lines, before, strict=True)]
    assert added == [1, 1, 2, 2 * 3 + 2]
    metrics = client.get("/metrics").text
    for name in (
        "rankhouse_request_seconds_bucket",
        "rankhouse_request_candidates_bucket",
        "rankhouse_requests_in_flight",
        "rankhouse_degraded_answers_total",
    ):
        assert name in metrics


def test_200_requests_at_a_time_each_get_their_own_answer(gateway: RunningGateway, weights: Weights) -> None:
    def rows(number: int) -> list[dict[str, Any]]:
        return [{"age": number, "price": number / 7, "city": "oslo"}, {"item": 7, "price": -number / 11}]

    with (
        httpx.Client(limits=httpx.Limits(max_connections=200), timeout=60.0) as client,
        ThreadPoolExecutor(200) as pool,
    ):
        post = lambda number: client.post(gateway.score_url, json={"candidates": rows(number)}).json()["scores"]  # noqa: E731
        answers = list(pool.map(post, range(200)))
    expected = [weights.scores(rows(number)) for number in range(200)]
    np.testing.assert_allclose(answers, expected, atol=1e-6)
