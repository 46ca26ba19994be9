"""Which version was allowed to answer whom and when, by nothing but the history that the state store keeps.

An era is what lies between two events that change routing. Its first moment is the event's, which is not later than the
commit; when a replica takes it over is the replica's business, but no replica goes back to an earlier era, and after a
bound none may still be in it.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.support.rollout.answers import Answer
from rankhouse.serving.control.assignment import bucket_of, buckets_of_percent
from rankhouse.serving.control.model_state import Event

_WEIGHT = re.compile(r"([0-9.]+) %")
_MOST_LINES = 20


@dataclass(frozen=True)
class Era:
    """What holds from one event to the next.

    Attributes:
        since: When it began, in unix seconds.
        event: The number of the event that began it.
        stable: The stable version; empty before the first.
        candidate: The version that is rolled out; empty if none is.
        weight: Its percent of the buckets.
        salt: What keys are hashed with.
        earlier: Earlier stable versions, newest first.
    """

    since: float
    event: int
    stable: str = ""
    candidate: str = ""
    weight: float = 0.0
    salt: str = ""
    earlier: tuple[str, ...] = ()

    def version_of(self, key: str) -> str:
        """Who answers a key."""
        if self.candidate and bucket_of(self.salt, key) < buckets_of_percent(self.weight):
            return self.candidate
        return self.stable


@dataclass(frozen=True)
class Window:
    """A time in which something was broken.

    Attributes:
        begin: When, in unix seconds.
        end: When all was well again.
        replica: Of which gateway; empty: of all.
        may_fail: Requests may be left without an answer.
        may_fall_back: Stable may stand in for a candidate that is not loaded, and an earlier stable version for it.
        may_lag: Replicas may stay in the era that they knew at the beginning.
    """

    begin: float
    end: float
    replica: str = ""
    may_fail: bool = False
    may_fall_back: bool = False
    may_lag: bool = False

    def holds(self, answer: Answer) -> bool:
        """Whether a request was under way in it."""
        return answer.sent <= self.end and answer.got >= self.begin and self.replica in ("", answer.replica)


@dataclass
class Findings:
    """What was found.

    Attributes:
        num_answers: How many requests got one.
        num_failed: How many got none, at times when they might.
        num_fallbacks: Answers by a version that stood in.
        num_by_version: Answers by version.
        most_lag_seconds: The longest time after an event that an answer was still of before it.
        wrong: A line for each answer that no version may have given then, and each failure at another time.
    """

    num_answers: int = 0
    num_failed: int = 0
    num_fallbacks: int = 0
    num_by_version: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    most_lag_seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


def eras_of(history: Iterable[Event]) -> list[Era]:
    """The eras of one model's history.

    Args:
        history: Oldest first, from the first event on; one rollout at a time, with one candidate.
    """
    eras = [Era(0.0, 0)]
    for event in history:
        now = replace(eras[-1], since=event.at, event=event.number)
        version = event.version or ""
        if event.kind == "started":
            # A salt without a rollout leads nobody anywhere; it counts from the first step on.
            eras[-1] = replace(eras[-1], salt=f"{event.model}/{event.rollout}")
            continue
        if event.kind in ("stepped", "weighted"):
            found = _WEIGHT.search(event.after)
            assert found is not None, f"event {event.number} tells no weight: {event.after!r}"
            now = replace(now, candidate=version, weight=float(found[1]))
        elif event.kind in ("admitted", "promoted", "reverted"):
            earlier = tuple(name for name in (now.stable, *now.earlier) if name and name != version)
            now = replace(now, stable=version, candidate="", weight=0.0, earlier=earlier)
        elif event.kind == "rolled_back":
            now = replace(now, candidate="", weight=0.0)
        else:
            continue
        eras.append(now)
    return eras


def check(
    answers: Sequence[Answer],
    history: Iterable[Event],
    *,
    windows: Sequence[Window] = (),
    most_lag_seconds: float = 10.0,
) -> Findings:
    """Holds every answer against the history.

    Args:
        answers: What callers got.
        history: See `eras_of`.
        windows: When what was broken.
        most_lag_seconds: How long after an event a replica may still answer by what was before it.
    """
    eras, findings = eras_of(history), Findings()
    for replica in sorted({each.replica for each in answers}):
        own = sorted((each for each in answers if each.replica == replica), key=lambda each: each.sent)
        _Replay(eras, windows, most_lag_seconds, findings).run(own)
    return findings


class _Replay:
    """The answers of one replica, in the order in which they were sent."""

    def __init__(self, eras: list[Era], windows: Sequence[Window], bound: float, findings: Findings) -> None:
        self._eras, self._windows, self._bound, self._findings = eras, windows, bound, findings
        # Eras that answers showed, by when those answers were there: what is sent later is of no earlier one.
        self._shown: list[tuple[float, int]] = []
        self._least = 0

    def run(self, answers: Sequence[Answer]) -> None:
        for answer in answers:
            self._forget_before(answer.sent)
            own = [window for window in self._windows if window.holds(answer)]
            if answer.is_failed:
                self._fail(answer, own)
            else:
                self._check(answer, own)

    def _forget_before(self, sent: float) -> None:
        self._least = max([self._least, *(era for got, era in self._shown if got <= sent)])
        self._shown = [(got, era) for got, era in self._shown if got > sent and era > self._least]

    def _fail(self, answer: Answer, windows: Sequence[Window]) -> None:
        if any(window.may_fail for window in windows):
            self._findings.num_failed += 1
        else:
            self._say(answer, f"failed: {answer.wrong}")

    def _check(self, answer: Answer, windows: Sequence[Window]) -> None:
        findings = self._findings
        findings.num_answers += 1
        findings.num_by_version[answer.version] += 1
        possible = [number for number in range(self._least, len(self._eras)) if self._may_hold(number, answer, windows)]
        for number in possible:
            if self._eras[number].version_of(answer.key) == answer.version:
                self._shown.append((answer.got, number))
                if number + 1 < len(self._eras) and not any(window.may_lag for window in windows):
                    lag = answer.sent - self._eras[number + 1].since
                    findings.most_lag_seconds = max(findings.most_lag_seconds, lag)
                return
        standing_in = {name for era in possible for name in (self._eras[era].stable, *self._eras[era].earlier)}
        if any(window.may_fall_back for window in windows) and answer.version in standing_in:
            findings.num_fallbacks += 1
            return
        expected = sorted({self._eras[number].version_of(answer.key) for number in possible})
        self._say(answer, f"was answered by {answer.version}, allowed was {' or '.join(expected) or 'nothing'}")

    def _may_hold(self, number: int, answer: Answer, windows: Sequence[Window]) -> bool:
        if self._eras[number].since > answer.got:
            return False
        if number + 1 == len(self._eras):
            return True
        end = self._eras[number + 1].since
        lagging = [window.end for window in windows if window.may_lag and end >= window.begin]
        return max([end, *lagging]) + self._bound >= answer.sent

    def _say(self, answer: Answer, what: str) -> None:
        wrong = self._findings.wrong
        if len(wrong) < _MOST_LINES:
            wrong.append(
                f"{answer.sent:.3f} to {answer.got:.3f}: {answer.key} over {answer.protocol} at {answer.replica} {what}"
            )
