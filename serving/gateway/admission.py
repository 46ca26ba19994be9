"""How many requests are answered at a time."""

from collections.abc import Iterator
from contextlib import contextmanager

from rankhouse.serving.errors import OverloadedError


class Admission:
    """Counts the requests in flight and refuses those beyond a limit. For the event loop's thread only.

    A refused caller comes back at once and can go to another gateway; a queue would let all callers wait until the
    deadlines of all have passed.

    Attributes:
        max_in_flight: The limit.
        num_in_flight: The requests being answered now.
    """

    def __init__(self, max_in_flight: int) -> None:
        self.max_in_flight = max_in_flight
        self.num_in_flight = 0

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Holds a place for a request.

        Raises:
            OverloadedError: All places are taken.
        """
        if self.num_in_flight >= self.max_in_flight:
            raise OverloadedError(
                f"{self.num_in_flight} requests are being answered, which is the limit; try again later"
            )
        self.num_in_flight += 1
        try:
            yield
        finally:
            self.num_in_flight -= 1
