"""Row types: how the values of a table's rows lie in memory and in files.

The package's only importer of the kernels, whose formats these are: so a table that lies in a file is looked up from
the map as it is. An array's dtype says which type its rows are of; bfloat16 is held as uint16, a row of int8 as D + 8
bytes: the values, then float32 scale and offset (`kernels/include/rankhouse/rows.h`). In every type, a row of zero
bytes is a row of zeros.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.errors import ContentError
from rankhouse.kernels.errors import ArgumentError
from rankhouse.kernels.rows import dequantize_rows, quantize_rows


@dataclass(frozen=True)
class RowType:
    """A row type.

    Attributes:
        name: What manifests call it.
        code: What safetensors calls the dtype.
        dtype: The dtype of its arrays.
        extra: Elements of a row beside its D values.
        limit: The smallest absolute value that has no finite counterpart.
    """

    name: str
    code: str
    dtype: np.dtype[Any]
    extra: int = 0
    limit: float = np.inf

    def columns(self, dim: int) -> int:
        """The width of its arrays, for rows of D values."""
        return dim + self.extra

    def row_bytes(self, dim: int) -> int:
        """The bytes of a row of D values."""
        return self.columns(dim) * self.dtype.itemsize


ROW_TYPES = {
    row_type.name: row_type
    for row_type in (
        RowType("float32", "F32", np.dtype("<f4")),
        RowType("float16", "F16", np.dtype("<f2"), limit=65520.0),
        RowType("bfloat16", "BF16", np.dtype("<u2"), limit=2.0**128 - 2.0**119),
        RowType("int8", "U8", np.dtype("u1"), extra=8),
    )
}


def row_type_of(name: str) -> RowType:
    """Returns a row type by its name.

    Raises:
        ContentError: There is none of this name.
    """
    if name not in ROW_TYPES:
        raise ContentError(f"{name!r} is no row type; expected one of {', '.join(ROW_TYPES)}")
    return ROW_TYPES[name]


def encoded(
    blocks: Iterable[npt.NDArray[Any]], row_type: RowType, *, table: str, row_of: Callable[[int], int]
) -> Iterator[npt.NDArray[Any]]:
    """Converts blocks of rows.

    Args:
        blocks: float32 [n, D] each, or of the row type already, and so passed on as they are.
        row_type: The type to convert into.
        table: The table, for messages.
        row_of: Gives the table's row for a row's number in all blocks, for messages.

    Raises:
        ContentError: A value is not finite, or has no finite counterpart; the message names table and row.
    """
    begin = 0
    for block in blocks:
        convert = block.dtype == np.float32 and row_type.name != "float32"
        yield _encode(block, row_type, table, row_of, begin) if convert else block
        begin += len(block)


def _encode(
    rows: npt.NDArray[np.float32], row_type: RowType, table: str, row_of: Callable[[int], int], begin: int
) -> npt.NDArray[Any]:
    # Written so that a NaN is refused.
    if not (rows.max(initial=0) < row_type.limit and rows.min(initial=0) > -row_type.limit):
        first = int(np.argmin((np.abs(rows) < row_type.limit).all(axis=1)))
        raise ContentError(
            f"row {row_of(begin + first)} of table {table!r} holds a value that {row_type.name} cannot: its values are "
            f"{rows[first].min()} to {rows[first].max()}; use another row type, or train with a lower learning rate"
        )
    try:
        return quantize_rows(np.ascontiguousarray(rows), row_type.name)
    except ArgumentError as exc:
        raise ContentError(
            f"table {table!r}, rows from {row_of(begin)} on: cannot be stored as {row_type.name}: {exc}"
        ) from exc


def decode(rows: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Converts rows of any type into float32 [n, D], bit for bit as a lookup reads them."""
    return rows if rows.dtype == np.float32 else dequantize_rows(rows)
