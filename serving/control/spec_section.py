"""One mapping of a YAML or JSON document, read key by key; an unknown key is an error that names the nearest one."""

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rankhouse.serving.errors import RolloutSpecError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")
_LONGEST_SHOWN = 60


def duration_seconds(value: object, *, place: str) -> float:
    """Reads a duration: `10m`, `1h30m`, `500ms`, or a number of seconds.

    Raises:
        RolloutSpecError: It is none, or not positive.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    elif isinstance(value, str) and _DURATION.fullmatch(value):
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    else:
        raise RolloutSpecError(f"{place} is {shown(value)}; a duration is like 30s, 10m, 1h30m or a number of seconds")
    if not (0 < seconds < math.inf):
        raise RolloutSpecError(f"{place} is {shown(value)}; a duration is more than 0")
    return seconds


def shown(value: object) -> str:
    """A value as messages show it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."


def one_of(value: object, choices: Sequence[str], *, place: str) -> str:
    """A word that is one of some.

    Raises:
        RolloutSpecError: It is another; names the nearest.
    """
    if not isinstance(value, str) or value not in choices:
        nearest = difflib.get_close_matches(str(value), choices, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"expected {' or '.join(choices)}"
        raise RolloutSpecError(f"{place} is {shown(value)}; {hint}")
    return value


class Section:
    """A mapping of the document, whose keys are known. Immutable; any thread may use it.

    Args:
        value: What stands in the document.
        place: Where that is, like `steps[1].analysis`; empty for the whole document.
        keys: The keys that it may have.

    Raises:
        RolloutSpecError: The value is no mapping, or has an unknown key.
    """

    def __init__(self, value: object, place: str, keys: Sequence[str]) -> None:
        self._place = place
        where = place or "the document"
        if not isinstance(value, Mapping):
            raise RolloutSpecError(f"{where} is {shown(value)}; expected keys and values: {', '.join(keys)}")
        self._values: Mapping[Any, Any] = value
        for key in value:
            if key not in keys:
                nearest = difflib.get_close_matches(str(key), keys, n=1)
                hint = f"did you mean {nearest[0]}?" if nearest else f"known are {', '.join(keys)}"
                raise RolloutSpecError(f"{where} has the unknown key {shown(key)}; {hint}")

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def place(self, key: str) -> str:
        """Where a key stands in the document."""
        return f"{self._place}.{key}" if self._place else key

    def raw(self, key: str) -> Any:
        """A key's value as it stands; None where it is missing."""
        return self._values.get(key)

    def number(self, key: str, default: float, *, low: float, high: float) -> float:
        """A number of [low, high]."""
        value = self._values.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not (low <= value <= high):
            raise RolloutSpecError(f"{self.place(key)} is {shown(value)}; expected a number from {low:g} to {high:g}")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        """A text that is not empty."""
        value = self._values.get(key, default)
        if not isinstance(value, str) or (not value and default is None):
            found = "missing" if value is None else shown(value)
            raise RolloutSpecError(f"{self.place(key)} is {found}; expected a text")
        return value

    def choice(self, key: str, default: str, choices: Sequence[str]) -> str:
        """One of some words."""
        return one_of(self._values.get(key, default), choices, place=self.place(key))

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self._values.get(key, default)
        if not isinstance(value, bool):
            raise RolloutSpecError(f"{self.place(key)} is {shown(value)}; expected true or false")
        return value

    def duration(self, key: str, default: float) -> float:
        """A duration, in seconds."""
        value = self._values.get(key)
        return default if value is None else duration_seconds(value, place=self.place(key))

    def items(self, key: str) -> list[Any]:
        """A list; empty where the key is missing."""
        value = self._values.get(key)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            raise RolloutSpecError(f"{self.place(key)} is {shown(value)}; expected a list")
        return list(value)
