"""Shadows: what a candidate makes of the stable version's requests, and that callers notice nothing of it."""

import asyncio
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rankhouse.serving.analysis.summary import Summary
from rankhouse.serving.control.assignment import Route
from rankhouse.serving.control.state_store import summary_key
from rankhouse.serving.gateway.call import Answered, Result
from rankhouse.serving.gateway.messages import ScoreRequest
from rankhouse.serving.gateway.observations import Observations
from rankhouse.serving.gateway.routes import Routes
from rankhouse.serving.gateway.scorer import Scorer, best_first
from rankhouse.serving.gateway.settings import Settings
from rankhouse.serving.gateway.shadow import Shadows
from rankhouse.serving.triton_client import TritonClient
from rankhouse.serving.triton_server import TritonServer
from tests.serving.gateway.rolling import TwoVersions, eventually, patient_store, put
from tests.serving.gateway.running import RunningGateway
from tests.serving.small_version import MODEL, ROWS


def test_scores_and_unknown_values_are_published(versions: TwoVersions, triton: TritonServer, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    store, state = patient_store(url), versions.rolling(weight=0.0, shadow=100.0)
    put(store, state)
    key = summary_key(state.rollouts[0].id, versions.candidate.name, "shadow")

    def counted(name: str) -> list[float]:
        contents = [published.content for published in store.summaries(MODEL) if published.key == key]
        return [number for content in contents for number in Summary.from_bytes(content).arrays[name].tolist()]

    settings = {"state_url": url, "version": versions.stable.name}
    with RunningGateway(versions.store, triton.grpc_url, **settings) as gateway:
        eventually(lambda: len(httpx.get(f"{gateway.url}/v1/models/{MODEL}", timeout=60.0).json()["versions"]) == 2)
        for _ in range(5):
            answer = httpx.post(gateway.score_url, json={"candidates": ROWS}, timeout=60.0)
            assert answer.headers["x-rankhouse-version"] == versions.stable.name
        eventually(lambda: counted("score_differences")[:1] == [5])
        # Of each row three single values, and 2 + 0 + 1 tags, 2 + 1 + 3 items.
        assert counted("ids") == [5 * 6, 5 * (4 * 3 + 3 + 6)]


@pytest.fixture
def silence() -> Iterator[str]:
    """The address of a server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def shadowed(
    versions: TwoVersions, url: str, *, requests: int, timeout_seconds: float, is_unloaded: bool = False
) -> tuple[str, int]:
    """Has requests shadowed at an address where they cannot be, and returns the metrics and the shadow's failures."""
    state, models = versions.rolling(weight=10.0, shadow=100.0), versions.models
    settings = Settings(store=versions.store, model=MODEL, triton_url=url)
    async with TritonClient(url) as client:
        scorer = Scorer(settings, client, Routes.of(state, models, revision=1))
        observations = Observations()
        observations.follow(models, [state.rollouts[0].id])
        shadows = Shadows(scorer, observations, max_in_flight=1, timeout_seconds=timeout_seconds)
        stable = models[versions.stable.name]
        request = ScoreRequest(list(ROWS))
        raw = stable.raw_batch(request, max_candidates=10)
        scores = versions.weights[stable.version].scores(ROWS)
        result = Result(stable, request, raw, scores, best_first(scores), False, 0, 0)
        route = Route(stable.version, "", "stable", 1, (versions.candidate.name,))
        for number in range(requests):
            shadows.observe(Answered(str(number), route, (), 200, 0.001, 0.0, result))
        if is_unloaded:
            alone = {stable.version: stable}
            scorer.switch(Routes.of(versions.state(), alone, revision=2))
            await asyncio.sleep(0.01)  # The shadows find that out.
        num_outcomes = 0 if is_unloaded else requests
        for _ in range(1000):
            if not scorer.num_in_flight(versions.candidate.name) and number_of_outcomes(scorer) == num_outcomes:
                break
            await asyncio.sleep(0.01)
        await shadows.stop()
        failures = sum(Summary.from_bytes(each).num_requests for each in observations.content().values())
        return scorer.metrics.text().decode(), failures


def number_of_outcomes(scorer: Scorer) -> int:
    counts = re.findall(r"^rankhouse_shadow_requests_total\S+ (\S+)$", scorer.metrics.text().decode(), re.MULTILINE)
    return int(sum(map(float, counts)))


def count_of(metrics: str, outcome: str) -> int:
    found = re.search(rf'^rankhouse_shadow_requests_total{{.*outcome="{outcome}".*}} (\S+)$', metrics, re.MULTILINE)
    return int(float(found[1])) if found else 0


def test_a_candidate_that_hangs_holds_one_place_and_the_rest_is_dropped(versions: TwoVersions, silence: str) -> None:
    metrics, failures = asyncio.run(shadowed(versions, silence, requests=20, timeout_seconds=0.2))
    assert count_of(metrics, "late") >= 1
    assert count_of(metrics, "dropped") >= 15
    assert count_of(metrics, "late") + count_of(metrics, "dropped") == 20
    assert failures == count_of(metrics, "late")


def test_a_candidate_that_fails_is_counted(versions: TwoVersions) -> None:
    metrics, failures = asyncio.run(shadowed(versions, "127.0.0.1:1", requests=3, timeout_seconds=60.0))
    assert (count_of(metrics, "failed"), failures) == (3, 3)


def test_shadows_of_an_unloaded_version_bring_no_metric_back(versions: TwoVersions) -> None:
    metrics, failures = asyncio.run(
        shadowed(versions, "127.0.0.1:1", requests=10, timeout_seconds=60.0, is_unloaded=True)
    )
    assert f'version="{versions.candidate.name}"' not in metrics
    assert failures == 0
