"""No answer is of two versions, and none fails, while versions are loaded, switched to and unloaded without a pause."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from benchmarks.support.ensemble.wire import Tensors, ensemble_tensors
from benchmarks.support.refresh.consistency import Checker, Findings, refresh_under_load
from benchmarks.support.refresh.marked_versions import (
    DELTAS_IN_A_ROW,
    FEATURES,
    TABLES,
    Marked,
    MarkedVersions,
    marks_of,
    raw_rows,
)
from benchmarks.support.refresh.traffic import Answer, Traffic
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.serving.model_repository import write_models
from rankhouse.serving.triton_client import TritonClient
from rankhouse.serving.triton_server import TritonServer

NUM_ANSWERS, NUM_VERSIONS = 3000, 5


def request(seed: int) -> Tensors:
    return ensemble_tensors(RawBatch.from_rows(FEATURES, raw_rows(5, seed)))


def ask_once(triton: TritonServer, model: str) -> Traffic:
    """Sends one request; what came of it is in the traffic's checker and failures."""
    traffic = Traffic(triton.grpc_url, [request(0)], model, lambda answer: None)
    asyncio.run(traffic.keep(1, lambda: traffic.num_sent > 0))
    return traffic


def findings_of(triton: TritonServer, marked: Marked) -> Findings:
    """What a checker says of some answers of a version."""
    checker, model = Checker(), write_models(marked.version, repository=triton.repository)
    checker.know(model, marked.mark)

    async def ask() -> None:
        async with TritonClient(triton.grpc_url) as client:
            await client.load(model)
            traffic = Traffic(triton.grpc_url, [request(seed) for seed in range(4)], model, checker.check)
            await traffic.keep(2, lambda: traffic.num_sent >= 10)
            assert traffic.failures == []
            await client.unload(model)

    asyncio.run(ask())
    return checker.findings


@pytest.mark.triton
def test_every_answer_is_wholly_of_the_version_that_it_names(triton: TritonServer, tmp_path: Path) -> None:
    findings = asyncio.run(
        refresh_under_load(triton, tmp_path, num_answers=NUM_ANSWERS, concurrency=8, num_versions=NUM_VERSIONS)
    )
    assert findings.failures == []
    assert findings.mixed == []
    assert findings.num_answers >= NUM_ANSWERS
    assert findings.num_versions >= NUM_VERSIONS


@pytest.mark.triton
def test_a_dense_part_of_another_version_is_found(triton: TritonServer, tmp_path: Path) -> None:
    marked = MarkedVersions(tmp_path).publish(dense_mark=9)
    findings = findings_of(triton, marked)
    assert findings.num_answers >= 10
    assert len(findings.mixed) == findings.num_answers
    assert findings.mixed[0].endswith("has mark 1, candidate 0 has user 1, item 1, dense 9")


@pytest.mark.triton
def test_a_request_without_an_answer_is_a_failure(triton: TritonServer) -> None:
    (failure,) = ask_once(triton, "marked.000000-unloaded").failures
    assert "marked.000000-unloaded" in failure
    assert "unknown model" in failure


def test_an_answer_that_names_another_model_is_found() -> None:
    checker = Checker()
    checker.know("a", 3)
    checker.check(Answer("a", "b", np.full(2, 3 * (2**16 + 2**8 + 1), np.float32), 0.0, 0.0))
    assert checker.findings.mixed == ["a was asked, the answer names b"]


@pytest.mark.parametrize("score", [np.nan, np.inf, -1.0, 0.5, 2.0**24])
def test_what_is_no_mark_is_none_of_a_version(score: float) -> None:
    assert marks_of(np.array([score], np.float32)).tolist() == [[-1, -1, -1]]


def test_versions_are_marked_in_every_row(tmp_path: Path) -> None:
    versions = MarkedVersions(tmp_path)
    published = [versions.publish() for _ in range(DELTAS_IN_A_ROW + 3)]
    assert [len(each.version.tables[0].deltas) for each in published] == [*range(DELTAS_IN_A_ROW + 1), 0, 1]
    for each in published:
        for table in TABLES:
            ids = np.arange(each.version.tables[0].num_rows)
            assert set(each.version.rows(table, ids)[:, 0].tolist()) == {each.mark}
