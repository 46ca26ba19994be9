"""No request fails or is answered by two versions, and keys stay where they belong, while all goes on at once."""

from pathlib import Path

import pytest

from benchmarks.support.rollout.proof import prove
from rankhouse.serving.triton_server import TritonServer

NUM_ANSWERS = 3000


@pytest.mark.triton
def test_requests_under_deltas_a_canary_an_abort_and_a_rollback(triton: TritonServer, tmp_path: Path) -> None:
    proof = prove(triton, tmp_path, num_answers=NUM_ANSWERS, delta_seconds=0.5, concurrency=2)
    assert proof.findings.wrong == []
    assert proof.findings.num_failed == proof.findings.num_fallbacks == 0
    assert proof.findings.num_answers >= NUM_ANSWERS
    assert min(proof.num_by_protocol.values()) > NUM_ANSWERS / 10
    assert proof.num_events["admitted"] >= 9
    assert {proof.num_events[kind] for kind in ("promoted", "rolled_back", "reverted")} == {1}
