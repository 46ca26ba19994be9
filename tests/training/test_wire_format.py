import math
from typing import Any

import pytest

from rankhouse.training.errors import WireError
from rankhouse.training.wire_format import WireFormat, row_bytes


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
