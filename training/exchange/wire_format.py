"""In which formats rows and their gradients travel between ranks. Pure: planning knows it, and needs no TensorFlow.

Bytes of a row of width D: float32 4 D, bfloat16 and float16 2 D, int8 D + 8 (a scale and an offset for each row, as
`rankhouse.kernels.rows` has them). Own rows are rounded as those of others are, although they do not travel: else a
result would depend on which rank a sample lies on.
"""

import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Literal

from rankhouse.training.errors import WireError

WireDtype = Literal["float32", "bfloat16", "float16", "int8"]

WIRE_DTYPES: tuple[WireDtype, ...] = typing.get_args(WireDtype)

# By how much rounding may move an element, at most, relative to the largest element of its row. float16 promises it
# from 2^-14 to 65504 only, int8 where a row's elements are not all within some 1e-6 of each other.
RELATIVE_ERRORS: dict[WireDtype, float] = {"float32": 0.0, "bfloat16": 2**-8, "float16": 2**-11, "int8": 1 / 255 + 1e-6}

# Two and a half times what int8 and bfloat16 may be off by where nothing is wrong.
MAX_RELATIVE_ERROR = 0.01


def row_bytes(dtype: WireDtype, width: int) -> int:
    """Returns the bytes of a row on the wire."""
    return {"float32": 4 * width, "bfloat16": 2 * width, "float16": 2 * width, "int8": width + 8}[dtype]


@dataclass(frozen=True)
class WireDtypes:
    """What a table's rows, and their gradients, travel in; the part of a WireFormat that a plan decides."""

    forward: WireDtype = "float32"
    backward: WireDtype = "float32"


@dataclass(frozen=True, kw_only=True)
class WireFormat:
    """How an exchange's rows travel.

    Attributes:
        forward: The format of rows.
        backward: The format of their gradients.
        gradient_scale: What gradients are multiplied with before they are rounded, and divided by afterwards: a power
            of two. A loss that is divided by the batch size has gradients so small that float16 loses them; the batch
            size brings them back.
        max_relative_error: The first step with anything to send measures by how much rounding moves an element,
            relative to the largest of its row; where that is more on any rank, all ranks send float32 from the start.
        measure_every: Exchanges between two measurements of the rounding.
    """

    forward: WireDtype = "float32"
    backward: WireDtype = "float32"
    gradient_scale: float = 1.0
    max_relative_error: float = MAX_RELATIVE_ERROR
    measure_every: int = 100

    def __post_init__(self) -> None:
        for name in ("forward", "backward"):
            dtype = getattr(self, name)
            if dtype not in WIRE_DTYPES:
                raise WireError(f"{name} is {dtype!r}; expected one of {', '.join(WIRE_DTYPES)}")
        scale = self.gradient_scale
        if not (math.isfinite(scale) and scale > 0 and math.frexp(scale)[0] == 0.5):
            raise WireError(f"gradient_scale is {scale}; expected a power of two, so that it rounds nothing itself")
        if not self.max_relative_error >= 0:
            raise WireError(
                f"max_relative_error is {self.max_relative_error}; expected a number of at least 0 (inf checks nothing)"
            )
        if self.measure_every < 1:
            raise WireError(f"measure_every is {self.measure_every}; expected at least 1 exchange")


FLOAT32 = WireFormat()


def table_formats(
    wire: WireFormat | Mapping[str, WireFormat] | None,
    tables: Sequence[str],
    *,
    planned: Mapping[str, WireDtypes] | None = None,
) -> dict[str, WireFormat]:
    """Returns how the rows of each table travel.

    Args:
        wire: The format of all tables, or of some by name; where it says nothing, the plan's word counts.
        tables: The tables' names.
        planned: What a plan says of some tables; those of which nobody says anything are float32.

    Raises:
        WireError: A name is no table's, or formats differ in more than `forward` and `backward`: the rows of all tables
            share one exchange, which is measured as a whole.
    """
    if isinstance(wire, WireFormat):
        return dict.fromkeys(tables, wire)
    wire = wire or {}
    for name in wire:
        if name not in tables:
            nearest = get_close_matches(name, tables, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(tables)}"
            raise WireError(f"wire has a format for the table {name!r}, which there is not; {hint}")
    plain = {replace(each, forward="float32", backward="float32") for each in wire.values()} or {FLOAT32}
    if len(plain) > 1:
        raise WireError(
            "the formats of tables differ in gradient_scale, max_relative_error or measure_every; give all the same"
        )
    (others,) = plain
    found = {name: with_dtypes(others, dtypes) for name, dtypes in (planned or {}).items()} | dict(wire)
    return {name: found.get(name, others) for name in tables}


def with_dtypes(wire: WireFormat, dtypes: WireDtypes) -> WireFormat:
    """Returns the format with other dtypes."""
    return replace(wire, forward=dtypes.forward, backward=dtypes.backward)
