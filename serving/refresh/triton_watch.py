"""Whether Triton answers, and which versions it has: it may be killed, hang, or be started again at any time."""

import asyncio
import logging
from collections.abc import Callable, Mapping

from rankhouse.serving.errors import TritonError, TritonTimeoutError
from rankhouse.serving.triton_client import TritonClient

_PROBE_SECONDS, _ANSWER_SECONDS = 0.5, 2.0
# A machine that is busy for a moment must not make its replica unready.
_MOST_TIMEOUTS = 3
_log = logging.getLogger(__name__)


class TritonWatch:
    """Asks Triton again and again. For the event loop's thread.

    Args:
        client: The way to Triton.
        ensembles: Gives the ensembles that should be ready, by version.
        on_lost: Called with the versions that Triton does not have any more.
        on_turn: Called when Triton begins to answer, or no longer does.

    Attributes:
        is_answering: Whether it does.
    """

    def __init__(
        self,
        client: TritonClient,
        *,
        ensembles: Callable[[], Mapping[str, str]],
        on_lost: Callable[[frozenset[str]], None],
        on_turn: Callable[[], None],
    ) -> None:
        self.is_answering = False
        self._client = client
        self._ensembles = ensembles
        self._on_lost = on_lost
        self._on_turn = on_turn
        self._num_timeouts = 0
        self._now = asyncio.Event()

    def look_now(self) -> None:
        """Asks at once: a request has just failed."""
        self._now.set()

    async def run(self) -> None:
        """Asks until it is cancelled."""
        while True:
            self._now.clear()
            await self._look()
            try:
                await asyncio.wait_for(self._now.wait(), _PROBE_SECONDS)
            except asyncio.TimeoutError:
                continue
            # Many requests may fail at a time.
            await asyncio.sleep(_PROBE_SECONDS / 10)

    async def _look(self) -> None:
        try:
            lost = await self._lost()
        except TritonError as exc:
            is_late = isinstance(exc, TritonTimeoutError)
            self._num_timeouts += is_late
            if not is_late or self._num_timeouts >= _MOST_TIMEOUTS:
                self._turn(is_answering=False, why=str(exc))
            return
        self._num_timeouts = 0
        if lost:
            _log.warning("Triton does not have %s any more", ", ".join(sorted(lost)))
            self._on_lost(lost)
        self._turn(is_answering=True, why="")

    async def _lost(self) -> frozenset[str]:
        if not await self._client.says_ready(timeout_seconds=_ANSWER_SECONDS):
            raise TritonTimeoutError("Triton is not ready yet")
        ensembles = dict(self._ensembles())
        asked = (self._client.says_ready(name, timeout_seconds=_ANSWER_SECONDS) for name in ensembles.values())
        answers = await asyncio.gather(*asked)
        return frozenset(version for version, is_ready in zip(ensembles, answers, strict=True) if not is_ready)

    def _turn(self, *, is_answering: bool, why: str) -> None:
        if is_answering == self.is_answering:
            return
        self.is_answering = is_answering
        if is_answering:
            _log.info("Triton answers")
        else:
            _log.warning("Triton does not answer: %s", why)
        self._on_turn()
