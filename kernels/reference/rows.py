"""Conversions of rows in plain NumPy: what the compiled ones must equal, bit for bit. For tests.

The formats are those of `rankhouse.kernels.rows`.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def quantize_rows(rows: NDArray[np.float32], row_type: str) -> NDArray[Any]:
    """Converts float32 rows [R, D]; see `rankhouse.kernels.rows.quantize_rows`."""
    if row_type == "float16":
        with np.errstate(over="ignore"):
            return rows.astype(np.float16)
    if row_type == "bfloat16":
        return _bfloat16_bits(rows)
    return _int8_rows(rows) if row_type == "int8" else rows.copy()


def dequantize_rows(quantized: NDArray[Any]) -> NDArray[np.float32]:
    """Converts rows of any format into float32; see `rankhouse.kernels.rows.dequantize_rows`."""
    if quantized.dtype == np.uint16:
        return (quantized.astype(np.uint32) << 16).view(np.float32)
    if quantized.dtype != np.uint8:
        return quantized.astype(np.float32)
    scale, offset = np.split(np.ascontiguousarray(quantized[:, -8:]).view(np.float32), 2, axis=1)
    scaled: NDArray[np.float32] = quantized[:, :-8].astype(np.float32) * scale + offset
    return scaled


def _bfloat16_bits(rows: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The upper halves, rounded by what the lower halves are: above, below or at the middle."""
    bits = rows.view(np.uint32)
    upper, lower = bits >> 16, bits & 0xFFFF
    up = (lower > 0x8000) | ((lower == 0x8000) & (upper & 1 == 1))
    return np.where(np.isnan(rows), upper | 0x40, upper + up).astype(np.uint16)


def _int8_rows(rows: NDArray[np.float32]) -> NDArray[np.uint8]:
    """FBGEMM's FloatOrHalfToFused8BitRowwiseQuantizedSBFloatRef."""
    offset = rows.min(axis=1, keepdims=True) + np.float32(0)
    difference = rows.max(axis=1, keepdims=True) - offset
    inverse = np.float32(255) / (difference + np.float32(1e-8))
    quantized = np.rint((rows - offset) * inverse).astype(np.uint8)
    parameters = np.concatenate([difference / np.float32(255), offset], axis=1)
    return np.concatenate([quantized, parameters.view(np.uint8)], axis=1)
