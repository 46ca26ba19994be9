"""How a rank is told to stop before its work is done, and the exit statuses that say how it left."""

import os
import signal
import time
from pathlib import Path

# The exit statuses of a rank besides 0 (finished) and 1 (an error of its own).
STOPPED = 130  # told to stop, state saved
LOST_PEERS = 75  # another rank went away in the middle of an exchange

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

FILE_CHECK_SECONDS = 1.0

# A dying launcher, or a launcher and a process group, say the same thing several times.
SAME_SIGNAL_SECONDS = 1.0


class StopRequest:
    """Notices SIGINT, SIGTERM, or a file `stop` in the run folder. Make it in the main thread, before TensorFlow.

    The launcher starts its ranks with both signals blocked, and this unblocks them: none is lost while a rank imports.
    The first signal only raises a flag, which the training loop reads after each step; a later one ends the process.
    Horovodrun kills its ranks at a signal, before they could save: there, the file is the way to stop.
    """

    def __init__(self, stop_file: Path) -> None:
        self._stop_file = stop_file
        self._signalled_at: float | None = None
        self._next_check = 0.0
        for number in STOP_SIGNALS:
            signal.signal(number, self._notice)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)

    def _notice(self, number: int, _: object) -> None:
        now = time.monotonic()
        if self._signalled_at is None:
            self._signalled_at = now
        elif now > self._signalled_at + SAME_SIGNAL_SECONDS:
            os._exit(128 + number)

    def __bool__(self) -> bool:
        """Tells whether this rank was told to stop; it looks for the file at most once a second."""
        if self._signalled_at is None and time.monotonic() >= self._next_check:
            self._next_check = time.monotonic() + FILE_CHECK_SECONDS
            return self._stop_file.exists()
        return self._signalled_at is not None

    @property
    def exit_status(self) -> int:
        """STOPPED after a signal; 0 after the file, as horovodrun takes anything else for a crash."""
        return 0 if self._stop_file.exists() else STOPPED
