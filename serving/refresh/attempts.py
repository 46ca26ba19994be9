"""What failed and may pass: when it is tried again."""

from dataclasses import dataclass

_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 60.0
# After so many failures the versions before it are looked at, while it waits for its next turn.
_PATIENCE = 3


@dataclass(frozen=True)
class Attempt:
    """A version's last failure.

    Attributes:
        reason: What went wrong.
        number: How often in a row, from 1.
        next_at: Not before this moment is it tried again; monotonic seconds.
        is_tritons: Triton gave no answer, so it is tried again as soon as Triton does.
    """

    reason: str
    number: int
    next_at: float
    is_tritons: bool = False


class Attempts:
    """Failures by version."""

    def __init__(self) -> None:
        self._last: dict[str, Attempt] = {}

    def failed(self, name: str, reason: str, *, now: float, is_tritons: bool = False) -> Attempt:
        """Takes note of a failure; each waits twice as long as the one before it."""
        number = self._last[name].number + 1 if name in self._last else 1
        wait = min(_FIRST_SECONDS * 2.0 ** (number - 1), _LONGEST_SECONDS)
        self._last[name] = Attempt(reason, number, now + wait, is_tritons)
        return self._last[name]

    def forget(self, name: str) -> None:
        """Forgets a version: it succeeded, or begins anew."""
        self._last.pop(name, None)

    def triton_is_back(self) -> None:
        """Has what Triton did not answer tried again at once."""
        for name in [name for name, attempt in self._last.items() if attempt.is_tritons]:
            del self._last[name]

    def is_due(self, name: str, *, now: float) -> bool:
        """Says whether a version may be tried."""
        return name not in self._last or self._last[name].next_at <= now

    def passed_over(self, *, now: float) -> frozenset[str]:
        """The versions that failed so often that others are tried while they wait."""
        return frozenset(
            name for name, attempt in self._last.items() if attempt.number >= _PATIENCE and attempt.next_at > now
        )

    def reasons(self) -> dict[str, str]:
        """What went wrong last, by version."""
        return {name: attempt.reason for name, attempt in self._last.items()}

    def numbers(self) -> dict[str, int]:
        """How often each was tried."""
        return {name: attempt.number for name, attempt in self._last.items()}

    def keep_only(self, names: frozenset[str]) -> None:
        """Forgets all others."""
        for gone in self._last.keys() - names:
            del self._last[gone]
