"""The whole way: `rankhouse serve` with real Triton, and `rankhouse rollout` beside it."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from rankhouse.cli.main import app
from tests.serving.admin.receivers import Receiver
from tests.serving.small_version import MODEL, ROWS, write_version
from tests.serving.test_supervisor import serving, wait_until_ready

pytestmark = pytest.mark.triton

SPEC = """
candidate: latest
steps:
  - {{weight: 50, pause: manual, analysis: {{max: 10m}}}}
  - {{weight: 80, pause: manual}}
  - {{weight: 100}}
analysis: {{alpha: 0.1, min_requests: 40, metrics: [{{name: error_rate, max_increase: 0.5}}]}}
webhooks: [{{url: "{url}"}}]
"""


def test_a_version_is_rolled_out_judged_promoted_and_taken_back(tmp_path: Path) -> None:
    store, run_dir = tmp_path / "store", tmp_path / "run"
    first = write_version(store).name
    with serving(store, run_dir, "--refresh", "manual") as process, Receiver() as receiver:
        score = f"{wait_until_ready(process, run_dir)['rest_url']}/v1/models/{MODEL}/score"
        second = write_version(store, seed=1).name

        def rollout(*arguments: str) -> str:
            result = CliRunner().invoke(app, ["rollout", "--run-dir", str(run_dir), *arguments])
            assert result.exit_code == 0, f"{arguments}: {result.output} {result.exception}"
            return result.output

        def versions() -> dict[str, str]:
            """Which version answers each of 200 users."""
            with httpx.Client(timeout=60.0) as users:
                bodies = [{"candidates": [ROWS[0]], "key": f"user {number}"} for number in range(200)]
                return {str(body["key"]): users.post(score, json=body).json()["version"] for body in bodies}

        def eventually(is_so: Callable[[], bool]) -> None:
            end = time.monotonic() + 120
            while not is_so():
                assert process.poll() is None, process.communicate()
                assert time.monotonic() < end, rollout("show")
                time.sleep(0.1)

        eventually(lambda: second in rollout("versions"))
        assert set(versions().values()) == {first}
        (tmp_path / "rollout.yaml").write_text(SPEC.format(url=receiver.url))
        assert "r000001 is pending" in rollout("start", str(tmp_path / "rollout.yaml"), "-m", "try it")
        # It waits for an operator, so that it stays as it is however long these users take.
        eventually(lambda: "r000001 is paused (step)" in rollout("show"))
        eventually(lambda: second in versions().values())
        half = versions()
        assert 60 < sum(version == second for version in half.values()) < 140
        rollout("resume", "-m", "half of them are there")
        # What these users were answered is what the analysis judges; it lets the rollout go on.
        eventually(lambda: bool(versions()) and "is paused (step)" in rollout("show"))
        eventually(lambda: sum(version == second for version in versions().values()) > 140)
        grown = versions()
        assert {user for user, version in half.items() if version == second} <= {
            user for user, version in grown.items() if version == second
        }
        assert "is promoted" in rollout("promote", "-m", "good")
        eventually(lambda: set(versions().values()) == {second})
        assert f"stable: {first}" in rollout("rollback", "-m", "support calls")
        eventually(lambda: set(versions().values()) == {first})
        receiver.wait_for("promoted", 1)
        history = rollout("history")
        assert [event["kind"] for event in receiver.taken] == ["started", "stepped", "resumed", "stepped", "promoted"]
        assert re.search(r"first-key\s+reverted.*support calls", history)
        verdict = json.loads(rollout("--json", "show"))["arms"][0]["verdict"]
        assert verdict["outcome"] == "pass"
        process.terminate()
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
