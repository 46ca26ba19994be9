"""The last hour, or any other time, of a summary that only grows."""

from collections import deque

from rankhouse.serving.analysis.errors import SummaryError
from rankhouse.serving.analysis.summary import Summary

_NUM_STATES = 24


class SummaryWindow:
    """What was counted in about the last `seconds`, to a 24th of it. Used from one thread at a time.

    Args:
        seconds: The window's length.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._states: deque[tuple[float, Summary]] = deque()

    def advance(self, now: float, total: Summary) -> Summary:
        """Takes note of the summary as it is now, and says what has come since the window's begin.

        What came before the first call is not counted. Where the summary is not a later state of the one before, as
        after a replica that is no longer counted, the window begins anew.

        Args:
            now: Unix seconds, rising.
            total: The summary of all time.
        """
        if not self._states or now >= self._states[-1][0] + self._seconds / _NUM_STATES:
            self._states.append((now, Summary(total.features).merge(total)))
        while len(self._states) > 1 and self._states[1][0] <= now - self._seconds:
            self._states.popleft()
        try:
            return total.since(self._states[0][1])
        except SummaryError:
            self._states = deque([(now, Summary(total.features).merge(total))])
            return Summary(total.features)
