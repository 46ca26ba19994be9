"""What refreshes took, as tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from benchmarks.support.sheet import Sheet

Seconds = Sequence[float] | npt.NDArray[np.float64]

MOST_P99_RATIO, MOST_BACK_MS = 1.25, 100.0


@dataclass(frozen=True)
class Refresh:
    """One refresh under load.

    Attributes:
        through: The engine or Triton.
        share: Of the rows that the new version changes.
        at_rest: Seconds of requests while nothing is opened, or closed.
        during: Seconds of those that were under way between the begin of the opening and the end of the closing.
        open_seconds: Until the new version could be switched to.
        close_seconds: From the switch until the old one was closed.
        back_seconds: A switch to the version before, still open, until its first answer.
        back_closed_seconds: The same with opening it first.
        num_failed: Requests without an answer.
    """

    through: str
    share: float
    at_rest: Seconds
    during: Seconds
    open_seconds: float
    close_seconds: float
    back_seconds: float
    back_closed_seconds: float
    num_failed: int


def refresh_sheets(refreshes: Sequence[Refresh]) -> list[Sheet]:
    """Returns a line for each way and share, over all rounds together, and how they compare with the aims."""
    lines, aims = [], []
    for through, share in dict.fromkeys((each.through, each.share) for each in refreshes):
        chosen = [each for each in refreshes if (each.through, each.share) == (through, share)]
        rest, during = (
            np.percentile(np.concatenate([getattr(each, name) for each in chosen]), [50, 99]) * 1e3
            for name in ("at_rest", "during")
        )
        failed = sum(each.num_failed for each in chosen)
        opened, closed, back, back_closed = (
            median(getattr(each, f"{name}_seconds") for each in chosen) * 1e3
            for name in ("open", "close", "back", "back_closed")
        )
        lines.append(
            [
                *(through, f"{share:.0%}", f"{sum(len(each.during) for each in chosen):,}"),
                *(f"{rest[0]:.2f}", f"{rest[1]:.2f}", f"{during[0]:.2f}", f"{during[1]:.2f}"),
                *(f"{during[1] / rest[1]:.2f}x", f"{opened:,.1f}", f"{closed:,.1f}", f"{back:.2f}"),
                *(f"{back_closed:,.1f}", str(failed)),
            ]
        )
        is_met = during[1] / rest[1] < MOST_P99_RATIO, back < MOST_BACK_MS, failed == 0
        aims.append([through, f"{share:.0%}", *("met" if each else "missed" for each in is_met)])
    heads = (
        *("through", "delta", "requests during", "p50 at rest", "p99 at rest", "p50 during", "p99 during", "p99 ratio"),
        *("open ms", "close ms", "back ms", "back, closed ms", "failed"),
    )
    aim_heads = ("through", "delta", f"p99 under {MOST_P99_RATIO}x", f"back under {MOST_BACK_MS:g} ms", "none failed")
    return [Sheet("Refresh under load, milliseconds", heads, lines), Sheet("Aims", aim_heads, aims)]
