"""What is wrong with a JSON body, in our words: msgspec's messages name Python's types."""

import difflib
import re
from collections.abc import Collection, Mapping

from rankhouse.serving.errors import InvalidFieldError

_PLACE = re.compile(r"(?P<what>.*?)(?: - at `\$\.?(?P<path>.*)`)?", re.DOTALL)
_FIELD = re.compile(r"Object (?P<how>contains unknown|missing required) field `(?P<field>.*)`", re.DOTALL)
_LONGEST_NAME = 100
_NOTHING: Mapping[str, str] = {}


def invalid_field(
    message: str, known: Collection[str], *, whole: str, expected: Mapping[str, str] = _NOTHING
) -> InvalidFieldError:
    """Puts msgspec's message in our words: `Expected `int`, got `str` - at `$.top_k``.

    Args:
        message: The message.
        known: The fields that there are.
        whole: What they are fields of, such as "a request".
        expected: What a missing field should be, by its name.
    """
    place = _PLACE.fullmatch(message)
    assert place is not None
    path = (place["path"] or "").replace("[...]", "")
    field = _FIELD.fullmatch(place["what"])
    if field is None:
        return InvalidFieldError(place["what"].replace("`", "").lower(), path)
    name = field["field"][:_LONGEST_NAME]
    path = f"{path}.{name}" if path else name
    if field["how"].startswith("missing"):
        return InvalidFieldError(f"is missing; expected {expected.get(name, 'a value')}", path)
    nearest = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {nearest[0]!r}?" if nearest else f"known are {', '.join(sorted(known))}"
    return InvalidFieldError(f"is not a field of {whole}; {hint}", path)
