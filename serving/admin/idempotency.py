"""Commands that are sent twice: a caller's `Idempotency-Key` gives the first answer again, for a day.

Commands find by themselves what is done already (commands.py), so this is for those that would do it once more: a
rollout that has ended meanwhile, a step to be skipped. An answer is written after the command, so when this replica
dies between the two, the command alone decides. Answers with keys in them are not kept.
"""

import hashlib

import msgspec

from rankhouse.serving.admin.keys import Caller
from rankhouse.serving.control.state_store import StateStore
from rankhouse.serving.errors import IdempotencyError, InvalidFieldError

HEADER = "Idempotency-Key"

_MAX_ANSWERS = 100
_SECONDS = 86_400.0
_LONGEST_KEY = 255


class _Answer(msgspec.Struct, frozen=True):
    """An answer that was given."""

    key: str
    command: str
    at: float
    content: bytes


class Answers:
    """The answers that callers may ask for again. Blocks; any thread may use it.

    Args:
        store: Keeps them, for all replicas.
        model: The model's name.
    """

    def __init__(self, store: StateStore, model: str) -> None:
        self._store = store
        self._name = f"idempotency/{model}"

    def recall(self, key: str, caller: Caller, command: bytes, now: float) -> bytes | None:
        """The answer to a command that was sent with this key before.

        Args:
            key: What the caller's header says.
            caller: Callers do not share keys.
            command: Method, path and body.
            now: Unix seconds.

        Raises:
            InvalidFieldError: That is no key.
            IdempotencyError: It came with another command.
        """
        if not (0 < len(key) <= _LONGEST_KEY and key.isascii() and key.isprintable()):
            raise InvalidFieldError(f"is {key[:40]!r}; expected 1 to {_LONGEST_KEY} visible ASCII characters", HEADER)
        wanted = _digest(caller.name.encode(), key.encode())
        for answer in self._read(now):
            if answer.key == wanted:
                if answer.command != _digest(command):
                    raise IdempotencyError(f"{HEADER} {key!r} came with another command; choose a new one for each")
                return answer.content
        return None

    def remember(self, key: str, caller: Caller, command: bytes, content: bytes, now: float) -> None:
        """Keeps an answer; the oldest make way."""
        answer = _Answer(_digest(caller.name.encode(), key.encode()), _digest(command), now, content)
        kept = [*self._read(now), answer][-_MAX_ANSWERS:]
        self._store.put_value(self._name, msgspec.msgpack.encode(kept))

    def _read(self, now: float) -> list[_Answer]:
        content = self._store.get_value(self._name)
        answers = [] if content is None else msgspec.msgpack.decode(content, type=list[_Answer])
        return [answer for answer in answers if now - answer.at < _SECONDS]


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()
