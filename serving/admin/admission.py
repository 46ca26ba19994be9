"""Which new version is let in next: the newest that all replicas have, or one that most have waited for long enough.

Refresh agents load new versions before anybody is told to use them, and say so in their reports. When all living
replicas have one, letting it in changes nothing but what requests are answered by. A replica that does not come along
must not hold the others back for ever: after a while the version is let in without it, and the history names it.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rankhouse.serving.control.model_state import ModelState, ReplicaReport, number_of
from rankhouse.serving.control.transitions import why_not_admitted


@dataclass(frozen=True)
class Waiting:
    """A version that some replicas have, and since when it is waited for the others."""

    version: str
    since: float


@dataclass(frozen=True)
class Admission:
    """What is to be done: a version to let in now, with the reason; or one that is waited for."""

    version: str | None
    reason: str
    waiting: Waiting | None


def next_admission(
    state: ModelState,
    replicas: Sequence[ReplicaReport],
    waiting: Waiting | None,
    *,
    now: float,
    convergence_seconds: float,
) -> Admission:
    """Decides what is let in next.

    Args:
        state: The model's state.
        replicas: The living replicas; those that drain are not waited for.
        waiting: What was waited for when this was asked the last time.
        now: Unix seconds.
        convergence_seconds: How long the slower replicas are waited for.
    """
    living = [each for each in replicas if not each.is_draining]
    loaded = {version for each in living for version in each.loaded if not why_not_admitted(state, version)}
    everywhere = [version for version in loaded if all(version in each.loaded for each in living)]
    if everywhere:
        version = max(everywhere, key=_order)
        newer = {each for each in loaded if _order(each) > _order(version)}
        return Admission(version, f"{_count(len(living))} loaded it", _waiting(newer, waiting, now))
    waits = _waiting(loaded, waiting, now)
    if waits is None or now - waits.since < convergence_seconds:
        return Admission(None, "", waits)
    laggards = ", ".join(sorted(each.replica for each in living if waits.version not in each.loaded))
    return Admission(waits.version, f"after {now - waits.since:.0f} s without {laggards}, which did not load it", None)


def _waiting(versions: Collection[str], before: Waiting | None, now: float) -> Waiting | None:
    """What is waited for. The wait does not begin anew for each newer version, or a stream of them made it endless."""
    if not versions:
        return None
    return before if before is not None and before.version in versions else Waiting(max(versions, key=_order), now)


def _order(version: str) -> tuple[int, str]:
    return number_of(version), version


def _count(number: int) -> str:
    return "the one replica has" if number == 1 else f"all {number} replicas have"
