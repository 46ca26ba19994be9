"""Are many requests answered, each by one version that was allowed then, while all that rollouts know goes on?"""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.support.rollout.callers import Callers
from benchmarks.support.rollout.oracle import Findings
from benchmarks.support.rollout.replica import Replica
from benchmarks.support.rollout.site import Site
from rankhouse.serving.triton_server import TritonServer

DELTA_SECONDS = 2.0
STEPS = ({"weight": 10, "pause": "2s"}, {"weight": 50, "pause": "2s"})
# The last step waits, or a machine that stalls would promote what is to be aborted.
_ABORTED_STEPS = (STEPS[0], {"weight": 50, "pause": "manual"})
_DIRECT, _MANUAL = ({"admit": admit, "keep_loaded_bytes": 1 << 40} for admit in ("direct", "manual"))


@dataclass(frozen=True)
class Proof:
    """What came of it.

    Attributes:
        findings: What the history says of the answers.
        num_by_protocol: Answers by protocol.
        num_keys: Different keys.
        num_events: Events by kind.
        seconds: How long it took.
    """

    findings: Findings
    num_by_protocol: Counter[str]
    num_keys: int
    num_events: Counter[str]
    seconds: float


def prove(
    server: TritonServer,
    folder: Path,
    *,
    num_answers: int,
    delta_seconds: float = DELTA_SECONDS,
    concurrency: int = 4,
    say: Callable[[str], None] = lambda text: None,
) -> Proof:
    """Sends requests over REST and gRPC without a pause, under deltas, a promotion, an abort and a rollback.

    Args:
        server: A running Triton.
        folder: Gets everything else.
        num_answers: At least so many requests are sent; each part gets its share of them.
        delta_seconds: Between two deltas.
        concurrency: Of each protocol.
        say: Is told how far it is.
    """
    site = Site(folder)
    began = time.time()
    site.publish()
    try:
        with site.replica(server) as replica, site.callers(replica, concurrency=concurrency) as callers:
            site.wait_until_stable(site.names[0])
            course = _Course(site, replica, callers, num_answers, delta_seconds, say)
            course.run()
            site.wait_until_answering(callers, replica)
        return Proof(
            findings=site.findings(callers),
            num_by_protocol=Counter(each.protocol for each in callers.answers),
            num_keys=len({each.key for each in callers.answers}),
            num_events=Counter(event.kind for event in site.history()),
            seconds=time.time() - began,
        )
    finally:
        site.close()


@dataclass
class _Course:
    site: Site
    replica: Replica
    callers: Callers
    num_answers: int
    delta_seconds: float
    say: Callable[[str], None]

    def run(self) -> None:
        self._refresh_until(0.25)
        self._canary()
        self._refresh_until(0.5)
        self._canary(is_aborted=True)
        self._refresh_until(0.75)
        self._roll_back()
        self._refresh_until(1.0)

    def _tell(self, what: str) -> None:
        self.say(f"{what}; {self.callers.num_answers:,} of {self.num_answers:,} requests")

    def _refresh_until(self, share: float) -> None:
        """Deltas, two of them at least."""
        num_deltas = 0
        while num_deltas < 2 or self.callers.num_answers < share * self.num_answers:
            num_deltas += 1
            name, began = self.site.publish(), time.monotonic()
            self.site.wait_until_stable(name)
            self._tell(f"{name} is stable")
            time.sleep(max(0.0, self.delta_seconds - (time.monotonic() - began)))

    def _canary(self, *, is_aborted: bool = False) -> None:
        with self.replica.admin() as admin:
            admin.set_policy(_MANUAL)
            after = self.site.history()[-1].number
            candidate = self.site.publish()
            admin.start({"candidate": candidate, "steps": list(_ABORTED_STEPS if is_aborted else STEPS)})
            self._tell(f"{candidate} is rolled out")
            if is_aborted:
                second = self.site.event_after(self.site.event_after(after, "stepped").number, "stepped")
                time.sleep(max(0.0, second.at + self.delta_seconds / 2 - time.time()))
                admin.abort()
            else:
                self.site.event_after(after, "promoted")
            admin.set_policy(_DIRECT)

    def _roll_back(self) -> None:
        earlier = self.site.state().previous[0]
        with self.replica.admin() as admin:
            admin.rollback(earlier)
            self._tell(f"back to {earlier}")
            time.sleep(self.delta_seconds)
            admin.resume_refresh()
