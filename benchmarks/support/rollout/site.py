"""A model's marked versions, its state and its replicas in one folder; and what callers of them are held against."""

import itertools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from benchmarks.support.refresh.marked_versions import MarkedVersions
from benchmarks.support.rollout.answers import Answer
from benchmarks.support.rollout.callers import Callers, Marks, marked_plan
from benchmarks.support.rollout.oracle import Findings, Window, check, eras_of
from benchmarks.support.rollout.replica import Replica, eventually
from rankhouse.serving.control.model_state import Event, ModelState
from rankhouse.serving.control.refresh_policy import parse_policy
from rankhouse.serving.control.state_stores import open_state_store
from rankhouse.serving.triton_server import TritonServer

_NUMBERS = itertools.count(1)
_PAGE = 1000
_ENOUGH_BYTES = 1 << 40

Steps = Sequence[Mapping[str, object]]


class Site:
    """Use from one thread.

    Args:
        folder: Gets everything.
        steps: Of the rollouts that new versions start; None: they are admitted directly.
        state_url: The state store; None: a SQLite file.

    Attributes:
        model: The model's name, of which there is no other one in this process: sites may share a Triton.
        folder: Has everything.
        marks: Of the published versions.
        store: The state store.
        names: The published versions, oldest first.
    """

    def __init__(self, folder: Path, *, steps: Steps | None = None, state_url: str | None = None) -> None:
        self.model = f"marked{next(_NUMBERS)}"
        self.folder = folder
        self.marks = Marks()
        self.names: list[str] = []
        self.state_path = folder / "state.db"
        self.state_url = state_url or f"sqlite://{quote(str(self.state_path))}"
        self._versions = MarkedVersions(folder / "versions", model=self.model)
        self.store = open_state_store(self.state_url, timeout_seconds=60.0)
        document = {"admit": "direct"} if steps is None else {"admit": "rollout", "rollout": {"steps": steps}}
        policy = parse_policy({**document, "keep_loaded_bytes": _ENOUGH_BYTES})
        self.store.create(ModelState(model=self.model, policy=policy))

    @property
    def version_store(self) -> Path:
        """Where versions are published."""
        return self.folder / "versions" / "store"

    def publish(self) -> str:
        """Writes the next version; returns its name."""
        marked = self._versions.publish()
        name = marked.version.name
        self.marks.of[name] = marked.mark
        self.names.append(name)
        return name

    def replica(self, server: TritonServer, name: str = "one", **settings: object) -> Replica:
        """A replica of this model that does not run yet."""
        given = {"STORE": self.version_store, "STATE_URL": self.state_url, **settings}
        return Replica(name, model=self.model, server=server, folder=self.folder / name, settings=given)

    def callers(self, *replicas: Replica, **options: object) -> Callers:
        """Callers of some replicas, who do not call yet."""
        return Callers([each.gateway for each in replicas], marked_plan(self.model, **options))

    def state(self) -> ModelState:
        """The state of now."""
        return self.store.read(self.model).state

    def history(self) -> list[Event]:
        """Everything that happened, oldest first."""
        events: list[Event] = []
        while page := self.store.history(self.model, after=events[-1].number if events else 0, limit=_PAGE):
            events += page
        return events

    def event_after(self, number: int, *kinds: str) -> Event:
        """Waits for the first event after that of a number, or for the first of some kinds."""
        found: list[Event] = []

        def is_there() -> bool:
            events = self.store.history(self.model, after=number, limit=_PAGE)
            found[:] = [event for event in events if not kinds or event.kind in kinds]
            return bool(found)

        eventually(is_there, lambda: (number, kinds, self.state(), self.store.replicas(self.model)))
        return found[0]

    def wait_until_stable(self, version: str) -> None:
        """Waits until a version is the stable one."""
        eventually(lambda: self.state().stable == version, lambda: (version, self.state(), self.history()[-5:]))

    def wait_until_loaded(self, version: str) -> None:
        """Waits until all living replicas say that they have a version."""

        def is_loaded() -> bool:
            replicas = self.store.replicas(self.model)
            return bool(replicas) and all(version in each.loaded for each in replicas)

        eventually(is_loaded, lambda: (version, self.store.replicas(self.model)))

    def wait_until_answering(self, callers: Callers, *replicas: Replica, num_answers: int = 20) -> float:
        """Waits until each replica has answered, in this order, as the newest era says; returns when that was so.

        What is asked after it, nothing that was broken before explains.
        """
        for replica in replicas:
            begin = time.time()

            def answered(name: str = replica.name, begin: float = begin) -> list[Answer]:
                return [each for each in callers.since(begin) if each.replica == name]

            def is_well() -> bool:
                era, found = eras_of(self.history())[-1], answered()[-num_answers:]
                return len(found) == num_answers and all(
                    each.version == era.version_of(each.key) and not each.wrong for each in found
                )

            eventually(is_well, lambda: (self.state(), answered()[-3:]))
        return time.time()

    def findings(self, callers: Callers, windows: Sequence[Window] = ()) -> Findings:
        """What callers got, held against the history; mixed answers are wrong at any time."""
        findings = check(callers.answers, self.history(), windows=windows)
        findings.wrong += self.marks.mixed(callers.answers)
        return findings

    def close(self) -> None:
        """Closes the state store."""
        self.store.close()
