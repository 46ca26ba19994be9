"""Replaying a version's golden requests: the proof that serving scores as the trainer did."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankhouse.embedding_cache.format.feature import Feature
from rankhouse.embedding_cache.format.golden import GoldenRequest
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.errors import DegradedGoldenError, GoldenMismatchError
from rankhouse.serving.triton_client import TritonClient

TOLERANCE = 1e-5
_TIMEOUT_SECONDS = 30.0


@dataclass(frozen=True)
class GoldenReport:
    """What a replay found.

    Attributes:
        num_requests: The requests replayed.
        num_scores: The scores compared.
        max_difference: The largest difference between two scores, at most `TOLERANCE`.
    """

    num_requests: int
    num_scores: int
    max_difference: float


async def replay_golden(client: TritonClient, ensemble: str, version: Version) -> GoldenReport:
    """Scores a version's golden requests with a loaded ensemble and compares; reads the version's files.

    Raises:
        GoldenMismatchError: See `replay_requests`.
        TritonError: A request got no answer.
    """
    features = version.transform().features
    return await replay_requests(client, ensemble, version.golden(), features=features, version=version.name)


async def replay_requests(
    client: TritonClient,
    ensemble: str,
    requests: Sequence[GoldenRequest],
    *,
    features: Sequence[Feature],
    version: str,
) -> GoldenReport:
    """Scores golden requests with a loaded ensemble and compares.

    Args:
        client: The way to the server.
        ensemble: The ensemble.
        requests: The golden requests.
        features: What their rows may hold.
        version: The version's name, for messages.

    Raises:
        DegradedGoldenError: A score is of default rows.
        GoldenMismatchError: A score differs by more than `TOLERANCE`, or there are no golden requests.
        TritonError: A request got no answer.
    """
    if not requests:
        raise GoldenMismatchError(f"version {version} has no golden requests to prove itself; export it again")
    largest = 0.0
    for number, request in enumerate(requests):
        raw = RawBatch.from_rows(features, request.rows())
        result = await client.score(ensemble, raw, timeout_seconds=_TIMEOUT_SECONDS)
        if result.is_degraded:
            raise DegradedGoldenError(
                f"version {version} takes no traffic: golden request {number} was answered with default rows, as "
                "Redis did not give its rows in time: see the engine's options `redis`, then start again"
            )
        largest = max(largest, _compare(version, number, request, result.scores.tolist()))
    return GoldenReport(len(requests), sum(len(request.scores) for request in requests), largest)


def _compare(version: str, number: int, request: GoldenRequest, scores: Sequence[float]) -> float:
    differences = np.abs(np.subtract(scores, request.scores))
    worst = int(differences.argmax())
    # Negated, so that a NaN does not pass.
    if not differences[worst] <= TOLERANCE:
        raise GoldenMismatchError(
            f"version {version} takes no traffic: golden request {number}, candidate {worst} scores "
            f"{scores[worst]:.7f} here and {request.scores[worst]:.7f} at the trainer; at most {TOLERANCE:g} apart is "
            "allowed. Export the version again with this release"
        )
    return float(differences[worst])
