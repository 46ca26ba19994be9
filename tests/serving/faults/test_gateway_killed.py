"""The gateway is killed right after each event of rollouts' whole lives, and goes on."""

import time
from collections.abc import Callable

import pytest

from benchmarks.support.rollout.callers import Callers
from benchmarks.support.rollout.oracle import Window
from benchmarks.support.rollout.replica import Replica
from benchmarks.support.rollout.site import Site
from rankhouse.serving.triton_server import TritonServer

pytestmark = pytest.mark.triton

# The last step waits for a person, so that what a test does to a rollout never comes after its end.
STEPS = ({"weight": 20, "pause": "1s"}, {"weight": 60, "pause": "1s"}, {"weight": 80, "pause": "manual"})


class Killer:
    """Kills a gateway as soon as the history shows an event, and starts it again."""

    def __init__(self, site: Site, replica: Replica, callers: Callers) -> None:
        self._site, self._replica, self._callers = site, replica, callers
        self._seen = site.history()[-1].number
        self.windows: list[Window] = []

    def after(self, kind: str) -> None:
        event = self._site.event_after(self._seen)
        begin = time.time()
        self._replica.kill()
        self._replica.start()
        self.windows.append(Window(begin, time.time(), may_fail=True))
        # Stable is there first, and stands in for the candidate until that is proven again.
        end = self._site.wait_until_answering(self._callers, self._replica)
        self.windows.append(Window(begin, end, may_fall_back=True))
        self._seen = event.number
        assert event.kind == kind


def test_a_gateway_that_is_killed_after_every_event_goes_on(
    new_site: Callable[..., Site], triton: TritonServer
) -> None:
    site = new_site(steps=STEPS)
    first = site.publish()
    with site.replica(triton) as replica, site.callers(replica, pause_seconds=0.01) as callers:
        site.wait_until_stable(first)
        killer = Killer(site, replica, callers)
        second = site.publish()
        for kind in ("started", "stepped", "stepped", "stepped"):
            killer.after(kind)
        with replica.admin() as admin:
            admin.promote()
        killer.after("promoted")
        site.wait_until_answering(callers, replica)
        site.wait_until_loaded(first)
        with replica.admin() as admin:
            admin.rollback(first)
        killer.after("policy_changed")
        killer.after("reverted")
        site.wait_until_answering(callers, replica)
        with replica.admin() as admin:
            admin.resume_refresh()
        killer.after("policy_changed")
        third = site.publish()
        killer.after("started")
        killer.after("stepped")
        with replica.admin() as admin:
            admin.abort()
        site.event_after(0, "rolled_back")
        site.wait_until_answering(callers, replica)
    findings = site.findings(callers, killer.windows)
    assert findings.wrong == []
    assert set(findings.num_by_version) == {first, second, third}
    assert (site.state().stable, site.state().rollouts) == (first, ())
    kinds = [event.kind for event in site.history()]
    promoted = ["admitted", "started", *["stepped"] * 3, "promoted"]
    again = [*promoted, "policy_changed", "reverted", "policy_changed", "started"]
    assert kinds == [*again, *["stepped"] * kinds[len(again) :].count("stepped"), "rolled_back"]
    assert [each.status for each in site.store.finished(site.model)] == ["rolled_back", "promoted"]
