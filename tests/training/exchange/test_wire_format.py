import math
from typing import Any

import pytest

from rankhouse.training.errors import WireError
from rankhouse.training.exchange.wire_format import WireDtypes, WireFormat, row_bytes, table_formats


@pytest.mark.parametrize(("dtype", "expected"), [("float32", 64), ("bfloat16", 32), ("float16", 32), ("int8", 24)])
def test_bytes_of_a_row(dtype: Any, expected: int) -> None:
    assert row_bytes(dtype, 16) == expected


def test_nothing_is_rounded_unless_asked() -> None:
    assert (WireFormat().forward, WireFormat().backward) == ("float32", "float32")
    assert WireFormat(gradient_scale=2.0**-20, max_relative_error=math.inf).gradient_scale == 2.0**-20


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"forward": "int4"}, "forward is 'int4'; expected one of float32, bfloat16, float16, int8"),
        ({"backward": "half"}, "backward is 'half'; expected one of"),
        ({"gradient_scale": 3.0}, "gradient_scale is 3.0; expected a power of two"),
        ({"gradient_scale": 0.0}, "gradient_scale is 0.0"),
        ({"gradient_scale": math.inf}, "gradient_scale is inf"),
        ({"max_relative_error": -0.1}, "max_relative_error is -0.1; expected a number of at least 0"),
        ({"max_relative_error": math.nan}, "max_relative_error is nan"),
        ({"measure_every": 0}, "measure_every is 0; expected at least 1 exchange"),
    ],
)
def test_refuses_what_is_no_format(values: dict[str, Any], message: str) -> None:
    with pytest.raises(WireError, match=message):
        WireFormat(**values)


def test_tables_have_one_format_or_each_its_own() -> None:
    half, scaled = WireFormat(forward="float16"), WireFormat(backward="int8", gradient_scale=8.0)
    assert table_formats(None, ["a", "b"]) == {"a": WireFormat(), "b": WireFormat()}
    assert table_formats(half, ["a", "b"]) == {"a": half, "b": half}
    assert table_formats({"b": scaled}, ["a", "b"]) == {"a": WireFormat(gradient_scale=8.0), "b": scaled}
    assert table_formats({}, ["a"]) == {"a": WireFormat()}


def test_a_plan_says_how_rows_travel_where_nobody_else_does() -> None:
    planned, scaled = {"a": WireDtypes("bfloat16", "int8")}, WireFormat(backward="int8", gradient_scale=8.0)
    of_plan = WireFormat(forward="bfloat16", backward="int8")
    assert table_formats(None, ["a", "b"], planned=planned) == {"a": of_plan, "b": WireFormat()}
    assert table_formats(WireFormat(), ["a"], planned=planned) == {"a": WireFormat()}
    assert table_formats({"a": scaled}, ["a"], planned=planned) == {"a": scaled}
    assert table_formats({"b": scaled}, ["a", "b"], planned=planned) == {
        "a": WireFormat(forward="bfloat16", backward="int8", gradient_scale=8.0),
        "b": scaled,
    }


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        ({"usr": WireFormat()}, "for the table 'usr', which there is not; did you mean 'user'"),
        ({"zzz": WireFormat()}, "there are user, item"),
        (
            {"user": WireFormat(gradient_scale=2.0), "item": WireFormat()},
            "the formats of tables differ in gradient_scale, max_relative_error or measure_every",
        ),
    ],
)
def test_refuses_formats_that_do_not_go_together(wire: dict[str, WireFormat], message: str) -> None:
    with pytest.raises(WireError, match=message):
        table_formats(wire, ["user", "item"])
