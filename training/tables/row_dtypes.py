"""What the rows of a table are held in while it trains. Needs neither TensorFlow nor NumPy: plans count bytes by it."""

from typing import Any, Literal, get_args

RowDtype = Literal["float32", "bfloat16", "float16"]

ROW_DTYPES: tuple[RowDtype, ...] = get_args(RowDtype)


def number_bytes(dtype: str) -> int:
    """Returns the bytes of a number of a row that is held so."""
    return 4 if dtype == "float32" else 2


def row_dtype_of(layer: Any) -> RowDtype:
    """Returns what the table of a Keras Embedding layer is held in: the dtype of its variables.

    Of Keras' mixed policies that is float32. So it is here, too, of a layer of float64, which no table has.
    """
    return next((dtype for dtype in ROW_DTYPES if dtype == layer.variable_dtype), "float32")
