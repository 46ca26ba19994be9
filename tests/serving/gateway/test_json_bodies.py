import pytest

from rankhouse.serving.gateway.json_bodies import invalid_field


@pytest.mark.parametrize(
    ("message", "place", "said"),
    [
        ("Expected `int`, got `str` - at `$.top_k`", "top_k", "expected int, got str"),
        ("Object missing required field `key` - at `$[...].a`", ".a.key", "is missing; expected a key"),
        ("Object contains unknown field `kye`", "kye", "is not a field of a body; did you mean 'key'?"),
        ("Object contains unknown field `zzz`", "zzz", "is not a field of a body; known are key, top_k"),
    ],
)
def test_messages_name_the_field_and_what_was_expected(message: str, place: str, said: str) -> None:
    error = invalid_field(message, ["top_k", "key"], whole="a body", expected={"key": "a key"})
    assert place in str(error)
    assert said in str(error)
