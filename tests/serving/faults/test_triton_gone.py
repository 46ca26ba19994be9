"""Triton is killed, or hangs, in the middle of a load, of a switch and of a rollback."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.support.rollout.callers import Callers
from benchmarks.support.rollout.oracle import Window
from benchmarks.support.rollout.replica import Replica, eventually
from benchmarks.support.rollout.site import Site
from rankhouse.serving.model_repository import ensemble_name
from rankhouse.serving.triton_server import TritonServer

pytestmark = pytest.mark.triton

STEPS = ({"weight": 30, "pause": "manual"},)
# Longer than the watch's patience, so that the agent believes that Triton does not answer.
HUNG_SECONDS = 3.0


@pytest.fixture
def own_triton(tmp_path: Path) -> Iterator[TritonServer]:
    """One that a test may end."""
    with TritonServer(tmp_path / "models", run_dir=tmp_path) as server:
        yield server


class Breaker:
    """Breaks a Triton and mends it, and notes when it was broken."""

    def __init__(self, site: Site, replica: Replica, callers: Callers) -> None:
        self._site, self._replica, self._callers = site, replica, callers
        self.windows: list[Window] = []

    def kill(self) -> None:
        """What its keeper does: it is started again on the same ports."""
        pid = self._replica.server.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self._replica.server.stop()
        self._replica.server.start()

    def hang(self) -> None:
        pid = self._replica.server.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(HUNG_SECONDS)
        finally:
            os.kill(pid, signal.SIGCONT)

    def during(self, break_it: Callable[[], None], event: Callable[[], object]) -> None:
        """Breaks it as soon as something was so, and waits until callers get answers again."""
        event()
        begin = time.time()
        break_it()
        end = self._site.wait_until_answering(self._callers, self._replica)
        self.windows.append(Window(begin, end, may_fail=True, may_fall_back=True))


@pytest.mark.parametrize("how", ["kill", "hang"])
def test_triton_is_gone_during_a_load_a_switch_and_a_rollback(
    new_site: Callable[..., Site], own_triton: TritonServer, how: str
) -> None:
    site = new_site(steps=STEPS)
    first = site.publish()
    with site.replica(own_triton) as replica, site.callers(replica, pause_seconds=0.01) as callers:
        site.wait_until_stable(first)
        breaker = Breaker(site, replica, callers)
        break_it = getattr(breaker, how)

        second = site.publish()
        written = own_triton.repository / ensemble_name(site.model, second)
        breaker.during(break_it, lambda: eventually(written.exists))
        breaker.during(break_it, lambda: site.event_after(0, "stepped"))
        with replica.admin() as admin:
            admin.abort()
        breaker.during(break_it, lambda: site.event_after(0, "rolled_back"))

        third = site.publish()
        site.event_after(site.event_after(0, "rolled_back").number, "stepped")
        with replica.admin() as admin:
            admin.promote()
        breaker.during(break_it, lambda: site.event_after(0, "promoted"))
        with replica.admin() as admin:
            admin.rollback(first)
        breaker.during(break_it, lambda: site.event_after(0, "reverted"))
    findings = site.findings(callers, breaker.windows)
    assert findings.wrong == []
    assert set(findings.num_by_version) == {first, second, third}
    kinds = [event.kind for event in site.history()]
    rolled_back = ["admitted", "started", "stepped", "rolled_back"]
    assert kinds == [*rolled_back, "started", "stepped", "promoted", "policy_changed", "reverted"]
    assert "Triton answers" in replica.log()
