import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rankhouse.kernels import library, rows
from rankhouse.kernels.errors import ArgumentError, OutOfMemoryError
from rankhouse.kernels.reference import rows as reference

ROW_TYPES = ["float32", "float16", "bfloat16", "int8"]
DIMS = [1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 64, 100, 128]


def random_rows(num_rows: int, dim: int, seed: int = 0) -> NDArray[np.float32]:
    """Rows of very different sizes, and some constant ones."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((num_rows, dim)) * 10.0 ** rng.integers(-6, 6, (num_rows, 1))
    values[::5] = values[::5, :1]
    return values.astype(np.float32)


def extreme_floats() -> NDArray[np.float32]:
    """Every float32 whose lower 12 bits are near a tie or an end: all exponents, denormals, infinities, NaNs."""
    upper = np.arange(2**20, dtype=np.uint32) << 12
    bits = (upper[:, None] | np.array([0, 1, 0x7FF, 0x800, 0xFFF], np.uint32)).ravel()
    return bits.view(np.float32)


def assert_same_bits(actual: NDArray[Any], expected: NDArray[Any]) -> None:
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes()


@pytest.mark.parametrize("row_type", ROW_TYPES)
@pytest.mark.parametrize("dim", DIMS)
def test_conversions_equal_the_reference(row_type: str, dim: int) -> None:
    values = random_rows(33, dim)
    quantized = rows.quantize_rows(values, row_type)
    assert_same_bits(quantized, reference.quantize_rows(values, row_type))
    assert_same_bits(rows.dequantize_rows(quantized), reference.dequantize_rows(quantized))


def test_float16_rounds_as_numpy_does() -> None:
    values = extreme_floats()
    halves = rows.quantize_rows(values[None, :], "float16")[0]
    expected = reference.quantize_rows(values, "float16")
    numbers = ~np.isnan(values)
    assert_same_bits(halves[numbers], expected[numbers])
    np.testing.assert_array_equal(np.isnan(halves), ~numbers)
    assert halves[values == np.float32(65519.996)].tolist() == [65504.0]
    assert np.isinf(halves[values == np.float32(65520)]).all()


def test_every_float16_comes_back() -> None:
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16)[None, :]
    floats = rows.dequantize_rows(halves)
    np.testing.assert_array_equal(floats, halves.astype(np.float32))
    numbers = ~np.isnan(halves)
    assert_same_bits(rows.quantize_rows(floats, "float16")[numbers], halves[numbers])


def test_bfloat16_rounds_to_the_nearest() -> None:
    values = extreme_floats()
    bits = rows.quantize_rows(values[None, :], "bfloat16")
    assert_same_bits(bits, reference.quantize_rows(values[None, :], "bfloat16"))
    back = rows.dequantize_rows(bits)[0]
    np.testing.assert_array_equal(np.isnan(back), np.isnan(values))
    # The largest numbers round to infinity, as in IEEE 754.
    largest = np.array([[np.finfo(np.float32).max, -np.inf]], np.float32)
    assert rows.dequantize_rows(rows.quantize_rows(largest, "bfloat16")).tolist() == [[np.inf, -np.inf]]


def test_int8_is_off_by_half_a_step() -> None:
    values = random_rows(500, 31)
    back = rows.dequantize_rows(rows.quantize_rows(values, "int8"))
    step = (values.max(axis=1) - values.min(axis=1)).astype(np.float64) / 255
    # Besides half a step: rounding of the result, and the 1e-8 in FBGEMM's formula.
    bound = 0.5 * step + 4e-7 * np.abs(values).max(axis=1) + 1e-8
    assert (np.abs(values.astype(np.float64) - back) <= bound[:, None]).all()


def test_int8_layout_is_that_of_fbgemm() -> None:
    quantized = rows.quantize_rows(np.array([[-1.0, 0.0, 1.0, 254.0]], np.float32), "int8")
    assert quantized[0, :4].tolist() == [0, 1, 2, 255]
    assert quantized[0, 4:].view(np.float32).tolist() == [1.0, -1.0]


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-45, -3.25, 3.4e38])
def test_constant_int8_rows_come_back_exactly(value: float) -> None:
    values = np.full((3, 7), value, np.float32)
    np.testing.assert_array_equal(rows.dequantize_rows(rows.quantize_rows(values, "int8")), values)


@pytest.mark.parametrize("value", [np.nan, -np.nan, np.inf, -np.inf])
def test_int8_names_what_is_not_finite(value: float) -> None:
    values = random_rows(20_000, 16)
    values[[15_000, 19_000], 11] = value
    with pytest.raises(ArgumentError, match=r"row 15000, column 11 is -?(nan|inf): row-wise int8 takes finite"):
        rows.quantize_rows(values, "int8")


def test_int8_names_a_difference_that_overflows() -> None:
    values = np.array([[1, 2], [3e38, -3e38]], np.float32)
    with pytest.raises(ArgumentError, match=r"row 1 runs from -3e\+38 \(column 1\) to 3e\+38 \(column 0\)"):
        rows.quantize_rows(values, "int8")


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_rows_may_lie_apart_and_the_gaps_stay(row_type: str) -> None:
    values = random_rows(9, 5)
    packed = rows.quantize_rows(values, row_type)
    wide = np.full((9, packed.shape[1] + 3), 77, packed.dtype)
    out = wide[:, 1:-2]
    assert rows.quantize_rows(values, row_type, out=out) is out
    assert_same_bits(np.ascontiguousarray(out), packed)
    assert (wide[:, 0] == 77).all()
    assert (wide[:, -2:] == 77).all()
    assert_same_bits(rows.dequantize_rows(out), rows.dequantize_rows(packed))


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_addresses_and_strides_may_be_odd(row_type: str) -> None:
    values = random_rows(9, 5)
    packed = rows.quantize_rows(values, row_type)
    row_bytes = packed.shape[1] * packed.itemsize
    stride = row_bytes + 1
    memory = np.zeros(9 * stride + 1, np.uint8)
    kernels, number = library.load(), library.ROW_TYPES[row_type]
    address = memory.ctypes.data + 1
    library.check(kernels.rh_quantize_rows(values.ctypes.data, 9, 5, number, stride, address, None))
    assert memory[1:].reshape(9, stride)[:, :-1].tobytes() == packed.tobytes()
    back = np.zeros_like(values)
    library.check(kernels.rh_dequantize_rows(address, 9, 5, number, stride, back.ctypes.data, None))
    assert_same_bits(back, rows.dequantize_rows(packed))


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_threads_change_no_bit(row_type: str) -> None:
    values = random_rows(50_001, 17)
    one, three = (rows.quantize_rows(values, row_type, num_threads=n) for n in (1, 3))
    assert_same_bits(one, three)
    assert_same_bits(rows.dequantize_rows(one, num_threads=1), rows.dequantize_rows(one, num_threads=3))


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_no_rows_are_no_work(row_type: str) -> None:
    quantized = rows.quantize_rows(np.zeros((0, 4), np.float32), row_type)
    assert len(quantized) == 0
    assert rows.dequantize_rows(quantized).shape == (0, 4)


def test_row_bytes() -> None:
    kernels = library.load()
    assert [kernels.rh_row_bytes(number, 5) for number in library.ROW_TYPES.values()] == [20, 10, 10, 13]
    wrong = [(4, 5), (-1, 5), (0, 0), (3, -9), (0, 2**31), (3, 2**63 - 1)]
    assert [kernels.rh_row_bytes(number, dim) for number, dim in wrong] == [0] * len(wrong)


@pytest.mark.parametrize(
    ("num_rows", "dim", "number", "stride", "message"),
    [
        (-1, 4, 0, 0, r"shape \[-1, 4\]: expected rows >= 0"),
        (1, 0, 0, 0, r"shape \[1, 0\]"),
        (1, 2**31, 0, 0, r"a width of 1 to 2\^31 - 1"),
        (1, 4, 4, 0, "row type 4: expected 0"),
        (1, 4, 3, 11, "stride is 11 bytes: expected 0 .packed. or at least the 12 bytes"),
        (1, 4, 0, -16, "stride is -16 bytes"),
        (1, 4, 0, 0, "rows or quantized is NULL, but there are 1 rows"),
    ],
)
def test_the_library_refuses_bad_arguments(num_rows: int, dim: int, number: int, stride: int, message: str) -> None:
    kernels = library.load()
    with pytest.raises(ArgumentError, match=message):
        library.check(kernels.rh_quantize_rows(None, num_rows, dim, number, stride, None, None))
    with pytest.raises(ArgumentError, match=message):
        library.check(kernels.rh_dequantize_rows(None, num_rows, dim, number, stride, None, None))


def test_python_refuses_what_is_not_rows() -> None:
    values = random_rows(4, 6)
    with pytest.raises(ArgumentError, match="rows is a list"):
        rows.quantize_rows([[1.0]], "int8")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"rows is float64 of shape \(4, 6\): expected float32"):
        rows.quantize_rows(values.astype(np.float64), "int8")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="rows is not contiguous"):
        rows.quantize_rows(values[:, ::2], "int8")
    with pytest.raises(ArgumentError, match=r"row type 'int4': expected one of \['bfloat16'"):
        rows.quantize_rows(values, "int4")
    with pytest.raises(ArgumentError, match=r"out has shape \(4, 13\): expected a writeable array of shape \(4, 14\)"):
        rows.quantize_rows(values, "int8", out=np.zeros((4, 13), np.uint8))
    with pytest.raises(ArgumentError, match="each row in one piece"):
        rows.quantize_rows(values, "float16", out=np.zeros((6, 4), np.float16).T)
    with pytest.raises(ArgumentError, match="rows of int64: expected one of float32"):
        rows.dequantize_rows(np.zeros((2, 2), np.int64))
    with pytest.raises(ArgumentError, match="quantized is uint8 of shape"):
        rows.dequantize_rows(np.zeros((2, 8), np.uint8))
    with pytest.raises(ArgumentError, match="one after the other"):
        rows.dequantize_rows(values[::-1])
    with pytest.raises(ArgumentError, match="num_threads is 0"):
        rows.dequantize_rows(values, num_threads=0)


def resident_kilobytes() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1])


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_allocated_rows_are_zeros_on_huge_pages(row_type: str) -> None:
    table = rows.allocate_rows(300, 40, row_type)
    assert rows.row_type_of(table) == row_type
    assert table.shape[0] == 300
    assert rows.dim_of(table) == 40
    assert table.flags.writeable
    assert not table.any()
    assert table.ctypes.data % 2**21 == 0
    values = random_rows(300, 40)
    assert_same_bits(rows.quantize_rows(values, row_type, out=table), rows.quantize_rows(values, row_type))


def test_allocated_rows_live_as_long_as_their_views() -> None:
    table = rows.allocate_rows(2**20, 16)
    table[:] = 1
    view = table[5:7, 3:]
    with_table = resident_kilobytes()
    del table
    gc.collect()
    assert view.sum() == 26
    del view
    gc.collect()
    assert resident_kilobytes() < with_table - 60_000  # of 65,536


def test_allocation_of_no_or_too_many_rows() -> None:
    assert rows.allocate_rows(0, 3, "int8").shape == (0, 11)
    for num_rows, dim in [(-1, 4), (4, 0)]:
        with pytest.raises(ArgumentError, match=rf"shape \[{num_rows}, {dim}\]"):
            rows.allocate_rows(num_rows, dim)
    with pytest.raises(OutOfMemoryError):
        rows.allocate_rows(2**55, 16)
    with pytest.raises(OutOfMemoryError, match="need 18446744073709551616 bytes"):
        rows.allocate_rows(2**58, 16)
