"""What callers got, one record for each request."""

from dataclasses import dataclass

import numpy as np

from benchmarks.support.refresh.marked_versions import PLACES, marks_of


@dataclass(frozen=True, slots=True)
class Answer:
    """A request and what came of it. Times are unix seconds.

    Attributes:
        due: When it was to be sent; when it was, where no rate is kept.
        sent: When it was sent.
        got: When its answer, or the failure, was there.
        replica: The gateway that was asked.
        protocol: "rest" or "grpc".
        key: The request's key.
        version: The version that the answer names; empty where there is none.
        mark: The mark of all its scores; 0 where they are not all of one version.
        wrong: Why there is no answer, or what is wrong in it; empty if nothing is.
    """

    due: float
    sent: float
    got: float
    replica: str
    protocol: str
    key: str
    version: str = ""
    mark: int = 0
    wrong: str = ""

    @property
    def is_failed(self) -> bool:
        """Whether the caller got nothing."""
        return not self.version

    @property
    def seconds(self) -> float:
        """From when it was due to its answer."""
        return self.got - self.due


def mark_of(scores: list[float]) -> tuple[int, str]:
    """The one mark of all scores, or 0 and what was found instead."""
    marks = marks_of(np.asarray(scores, np.float32))
    mark = int(marks[0, 0]) if len(marks) else 0
    for candidate in np.flatnonzero((marks != mark).any(axis=1))[:1]:
        found = ", ".join(f"{place} {value}" for place, value in zip(PLACES, marks[candidate], strict=True))
        return 0, f"candidate {candidate} has {found}, candidate 0 has {mark}"
    return mark, ""
