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


def round_stochastically(rows: NDArray[np.float32], row_type: str, step: int) -> NDArray[Any]:
    """Rounds float32 rows [R, D] to float16 or bfloat16 as a step of an optimizer does; float32 stays.

    A value goes from its lower neighbour to the upper one (both of its sign) where the random bits of value and step,
    added to what lies between, reach it. What has no upper neighbour rounds to the nearest.
    """
    if row_type == "float32":
        return rows.copy()
    random = _random_bits(rows, step)
    nearest = quantize_rows(rows, row_type)
    if row_type == "bfloat16":
        bits = rows.view(np.uint32)
        up = (bits & 0xFFFF) + (random >> 16) >= 1 << 16
        between = np.abs(rows) < np.uint32(0x7F7F0000).view(np.float32)
        return np.where(between, (bits >> 16) + up, nearest).astype(np.uint16)
    between = np.abs(rows) < np.finfo(np.float16).max
    sizes = np.where(between, np.abs(rows), 0).astype(np.float64)
    num_bits = np.where(sizes < 2.0**-14, 21, 13)
    unit = 2.0 ** (np.maximum(np.frexp(sizes)[1] - 1, -14) - 10)
    whole, rest = np.divmod(sizes / unit, 1)
    up = np.floor(rest * 2.0**num_bits) + (random >> (32 - num_bits)) >= 2.0**num_bits
    rounded = np.copysign((whole + up) * unit, rows).astype(np.float16)
    return np.where(between, rounded, nearest)


def _random_bits(rows: NDArray[np.float32], step: int) -> NDArray[np.uint32]:
    """SplitMix64's finalizer of the step, its upper half; then lowbias32 of that and the value's bits."""
    seed = step & 2**64 - 1
    seed = (seed ^ seed >> 30) * 0xBF58476D1CE4E5B9 & 2**64 - 1
    seed = (seed ^ seed >> 27) * 0x94D049BB133111EB & 2**64 - 1
    seed = (seed ^ seed >> 31) >> 32
    bits: NDArray[np.uint32] = rows.view(np.uint32) ^ np.uint32(seed)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        bits = ((bits ^ bits >> shift) * np.uint32(factor)).astype(np.uint32)
    return bits


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
