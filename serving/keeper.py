"""Keeping child processes alive: one that dies is started again, unless that happens too often."""

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from rankhouse.serving.errors import ProcessFailedError
from rankhouse.serving.processes import ChildProcess

MOST_DEATHS, WITHIN_SECONDS = 5, 60.0

_FIRST_PAUSE_SECONDS = 0.1
_log = logging.getLogger(__name__)


class Child(Protocol):
    """A program that can be started again."""

    @property
    def process(self) -> ChildProcess:
        """The process of its last start."""

    def start(self) -> None:
        """Starts it."""

    def stop(self) -> None:
        """Stops what is left of it."""


class Keeper:
    """Starts children again that died. Use from the thread that started them.

    Args:
        children: Children that run.
        on_death: Told in a line what happened.
    """

    def __init__(self, children: Sequence[Child], *, on_death: Callable[[str], None] = _log.warning) -> None:
        self._children = children
        self._on_death = on_death
        self._deaths: deque[float] = deque(maxlen=MOST_DEATHS)

    def look(self) -> None:
        """Starts again what died since the last look; waits longer before it, the more died lately.

        Raises:
            ProcessFailedError: Children died too often; the message ends with the end of the last one's log.
        """
        for child in self._children:
            if child.process.exit_status is not None:
                self._revive(child)

    def _revive(self, child: Child) -> None:
        process, now = child.process, time.monotonic()
        what = f"died (status {process.exit_status})"
        self._deaths.append(now)
        num_lately = sum(now - death < WITHIN_SECONDS for death in self._deaths)
        if num_lately >= MOST_DEATHS:
            raise process.failure(f"{what}; that was death number {num_lately} within {WITHIN_SECONDS:g} s")
        pause = _FIRST_PAUSE_SECONDS * 4 ** (num_lately - 1)
        kept = _keep_log(process.log_path)
        self._on_death(f"{process.name} {what}; it is started again, and its log is kept as {kept}")
        time.sleep(pause)
        child.stop()
        # What does not come up has died again: the next look finds it.
        with suppress(ProcessFailedError):
            child.start()


def _keep_log(path: Path) -> Path:
    """Keeps the log of a process that died: its next start begins a new one."""
    kept = path.with_name(f"{path.stem}.died{path.suffix}")
    with suppress(FileNotFoundError):
        path.replace(kept)
    return kept
