"""How long refreshes, rollouts and rollbacks take, and what requests feel of it, through a gateway and Triton."""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.support.rollout.answers import Answer
from benchmarks.support.rollout.callers import Callers
from benchmarks.support.rollout.exports import Export
from benchmarks.support.rollout.replica import Replica, eventually
from rankhouse.serving.admin_client import AdminClient
from rankhouse.serving.control.model_state import Event
from rankhouse.serving.control.state_store import StateStore

REST_SECONDS, SETTLE_SECONDS, SHADOW_SECONDS = 4.0, 1.0, 8.0
CANARY_STEPS = [{"weight": 5, "pause": "2s"}, {"weight": 25, "pause": "2s"}, {"weight": 50, "pause": "2s"}]
AT_REST, EXPORT = "at rest", "export"
_LOADED = re.compile(r"version (\S+) is loaded and proven \(([0-9.]+) s\)")
_PAGE = 1000


@dataclass(frozen=True)
class Refreshed:
    """One delta's way, in seconds.

    Attributes:
        export: Writing it, until its folder has its name.
        loading: What the refresh agent did with it: verifying, loading, warming, replaying golden requests.
        admitted: From the beginning of the export until the state said that it answers.
        first: From there until its first answer.
        full: Until the last answer of the version before it.
    """

    export: float
    loading: float
    admitted: float
    first: float
    full: float


@dataclass(frozen=True)
class WentBack:
    """A rollback, in seconds since the command was sent.

    Attributes:
        command: Until its answer.
        first: Until the first answer of the earlier version.
        full: Until the last request was sent that the version taken back answered.
    """

    command: float
    first: float
    full: float


@dataclass
class Timings:
    """What was measured.

    Attributes:
        windows: When what went on, in unix seconds.
        refreshes: Deltas.
        rollbacks: Of a stable version to the one before it.
        aborts: Of a candidate with half of the requests.
        answers: All of them.
    """

    windows: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    refreshes: list[Refreshed] = field(default_factory=list)
    rollbacks: list[WentBack] = field(default_factory=list)
    aborts: list[WentBack] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)

    def seconds(self, what: str) -> list[float]:
        """The latencies of requests that were under way while something went on."""
        windows = self.windows[what]
        return [
            each.seconds
            for each in self.answers
            if not each.is_failed and any(each.due < end and each.got > begin for begin, end in windows)
        ]


@dataclass
class Stopwatch:
    """Measures a replica that runs, under callers that call at a rate. Use from one thread.

    Args:
        model: The model's name.
        store: The state store.
        replica: The gateway.
        callers: Who calls it.
        export: Begins to write a delta.
        admin: A client of its admin API.
        say: Is told what goes on.
    """

    model: str
    store: StateStore
    replica: Replica
    callers: Callers
    export: Callable[[], "Future[Export]"]
    admin: AdminClient
    say: Callable[[str], None]
    timings: Timings = field(default_factory=Timings)

    def run(self, rounds: int) -> Timings:
        """Measures everything so many times, in turn, so that all see the same noise."""
        for number in range(1, rounds + 1):
            self._tell(number, rounds, AT_REST)
            self._rest()
            self._tell(number, rounds, "a refresh, and back")
            before, _ = self._stable(), self._refresh()
            self._go_back(before)
            self._tell(number, rounds, "a canary, promoted")
            self._canary()
            self._tell(number, rounds, "a canary, aborted")
            self._abort()
            self._tell(number, rounds, "shadows")
            self._shadow()
        self.timings.answers = list(self.callers.answers)
        return self.timings

    def _tell(self, number: int, rounds: int, what: str) -> None:
        self.say(f"round {number} of {rounds}: {what}")

    @contextmanager
    def _during(self, what: str) -> Iterator[None]:
        begin = time.time()
        yield
        self.timings.windows[what].append((begin, time.time()))

    def _rest(self) -> None:
        time.sleep(SETTLE_SECONDS)
        with self._during(AT_REST):
            time.sleep(REST_SECONDS)

    def _stable(self) -> str:
        stable = self.store.read(self.model).state.stable
        assert stable is not None
        return stable

    def _refresh(self) -> str:
        export = self.export().result()
        eventually(lambda: self._stable() == export.version)
        eventually(lambda: self._answers_of(export.version, export.begin))
        time.sleep(SETTLE_SECONDS)
        # What the trainer takes is none of the refresh's, which begins when the version's folder gets its name.
        self.timings.windows[EXPORT].append((export.begin, export.appeared))
        self.timings.windows["refresh"].append((export.appeared, time.time()))
        answers = self.callers.since(export.begin)
        loading = {name: float(seconds) for name, seconds in _LOADED.findall(self.replica.log())}
        self.timings.refreshes.append(
            Refreshed(
                export=export.appeared - export.begin,
                loading=loading[export.version],
                admitted=self._event("admitted", export.version).at - export.begin,
                first=min(each.got for each in answers if each.version == export.version) - export.begin,
                full=max(each.got for each in answers if each.version != export.version) - export.begin,
            )
        )
        return export.version

    def _go_back(self, version: str) -> None:
        with self._during("rollback"):
            self.timings.rollbacks.append(self._taken_back(lambda: self.admin.rollback(version), version))
        self.admin.resume_refresh()

    def _taken_back(self, command: Callable[[], object], version: str) -> WentBack:
        begin = time.time()
        command()
        done = time.time()
        time.sleep(SETTLE_SECONDS)
        answers = self.callers.since(begin)
        return WentBack(
            command=done - begin,
            first=min(each.got for each in answers if each.version == version) - begin,
            full=max([begin, *(each.sent for each in answers if each.version != version)]) - begin,
        )

    def _canary(self) -> None:
        candidate = self._candidate()
        with self._during("canary"):
            self.admin.start({"candidate": candidate, "steps": CANARY_STEPS})
            eventually(lambda: self._stable() == candidate)
            time.sleep(SETTLE_SECONDS)

    def _abort(self) -> None:
        candidate, stable = self._candidate(), self._stable()
        self.admin.start({"candidate": candidate, "steps": [{"weight": 50, "pause": "manual"}]})
        eventually(lambda: self._answers_of(candidate, 0.0))
        time.sleep(SETTLE_SECONDS)
        with self._during("abort"):
            self.timings.aborts.append(self._taken_back(self.admin.abort, stable))

    def _shadow(self) -> None:
        candidate = self._candidate()
        for percent in (0, 10):
            # A ten-thousandth of the users, so that there is a candidate.
            spec = {"candidate": candidate, "shadow": percent, "steps": [{"weight": 0.01, "pause": "manual"}]}
            self.admin.start(spec)
            eventually(lambda: self.store.read(self.model).state.rollouts[0].started_at)
            time.sleep(SETTLE_SECONDS)
            with self._during(f"shadow {percent} %"):
                time.sleep(SHADOW_SECONDS)
            self.admin.abort()
        self._admit_new(is_direct=True)

    def _candidate(self) -> str:
        """A new version that nobody admits."""
        self._admit_new(is_direct=False)
        return self.export().result().version

    def _admit_new(self, *, is_direct: bool) -> None:
        self.admin.set_policy({"admit": "direct" if is_direct else "manual", "keep_loaded_bytes": 1 << 40})

    def _answers_of(self, version: str, since: float) -> bool:
        return any(each.version == version and each.sent >= since for each in self.callers.answers[-200:])

    def _event(self, kind: str, version: str) -> Event:
        events = self.store.history(self.model, limit=_PAGE)
        return next(event for event in events if event.kind == kind and event.version == version)
