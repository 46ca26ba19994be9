"""Deltas that arrive damaged, in parts, late, twice and in another order than they were written, and a full disk."""

import resource
import time
from collections.abc import Callable

import pytest

from benchmarks.support.rollout.replica import Replica, eventually
from benchmarks.support.rollout.site import Site
from rankhouse.serving.triton_server import TritonServer
from tests.serving.faults.courier import Courier

pytestmark = pytest.mark.triton

FULL_SECONDS = 1.5


def preparing(site: Site, version: str) -> str:
    """What the replica says of a version; nothing where its last word is too old to be believed."""
    return "".join(report.preparing.get(version, "") for report in site.store.replicas(site.model))


def waits_for(site: Site, version: str, what: str) -> None:
    eventually(lambda: what in preparing(site, version), lambda: site.store.replicas(site.model))


def settled(site: Site, version: str, kinds: list[str]) -> None:
    """A version is stable, and nothing else has happened."""
    site.wait_until_stable(version)
    assert [event.kind for event in site.history()] == kinds


def limit_files(replica: Replica, size: int) -> None:
    _, most = resource.prlimit(replica.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(replica.pid, resource.RLIMIT_FSIZE, (size, most))


def test_only_what_arrived_whole_is_served_and_never_an_older_version(
    new_site: Callable[..., Site], triton: TritonServer
) -> None:
    site = new_site()
    served = site.folder / "served"
    courier = Courier(site.version_store, served)
    first, late, damaged, skipped, early = (site.publish() for _ in range(5))
    courier.bring(first)
    with (
        site.replica(triton, STORE=served, WATCH_SECONDS=0.1) as replica,
        site.callers(replica, pause_seconds=0.01) as callers,
    ):
        settled(site, first, kinds := ["admitted"])

        courier.bring_folder(late)
        waits_for(site, late, "waiting for 2 of its")
        courier.bring_shared(late)
        settled(site, late, kinds := [*kinds, "admitted"])

        courier.bring_shared(damaged, is_damaged=True)
        courier.bring_folder(damaged)
        found = site.event_after(len(kinds), "quarantined")
        assert found.version == damaged
        assert "restore the file from another copy" in found.reason
        courier.bring_shared(damaged)
        settled(site, damaged, kinds := [*kinds, "quarantined", "released", "admitted"])

        courier.bring(early)
        waits_for(site, early, f"its parent {skipped}")
        courier.bring(skipped)
        settled(site, early, kinds := [*kinds, "admitted"])

        courier.bring(early)
        courier.bring(late)
        orphan_parent, orphan, _ = (site.publish() for _ in range(3))
        courier.bring(orphan)
        waits_for(site, orphan, f"its parent {orphan_parent}")
        whole = site.publish()
        courier.bring(whole)
        settled(site, whole, kinds := [*kinds, "admitted"])

        limit_files(replica, 0)
        last = site.publish()
        courier.bring(last)
        time.sleep(FULL_SECONDS)
        assert site.state().stable == whole
        limit_files(replica, resource.RLIM_INFINITY)
        settled(site, last, kinds := [*kinds, "admitted"])
        site.wait_until_answering(callers, replica)
    findings = site.findings(callers)
    assert findings.wrong == []
    assert [name for name in site.names if name in findings.num_by_version] == [
        *(first, late, damaged, early, whole, last)
    ]
