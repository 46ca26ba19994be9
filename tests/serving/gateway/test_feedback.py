"""Outcomes of requests, joined with their answers: over REST and gRPC, and after a restart."""

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import httpx
import numpy as np
import pytest

from rankhouse.serving.analysis.summary import Summary
from rankhouse.serving.control.state_store import StateStore, summary_key
from rankhouse.serving.errors import GatewayError
from rankhouse.serving.gateway.feedback import Feedback
from rankhouse.serving.gateway.messages import FeedbackAnswer, Outcome, OutcomeReport, ScoreRequest
from rankhouse.serving.gateway.metrics import Metrics
from rankhouse.serving.gateway.observations import Observations
from rankhouse.serving.gateway.settings import Settings
from rankhouse.serving.gateway_client import GrpcClient, RestClient
from rankhouse.serving.triton_server import TritonServer
from tests.serving.gateway.rolling import TwoVersions, eventually, patient_store, put
from tests.serving.gateway.running import RunningGateway
from tests.serving.small_version import MODEL, ROWS


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/state.db"


@pytest.fixture
def store(url: str) -> Iterator[StateStore]:
    store = patient_store(url)
    yield store
    store.close()


def running(versions: TwoVersions, triton: TritonServer, **settings: Any) -> RunningGateway:
    return RunningGateway(versions.store, triton.grpc_url, version=versions.stable.name, **settings)


def answered(gateway: RunningGateway, **headers: str) -> str:
    """Has rows scored, and returns the request's id."""
    answer = httpx.post(gateway.score_url, json={"candidates": ROWS}, headers=headers, timeout=60.0)
    assert answer.status_code == 200
    return str(answer.json()["request_id"])


def report_of(request_id: str, *labels: int, event: str = "click") -> OutcomeReport:
    return OutcomeReport(request_id, [Outcome(index, label) for index, label in enumerate(labels)], event)


def clicks(store: StateStore, key: str) -> tuple[int, int]:
    """Positives and negatives of all replicas' published summaries of one kind."""
    merged = Summary()
    counted = [Summary.from_bytes(published.content) for published in store.summaries(MODEL) if published.key == key]
    for summary in counted:
        merged = merged.merge(summary) if merged.features == summary.features else summary
    arrays = merged.events.get("click", {"positives": np.zeros(1), "negatives": np.zeros(1)})
    return int(arrays["positives"].sum()), int(arrays["negatives"].sum())


def test_outcomes_are_counted_once_and_the_wrong_ones_apart(versions: TwoVersions, triton: TritonServer) -> None:
    with (
        running(versions, triton) as gateway,
        RestClient(gateway.url, timeout_seconds=60.0) as rest,
        GrpcClient(gateway.grpc_address, timeout_seconds=60.0) as grpc,
    ):
        first, second = answered(gateway), answered(gateway)
        reports = [
            report_of(first, 1, 0),
            report_of(first, 1, 0),
            report_of(second, 0, event="conversion"),
            report_of("nobody", 1),
            report_of(second),
            OutcomeReport(second, [Outcome(len(ROWS), 1)]),
            report_of(second, 1, event="purchase"),
        ]
        assert rest.feedback(reports) == FeedbackAnswer(accepted=2, duplicate=1, unknown=1, invalid=3)
        assert grpc.feedback(reports) == FeedbackAnswer(duplicate=3, unknown=1, invalid=3)
        assert grpc.feedback([report_of(second, 1)]) == FeedbackAnswer(accepted=1)
        one = {"request_id": first, "outcomes": [{"index": 1, "label": True}], "event": "conversion"}
        assert httpx.post(f"{gateway.url}/v1/feedback", json=one, timeout=60.0).json()["accepted"] == 1
        assert (
            'rankhouse_feedback_total{outcome="accepted"} 4.0' in httpx.get(f"{gateway.url}/metrics", timeout=60.0).text
        )


@pytest.mark.parametrize(
    ("body", "status", "path"),
    [
        ("{", 400, None),
        ('{"request_id": "a", "outcomes": [{"index": 0, "label": 2}]}', 422, "outcomes[0].label"),
        ('[{"request_id": "a", "outcomes": [{"index": -1, "label": 1}]}]', 422, "[0].outcomes[0].index"),
        ('{"request_id": "a", "outcome": []}', 422, "outcome"),
        ('{"request_id": "a", "outcomes": [], "event": "A B"}', 422, "event"),
    ],
)
def test_a_wrong_body_is_refused(gateway: RunningGateway, body: str, status: int, path: str | None) -> None:
    answer = httpx.post(f"{gateway.url}/v1/feedback", content=body, timeout=60.0)
    assert (answer.status_code, answer.json().get("path")) == (status, path)


def test_too_many_reports_are_refused_at_once(gateway: RunningGateway) -> None:
    with (
        RestClient(gateway.url, timeout_seconds=60.0) as rest,
        pytest.raises(GatewayError, match="1001 reports; expected at most 1000"),
    ):
        rest.feedback([report_of("a", 1)] * 1001)


def test_a_wrong_message_is_refused(gateway: RunningGateway) -> None:
    with (
        GrpcClient(gateway.grpc_address, timeout_seconds=60.0) as grpc,
        pytest.raises(GatewayError, match=r"INVALID_ARGUMENT: .*request_id"),
    ):
        grpc.feedback([report_of("", 1)])


