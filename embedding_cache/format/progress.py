"""How many bytes of blocks have passed by, for a progress bar."""

import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy.typing as npt


class ByteProgress:
    """Counts the bytes that several threads handle."""

    def __init__(self, on_bytes: Callable[[int, int], None], *, total: int = 0) -> None:
        """Names the listener.

        Args:
            on_bytes: Called with the bytes so far and in all, by one thread at a time.
            total: How many bytes are known to come.
        """
        self._done, self._total, self._on_bytes = 0, total, on_bytes
        self._lock = threading.Lock()

    def expect(self, num_bytes: int) -> None:
        """Says that more bytes are to come."""
        with self._lock:
            self._total += num_bytes

    def add(self, num_bytes: int) -> None:
        """Counts bytes."""
        with self._lock:
            self._done += num_bytes
            self._on_bytes(self._done, self._total)

    def watch(self, blocks: Iterable[npt.NDArray[Any]]) -> Iterator[npt.NDArray[Any]]:
        """Passes blocks on, and counts each when it was used."""
        for block in blocks:
            yield block
            self.add(block.nbytes)
