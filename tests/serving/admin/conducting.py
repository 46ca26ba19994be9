"""A conductor in a process of its own, so that it can be killed: python -m tests.serving.admin.conducting STATE_URL."""

import asyncio
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rankhouse.serving.admin.conductor import Conductor, ConductorOptions
from rankhouse.serving.admin.webhooks import Backoff
from rankhouse.serving.control.state_store import StateStore
from rankhouse.serving.control.state_stores import open_state_store
from tests.serving.admin.world import MODEL

OPTIONS = ConductorOptions(
    interval_seconds=0.05,
    lease_seconds=1.0,
    analysis_seconds=0.0,
    convergence_seconds=0.5,
    webhook_secret=b"secret",
    backoff=Backoff(first_seconds=0.05, longest_seconds=0.2),
)


@contextmanager
def conducting(store: StateStore, replica: str = "one") -> Iterator[Callable[[float], bool]]:
    """A conductor whose rounds are called with a time, and end when what they had judged is judged."""
    conductor = Conductor(store, MODEL, replica=replica, options=OPTIONS)

    def settled(now: float) -> bool:
        end = time.monotonic() + 300.0
        conducts = conductor.round(now)
        while conductor.is_judging:
            assert time.monotonic() < end
            conducts = conductor.round(now)
        return conducts

    yield settled
    conductor.close()


if __name__ == "__main__":
    conductor = Conductor(open_state_store(sys.argv[1]), MODEL, replica=sys.argv[2], options=OPTIONS)
    print("conducting", flush=True)
    asyncio.run(conductor.run())
