"""Versions that are never tried again, unless they are released or their bytes change."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from rankhouse.serving.refresh.watcher import Signature

# Tells whoever keeps the shared state: version, reason.
Announce = Callable[[str, str], Awaitable[None]]

_AGAIN_SECONDS, _LONGEST_SECONDS = 1.0, 60.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Entry:
    """A version in quarantine.

    Attributes:
        reason: Why.
        signature: What its files looked like then; None where that is not known yet.
        is_shared: The shared state has it, too; when it is not there any more, the version was released.
    """

    reason: str
    signature: Signature | None = None
    is_shared: bool = False


class Quarantine:
    """What this replica must not try, by its own findings and by the shared state. For the event loop's thread.

    Args:
        announce: Has the shared state take a version in; tried again until it succeeds. None: there is no such state.
        release: Has the shared state let a version out, because its bytes changed.
    """

    def __init__(self, *, announce: Announce | None = None, release: Announce | None = None) -> None:
        self._announce = announce
        self._release = release
        self._entries: dict[str, Entry] = {}
        self._stable: str | None = None
        self._telling: set[asyncio.Task[None]] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    @property
    def reasons(self) -> dict[str, str]:
        """Why, by version."""
        return {name: entry.reason for name, entry in self._entries.items()}

    @property
    def signatures(self) -> dict[str, Signature | None]:
        """What the files looked like, by version."""
        return {name: entry.signature for name, entry in self._entries.items()}

    def take_in(self, name: str, reason: str, signature: Signature) -> bool:
        """Takes a version in; says whether it did. Never stable: replicas need it, and nobody could release it."""
        if name == self._stable:
            return False
        _log.error("version %s is quarantined: %s", name, reason)
        self._entries[name] = Entry(reason, signature)
        self._tell(self._announce, name, reason)
        return True

    def note_signature(self, name: str, signature: Signature) -> bool:
        """Compares a version's files with what they were; says whether they changed, which lets it out."""
        entry = self._entries[name]
        if entry.signature is None:
            self._entries[name] = replace(entry, signature=signature)
        if entry.signature in (None, signature):
            return False
        _log.info("version %s has other files than when it was quarantined: it is tried again", name)
        del self._entries[name]
        if entry.is_shared:
            self._tell(self._release, name, "its files changed")
        return True

    def follow(self, shared: Mapping[str, str], *, stable: str | None = None) -> list[str]:
        """Takes over what the shared state says; returns what it let out, which the stable version always is."""
        self._stable = stable
        for name, reason in shared.items():
            entry = self._entries.get(name, Entry(reason))
            self._entries[name] = replace(entry, is_shared=True)
        released = [
            name for name, entry in self._entries.items() if name not in shared and (entry.is_shared or name == stable)
        ]
        for name in released:
            del self._entries[name]
        return released

    def close(self) -> None:
        """Stops telling."""
        for task in self._telling:
            task.cancel()

    def _tell(self, whom: Announce | None, name: str, reason: str) -> None:
        if whom is not None:
            task = asyncio.get_running_loop().create_task(self._keep_telling(whom, name, reason))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _keep_telling(self, whom: Announce, name: str, reason: str) -> None:
        is_in, pause = name in self._entries, _AGAIN_SECONDS
        while (name in self._entries) == is_in:  # It may have changed again meanwhile.
            try:
                await whom(name, reason)
            except Exception as exc:
                _log.warning("the shared state was not told of the quarantine of %s: %s", name, exc)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_SECONDS)
            else:
                return
