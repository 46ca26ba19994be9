"""The state store is locked, gone, or its disk is full, in the middle of a rollout: nobody is without an answer."""

import resource
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import httpx
import pytest

from benchmarks.support.rollout.oracle import Window
from benchmarks.support.rollout.replica import Replica, eventually
from benchmarks.support.rollout.site import Site
from rankhouse.serving.triton_server import TritonServer

pytestmark = pytest.mark.triton

Trouble = Callable[[Site, Replica], AbstractContextManager[None]]

STEPS = ({"weight": 25, "pause": "1s"}, {"weight": 75, "pause": "1s"})
# Longer than a replica's report is believed, and than the conductor's lease.
AWAY_SECONDS = 5.5


@contextmanager
def locked(site: Site, replica: Replica) -> Iterator[None]:
    """Another program writes, and does not come to an end."""
    connection = sqlite3.connect(site.state_path, isolation_level=None, timeout=60.0)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


@contextmanager
def gone(site: Site, replica: Replica) -> Iterator[None]:
    hidden = site.state_path.with_suffix(".hidden")
    site.state_path.rename(hidden)
    try:
        yield
    finally:
        hidden.rename(site.state_path)


@contextmanager
def full(site: Site, replica: Replica) -> Iterator[None]:
    """The gateway cannot write a byte into any file, as on a full disk."""
    limits = resource.prlimit(replica.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(replica.pid, resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.prlimit(replica.pid, resource.RLIMIT_FSIZE, limits)


def stale_since(replica: Replica) -> str:
    """Since when a replica, which is ready all the same, does not know the state."""
    response = httpx.get(f"{replica.process.rest_url}/readyz", timeout=60.0, trust_env=False)
    assert response.status_code == 200
    since: str = response.json().get("control", "")
    return since


@pytest.mark.parametrize("trouble", [locked, gone, full], ids=lambda trouble: trouble.__name__)
def test_a_rollout_goes_on_after_its_state_store_was_away(
    new_site: Callable[..., Site], triton: TritonServer, trouble: Trouble
) -> None:
    site = new_site(steps=STEPS)
    first = site.publish()
    with site.replica(triton) as replica, site.callers(replica, pause_seconds=0.01) as callers:
        site.wait_until_stable(first)
        second = site.publish()
        site.event_after(0, "stepped")
        begin = time.time()
        with trouble(site, replica):
            can_be_read = site.state_path.exists()
            events = site.history() if can_be_read else []
            time.sleep(AWAY_SECONDS / 2)
            if not can_be_read:
                eventually(lambda: stale_since(replica))
            time.sleep(AWAY_SECONDS / 2)
            if can_be_read:
                assert not stale_since(replica)
                assert site.history() == events
        away = Window(begin, time.time(), may_lag=True)
        site.wait_until_stable(second)
        site.wait_until_answering(callers, replica)
        assert not stale_since(replica)
    findings = site.findings(callers, [away])
    assert findings.wrong == []
    assert findings.num_failed == 0
    assert [each.kind for each in site.history()] == ["admitted", "started", "stepped", "stepped", "promoted"]
