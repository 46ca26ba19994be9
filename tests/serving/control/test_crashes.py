"""A writer that is killed at any point leaves a state and a history that agree."""

import random
import signal
import subprocess
import sys
import time
from functools import partial

from rankhouse.serving.control.state_store import StateStore
from tests.embedding_cache.redis_tier.servers import until
from tests.serving.control.states_of_models import stable_at

# Quarantines version 2, 3, ... : after revision r, r - 1 are in quarantine, and the history has r - 1 events.
WRITER = """
import sys
from functools import partial
from rankhouse.serving.control import transitions
from rankhouse.serving.control.state_store import change_state
from rankhouse.serving.control.state_stores import open_state_store
from tests.serving.control.states_of_models import name

store = open_state_store(sys.argv[1], timeout_seconds=60.0)
while True:
    def command(state):
        version = name(len(state.quarantined) + 2)
        return transitions.quarantine(state, version, actor=sys.argv[2], now=1.0, reason="x" * 200)
    print(change_state(store, "m", command, wait_seconds=60.0).revision, flush=True)
"""


def test_state_and_history_agree_after_every_kill(store: StateStore, store_url: str) -> None:
    store.create(stable_at(1))
    chance = random.Random(7)
    for turn in range(6):
        before = store.revision("m")
        arguments = (sys.executable, "-c", WRITER, store_url, f"writer-{turn}")
        writers = [subprocess.Popen(arguments, stdout=subprocess.PIPE) for _ in range(2)]
        try:
            until("they have written", partial(has_grown, store, before))
            time.sleep(chance.random() * 0.05)
        finally:
            for writer in writers:
                writer.send_signal(signal.SIGKILL)
        lines = [int(line) for writer in writers for line in writer.communicate(timeout=60)[0].split(b"\n")[:-1]]
        stored = store.read("m")
        assert stored.revision >= max(lines, default=0), "what a writer was told is lost"
        assert len(stored.state.quarantined) == stored.revision - 1
        events = store.history("m", limit=100_000)
        assert [event.number for event in events] == list(range(stored.revision - 1, 0, -1))
        assert [event.version for event in reversed(events)] == list(stored.state.quarantined)


def has_grown(store: StateStore, revision: int) -> bool:
    return store.revision("m") > revision + 3
