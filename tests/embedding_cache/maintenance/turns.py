"""Runs actors over a storage of objects one call at a time, in an order that is given, so that each order can be tried.

Between two calls to the storage an actor does nothing that another could see, so these are all orders there are.
"""

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from rankhouse.embedding_cache.format import bucket_claims, bucket_storage
from rankhouse.embedding_cache.format.object_storage import ObjectStorage

CALLS = ("listing", "size", "read", "put", "write", "create", "delete")
END = 1_000_000

# An actor's name, and how many calls it makes before it is another's turn.
Phases = list[tuple[str, int]]


class Killed(BaseException):
    """What ends an actor's process."""


class Turns:
    """Hands turns to actors, each in a thread of its name. Whoever waits hands its turn on, and the clock goes on."""

    def __init__(self, phases: Phases, *, kill: tuple[str, int] | None = None) -> None:
        """Sets an order; when it is at its end, each actor goes on to its own.

        Args:
            phases: Whose turn it is, and for how many calls.
            kill: An actor, and the number of the call before which its process is gone.
        """
        self._phases = list(phases)
        self._kill = kill
        self.now = 0.0
        self._changed = threading.Condition()
        self._alive: set[str] = set()
        self.num_calls: dict[str, int] = {}
        self.errors: dict[str, BaseException] = {}

    def run(self, actors: Mapping[str, Callable[[], object]], monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
        """Runs all to their ends and returns what they returned; what they raised is in `errors`."""
        results: dict[str, object] = {}

        def act(name: str) -> None:
            try:
                results[name] = actors[name]()
            except BaseException as exc:  # Also `Killed`.
                self.errors[name] = exc
            with self._changed:
                self._alive.remove(name)
                self._changed.notify_all()

        self._alive = set(actors)
        self._phases += [(name, END) for name in actors]
        self.num_calls = dict.fromkeys(actors, 0)
        threads = [threading.Thread(target=act, args=(name,), name=name) for name in actors]
        with monkeypatch.context() as patch:
            for call in CALLS:
                patch.setattr(ObjectStorage, call, self._counted(getattr(ObjectStorage, call)))
            clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep)
            for module in (bucket_claims, bucket_storage):
                patch.setattr(module, "time", clock)
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(300)
        assert not any(thread.is_alive() for thread in threads)
        return results

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            self._wait_for_turn(threading.current_thread().name)
            return method(*arguments, **keywords)

        return call

    def _wait_for_turn(self, name: str) -> None:
        with self._changed:
            while (current := self._current()) != name:
                self._changed.notify_all()
                assert self._changed.wait(120), f"{name} waits for {current}"
            self._phases[0] = (name, self._phases[0][1] - 1)
            if self._kill is not None and self._kill[0] == name and self.num_calls[name] >= self._kill[1]:
                raise Killed
            self.num_calls[name] += 1

    def _current(self) -> str:
        while self._phases[0][1] <= 0 or self._phases[0][0] not in self._alive:
            self._phases.pop(0)
        return self._phases[0][0]

    def _sleep(self, seconds: float) -> None:
        with self._changed:
            self.now += seconds
            others = sorted(self._alive - {threading.current_thread().name})
            self._phases[:0] = [(name, END) for name in others]
            self._changed.notify_all()


def orders(first: str, second: str, *, num_calls: int, num_random: int, step: int = 1) -> Iterator[Phases]:
    """Orders of two actors: each is interrupted once before each of its calls, and both many times, by chance."""
    for one, other in ((first, second), (second, first)):
        for begin in range(0, num_calls, step):
            yield [(one, begin), (other, END)]
    chance = random.Random(1)
    for _ in range(num_random):
        yield [(chance.choice((first, second)), chance.randrange(1, 8)) for _ in range(20)]
