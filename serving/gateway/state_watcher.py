"""Following a model's state in the store that replicas share."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from rankhouse.serving.control.state_store import StateStore, Stored
from rankhouse.serving.errors import ControlError, NoSuchModelStateError

_SECONDS = 0.03
_SECONDS_WHILE_LOST = 0.5
_Value = TypeVar("_Value")


class StateWatcher:
    """Reads a model's state whenever its revision changes, in a thread of its own: a store that hangs stops nothing.

    Args:
        store: The store.
        model: The model's name.
        on_state: Is given what was read, or None where the model has no state; called in the event loop.
        on_lost: Is told once, and again with each new reason, that the store cannot be read; called in the event loop.
    """

    def __init__(
        self,
        store: StateStore,
        model: str,
        *,
        on_state: Callable[[Stored | None], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._store = store
        self._model = model
        self._on_state = on_state
        self._on_lost = on_lost
        self._is_stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begins to read; call it in the event loop that is to be told."""
        loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, args=(loop,), name="state-watcher", daemon=True)
        self._thread.start()

    async def stop(self) -> None:
        """Ends reading; a call that hangs in the store is not waited for longer than the store's own limit."""
        self._is_stopping.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        seen: int | None = None
        reason = ""
        while not self._is_stopping.is_set():
            try:
                revision = self._store.revision(self._model)
                if revision != seen or reason:
                    stored = self._read() if revision else None
                    seen, reason = stored.revision if stored else 0, ""
                    self._tell(loop, self._on_state, stored)
            # Whatever it is: a thread that died of it would leave the replica behind without a word.
            except Exception as exc:
                said = str(exc) if isinstance(exc, ControlError) else repr(exc)
                if said != reason:
                    reason = said
                    self._tell(loop, self._on_lost, reason)
            self._is_stopping.wait(_SECONDS_WHILE_LOST if reason else _SECONDS)

    def _read(self) -> Stored | None:
        try:
            return self._store.read(self._model)
        except NoSuchModelStateError:
            return None

    def _tell(self, loop: asyncio.AbstractEventLoop, what: Callable[[_Value], None], value: _Value) -> None:
        if not self._is_stopping.is_set():
            loop.call_soon_threadsafe(what, value)