def test_late_feedback_is_told_from_unknown(versions: TwoVersions, triton: TritonServer) -> None:
    with (
        running(versions, triton, feedback_ttl_seconds=0.01) as gateway,
        RestClient(gateway.url, timeout_seconds=60.0) as rest,
    ):
        request_id = answered(gateway)
        time.sleep(0.02)
        assert rest.feedback([report_of(request_id, 1)]) == FeedbackAnswer(late=1)


def test_the_ring_of_answers_is_bounded(versions: TwoVersions, triton: TritonServer) -> None:
    with (
        running(versions, triton, feedback_max_answers=2) as gateway,
        RestClient(gateway.url, timeout_seconds=60.0) as rest,
    ):
        reports = [report_of(answered(gateway), 1) for _ in range(3)]
        assert rest.feedback(reports) == FeedbackAnswer(accepted=2, unknown=1)


def test_feedback_joins_after_a_restart_and_counts_once_for_all_replicas(
    versions: TwoVersions, triton: TritonServer, url: str, store: StateStore
) -> None:
    state = versions.rolling(weight=50.0)
    put(store, state)
    (rollout,) = state.rollouts
    candidate = summary_key(rollout.id, versions.candidate.name, "candidate")
    stable = summary_key(rollout.id, versions.stable.name, "stable")
    with running(versions, triton, state_url=url) as gateway, RestClient(gateway.url, timeout_seconds=60.0) as rest:
        eventually(lambda: len(rest.model(MODEL).versions) == 2)
        ids = {arm: answered_by(gateway, arm) for arm in ("stable", "candidate")}
        kept = answered_by(gateway, "candidate")
        assert rest.feedback([report_of(kept, 1)]) == FeedbackAnswer(accepted=1)
    with running(versions, triton, state_url=url) as again, RestClient(again.url, timeout_seconds=60.0) as rest:
        eventually(lambda: len(rest.model(MODEL).versions) == 2)
        reports = [report_of(ids["stable"], 1, 1, 0), report_of(ids["candidate"], 0, 0), report_of(kept, 1)]
        assert rest.feedback(reports) == FeedbackAnswer(accepted=2, duplicate=1)
        eventually(lambda: clicks(store, candidate) == (1, 2))
        eventually(lambda: clicks(store, stable) == (2, 1))


def answered_by(gateway: RunningGateway, arm: str) -> str:
    for number in range(200):
        answer = httpx.post(gateway.score_url, json={"candidates": ROWS, "key": str(number)}, timeout=60.0)
        if answer.headers["x-rankhouse-arm"] == arm:
            return str(answer.json()["request_id"])
    raise AssertionError(f"none of 200 keys was of the {arm} arm")


def test_what_a_caller_chose_counts_in_no_comparison(
    versions: TwoVersions, triton: TritonServer, url: str, store: StateStore
) -> None:
    key = summary_key("", versions.stable.name, "stable")

    def num_requests() -> int:
        contents = [published.content for published in store.summaries(MODEL) if published.key == key]
        return sum(Summary.from_bytes(content).num_requests for content in contents)

    with running(versions, triton, state_url=url) as gateway, RestClient(gateway.url, timeout_seconds=60.0) as rest:
        eventually(lambda: store.revision(MODEL) > 0)
        chosen = answered(gateway, **{"x-rankhouse-version": versions.stable.name})
        rest.score(MODEL, ScoreRequest(list(ROWS)))
        assert rest.feedback([report_of(chosen, 1)]) == FeedbackAnswer(accepted=1)
        eventually(lambda: num_requests() == 1)
    assert num_requests() == 1
    assert clicks(store, key) == (0, 0)


def test_without_the_store_a_replica_takes_feedback_on_its_own_answers(
    versions: TwoVersions, triton: TritonServer, tmp_path: Path
) -> None:
    folder, away = tmp_path / "state", tmp_path / "away"
    settings = {"state_url": f"sqlite:///{folder}/state.db"}
    with running(versions, triton, **settings) as gateway, RestClient(gateway.url, timeout_seconds=60.0) as rest:
        first = answered(gateway)
        folder.rename(away)
        second = answered(gateway)
        reports = [report_of(first, 1), report_of(second, 0), report_of("elsewhere", 1)]
        assert rest.feedback(reports) == FeedbackAnswer(accepted=2, unknown=1)
        assert rest.feedback(reports) == FeedbackAnswer(duplicate=2, unknown=1)
        away.rename(folder)
        store = patient_store(settings["state_url"])
        eventually(lambda: store.recall_answer(MODEL, second) is not None)
        eventually(lambda: clicks(store, summary_key("", versions.stable.name, "stable")) == (1, 1))


def test_a_store_that_is_slow_takes_no_thread_from_others() -> None:
    """Reports of callers wait for it; what tells the others that this replica lives does not wait for them."""
    is_back = threading.Event()

    class Slow:
        def recall_answer(self, model: str, request_id: str) -> None:
            assert is_back.wait(60.0)

    async def run() -> None:
        settings = Settings(store="anywhere", model=MODEL)
        feedback = Feedback(settings, Observations(), Metrics(MODEL, lambda: 0.0), store=cast(StateStore, Slow()))
        reports = [[report_of(f"request-{number}", 1)] for number in range(32)]
        waiting = [asyncio.create_task(feedback.take(each)) for each in reports]
        await asyncio.sleep(0)
        await asyncio.to_thread(is_back.set)  # It would wait for ever behind them.
        answers = await asyncio.gather(*waiting)
        assert sum(each.unknown for each in answers) == 32
        feedback.close()

    asyncio.run(run())
