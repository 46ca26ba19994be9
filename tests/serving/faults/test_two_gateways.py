"""Two gateways, each with its Triton, share a Redis; one is cut off from it, misses what happens, and comes back."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.support.rollout.oracle import Window
from benchmarks.support.rollout.replica import eventually
from benchmarks.support.rollout.site import Site
from rankhouse.serving.triton_server import TritonServer
from tests.embedding_cache.redis_tier.servers import ADMIN, Certificates, Server, new_server
from tests.serving.faults.link import Link

pytestmark = pytest.mark.triton

STEPS = ({"weight": 40, "pause": "manual"},)
# So long is a replica waited for of which nothing is heard.
FORGOTTEN_SECONDS = 5.5


@pytest.fixture
def redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("STATE_STORE_PASSWORD", ADMIN)
    server = new_server(tmp_path / "redis", Certificates.make(tmp_path), is_cluster=False)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def other_triton(tmp_path: Path) -> Iterator[TritonServer]:
    with TritonServer(tmp_path / "models", run_dir=tmp_path) as server:
        yield server


def url(port: int) -> str:
    return f"redis://127.0.0.1:{port}/0?password_env=STATE_STORE_PASSWORD"


def test_a_gateway_that_is_cut_off_serves_what_it_knew_and_comes_back(
    new_site: Callable[..., Site], redis: Server, triton: TritonServer, other_triton: TritonServer, tmp_path: Path
) -> None:
    site = new_site(steps=STEPS, state_url=url(redis.port))
    first = site.publish()
    with (
        Link(redis.port) as link,
        site.replica(triton, "near") as near,
        site.replica(other_triton, "far", STATE_URL=url(link.port), STATE_FILE=tmp_path / "last.json") as far,
        site.callers(near, far, concurrency=1, pause_seconds=0.01) as callers,
    ):
        second = site.publish()
        site.event_after(0, "stepped")
        site.wait_until_answering(callers, near, far)

        begin = time.time()
        link.cut()
        with near.admin() as admin:
            admin.promote()
        site.wait_until_answering(callers, near)
        time.sleep(FORGOTTEN_SECONDS)
        killed_at = time.time()
        far.kill()
        far.start()
        restarted_at = time.time()
        windows = [Window(killed_at, restarted_at, replica="far", may_fail=True)]
        # Stable is there first, and stands in for the candidate until that is proven again.
        eventually(
            lambda: (
                {each.version for each in callers.since(time.time() - 0.5) if each.replica == "far"} == {first, second}
            )
        )
        windows.append(Window(killed_at, time.time(), replica="far", may_fall_back=True))
        with near.admin() as admin:
            admin.rollback(first)
            admin.resume_refresh()
        third = site.publish()
        site.event_after(site.event_after(0, "reverted").number, "stepped")
        site.wait_until_answering(callers, near)
        of_far = [each for each in callers.since(restarted_at) if each.replica == "far"]
        assert {each.version for each in of_far} == {first, second}, [each for each in of_far if each.is_failed]

        link.mend()
        windows.append(Window(begin, site.wait_until_answering(callers, far), replica="far", may_lag=True))
        eventually(lambda: len(site.store.replicas(site.model)) == 2)
        with near.admin() as admin:
            admin.promote()
        site.wait_until_answering(callers, near, far)
    findings = site.findings(callers, windows)
    assert findings.wrong == []
    assert set(findings.num_by_version) == {first, second, third}
    kinds = ["admitted", "started", "stepped", "promoted", "policy_changed", "reverted", "policy_changed"]
    assert [event.kind for event in site.history()] == [*kinds, "started", "stepped", "promoted"]
