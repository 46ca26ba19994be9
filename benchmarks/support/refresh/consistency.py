"""Is every answer wholly of one version while versions come and go? Asks a real Triton, with marked versions."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.support.ensemble.wire import ensemble_tensors
from benchmarks.support.refresh.marked_versions import FEATURES, PLACES, Marked, MarkedVersions, marks_of, raw_rows
from benchmarks.support.refresh.traffic import Answer, Traffic
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.serving.model_repository import write_models
from rankhouse.serving.triton_client import TritonClient
from rankhouse.serving.triton_server import TritonServer

NUM_REQUESTS, MOST_CANDIDATES = 32, 40


@dataclass
class Findings:
    """What the answers were.

    Attributes:
        num_answers: How many came.
        num_versions: How many versions gave one.
        mixed: A line for each answer that was not wholly of the version that it names, or not of the one asked.
        failures: A line for each request without an answer.
    """

    num_answers: int = 0
    num_versions: int = 0
    mixed: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


class Checker:
    """Holds answers against the versions' marks."""

    def __init__(self) -> None:
        self.findings = Findings()
        self._marks: dict[str, int] = {}
        self._seen: set[str] = set()

    def know(self, model: str, mark: int) -> None:
        """Takes note of a version's mark."""
        self._marks[model] = mark

    def check(self, answer: Answer) -> None:
        """Counts an answer, and notes what is wrong with it."""
        findings = self.findings
        findings.num_answers += 1
        self._seen.add(answer.answered)
        findings.num_versions = len(self._seen)
        if answer.answered != answer.asked:
            findings.mixed.append(f"{answer.asked} was asked, the answer names {answer.answered}")
        mark, marks = self._marks[answer.asked], marks_of(answer.scores)
        for candidate in np.flatnonzero((marks != mark).any(axis=1))[:1]:
            found = ", ".join(f"{place} {value}" for place, value in zip(PLACES, marks[candidate], strict=True))
            findings.mixed.append(f"{answer.asked} has mark {mark}, candidate {candidate} has {found}")


async def refresh_under_load(
    server: TritonServer, folder: Path, *, num_answers: int, concurrency: int, num_versions: int = 2
) -> Findings:
    """Switches from version to version, as fast as they load, while requests go on.

    Args:
        server: A running server.
        folder: Where the versions are written.
        num_answers: When so many are there, and from so many versions as `num_versions` says, it is over.
        concurrency: Requests under way at any moment.
        num_versions: See `num_answers`.

    Returns:
        What the answers were.
    """
    versions, checker = MarkedVersions(folder), Checker()
    findings = checker.findings
    requests = [
        ensemble_tensors(RawBatch.from_rows(FEATURES, raw_rows(1 + seed % MOST_CANDIDATES, seed)))
        for seed in range(NUM_REQUESTS)
    ]
    async with TritonClient(server.grpc_url) as client:
        current = await _load(client, server, versions, checker)
        traffic = Traffic(server.grpc_url, requests, current, checker.check, findings.failures)

        is_stopped = False

        def is_over() -> bool:
            enough = findings.num_answers >= num_answers and findings.num_versions >= num_versions
            return enough or is_stopped or bool(findings.failures)

        sending = asyncio.create_task(traffic.keep(concurrency, is_over))
        try:
            while not sending.done():
                old, current = current, await _load(client, server, versions, checker)
                traffic.target = current
                await traffic.drained(old)
                await client.unload(old)
        finally:
            is_stopped = True
            await sending
        await client.unload(current)
    return findings


async def _load(client: TritonClient, server: TritonServer, versions: MarkedVersions, checker: Checker) -> str:
    marked: Marked = await asyncio.to_thread(versions.publish)
    model = await asyncio.to_thread(
        write_models, marked.version, repository=server.repository, backends=server.backends
    )
    await client.load(model)
    checker.know(model, marked.mark)
    return model
