"""Tables of float16 and bfloat16 that are trained: they make the steps of float32 rows, and round stochastically."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rankhouse.kernels import arrays, optimizers
from rankhouse.kernels.bags import SparseGradient
from rankhouse.kernels.errors import ArgumentError, IdOutOfRangeError, KernelError
from rankhouse.kernels.optimizer_settings import Adagrad, Adam, Momentum, OptimizerSettings, Sgd
from rankhouse.kernels.optimizers import Slots, make_slots
from rankhouse.kernels.reference import lookup as reference_lookup
from rankhouse.kernels.reference import optimizers as reference
from rankhouse.kernels.reference.rows import round_stochastically
from rankhouse.kernels.rows import dequantize_rows, quantize_rows
from tests.kernels.batches import make_batch
from tests.kernels.training_steps import RULES, random_gradient, random_steps

pytestmark = pytest.mark.parametrize("row_type", ["float16", "bfloat16"])

Floats = NDArray[np.float32]


def random_rows(num_rows: int, dim: int, row_type: str) -> NDArray[Any]:
    return quantize_rows(np.random.default_rng(dim).standard_normal((num_rows, dim)).astype(np.float32), row_type)


def rounded(values: Floats, row_type: str, step: int) -> NDArray[Any]:
    """What the library rounds values to: a step of SGD with a learning rate of 1 subtracts gradients exactly from 0."""
    table = quantize_rows(np.zeros((1, values.size), np.float32), row_type)
    gradient = SparseGradient(np.zeros(1, np.int64), -values.reshape(1, -1))
    optimizers.apply(table, Slots(()), gradient, Sgd(), learning_rate=1.0, step=step)
    return table[0]


def unit_of(values: NDArray[Any], row_type: str) -> NDArray[np.float64]:
    """The distance between the two numbers of a type around each value."""
    digits, least = (10, -14) if row_type == "float16" else (7, -126)
    return 2.0 ** (np.maximum(np.frexp(np.abs(values).astype(np.float64))[1] - 1, least) - digits)


def copy_slots(slots: Slots) -> Slots:
    return Slots(
        tuple(array.copy() for array in slots.arrays), None if slots.last_steps is None else slots.last_steps.copy()
    )


def assert_same_slots(ours: Slots, theirs: Slots) -> None:
    for slot, expected in zip(ours.arrays, theirs.arrays, strict=True):
        np.testing.assert_array_equal(slot, expected)
    np.testing.assert_array_equal(ours.last_steps, theirs.last_steps)


def many_floats() -> Floats:
    """Every sign, exponent and 7 bits, with endings on, near and between the bits that decide."""
    rng = np.random.default_rng(0)
    endings = np.array([0, 1, 0x1000, 0x2000, 0x8000, 0xFFFF, *rng.integers(0, 2**16, 2)])
    bits = (np.arange(2**16, dtype=np.uint32)[:, None] << 16) | endings.astype(np.uint32)
    values = bits.ravel().view(np.float32)
    return np.where(values == 0, np.float32(0), values)  # 0 - (-0) is 0


@pytest.mark.parametrize("step", [1, 2**40])
def test_values_are_rounded_to_a_neighbour_as_the_reference_does(row_type: str, step: int) -> None:
    values = many_floats()
    ours = rounded(values, row_type, step)
    numbers = ~np.isnan(values)
    expected = round_stochastically(values[numbers], row_type, step)
    assert ours[numbers].tobytes() == expected.tobytes()
    back = dequantize_rows(ours[np.newaxis])[0]
    assert np.isnan(back[~numbers]).all()
    between = np.abs(values) < (65504 if row_type == "float16" else 2.0**128 - 2.0**120)
    error = np.abs(back[between].astype(np.float64) - values[between])
    assert (error < unit_of(values[between], row_type)).all()
    # Beyond the largest number they round to the nearest, and infinities stay.
    beyond = numbers & ~between
    assert ours[beyond].tobytes() == quantize_rows(values[beyond][np.newaxis], row_type)[0].tobytes()
    exact = dequantize_rows(quantize_rows(values[np.newaxis], row_type))[0] == values
    np.testing.assert_array_equal(back[exact], values[exact])


def sample_values(num_values: int, row_type: str) -> Floats:
    """Of all sizes that a type has, also those below its normal numbers (float16: from 2^-24 on)."""
    rng = np.random.default_rng(3)
    exponents = rng.uniform(-23, 15, num_values) if row_type == "float16" else rng.uniform(-100, 100, num_values)
    return (rng.choice([-1, 1], num_values) * 2.0**exponents).astype(np.float32)


def test_rounding_has_no_bias_over_steps(row_type: str) -> None:
    """Hoeffding: a mean of n errors within a width of 1 unit is off by t with less than 2 exp(-2 n t^2)."""
    num_steps, num_values = 1000, 500
    values = sample_values(num_values, row_type)
    unit = unit_of(values, row_type)
    sums = np.zeros(num_values)
    for step in range(1, num_steps + 1):
        back = dequantize_rows(rounded(values, row_type, step)[np.newaxis])[0].astype(np.float64)
        sums += (back - values) / unit
    worst = np.sqrt(np.log(2 * num_values / 1e-9) / (2 * num_steps))
    assert np.abs(sums / num_steps).max() < worst
    assert abs(sums.mean() / num_steps) < np.sqrt(np.log(2 / 1e-9) / (2 * num_steps * num_values))


def test_rounding_has_no_bias_over_the_values_of_a_step(row_type: str) -> None:
    """Also for values that lie equally far between their neighbours: the bits do not know it."""
    values = sample_values(200_000, row_type)
    unit = unit_of(values, row_type)
    lots = (np.abs(values) / unit % 1 * 16).astype(np.int64)
    for step in (1, 2, 3, 1_000_000):
        back = dequantize_rows(rounded(values, row_type, step)[np.newaxis])[0].astype(np.float64)
        errors = (np.abs(back) - np.abs(values.astype(np.float64))) / unit
        sizes = np.bincount(lots, minlength=16)
        means = np.bincount(lots, errors, minlength=16) / sizes
        assert (np.abs(means) < np.sqrt(np.log(2 * 16 / 1e-9) / (2 * sizes))).all()


def test_moves_far_below_a_unit_add_up(row_type: str) -> None:
    """Rounded to the nearest, no row would ever move. The bound is six standard deviations of the mean of all rows."""
    num_steps, num_values = 600, 4000
    rng = np.random.default_rng(1)
    start = quantize_rows(rng.uniform(1.2, 1.8, (1, num_values)).astype(np.float32), row_type)
    table, unit = start.copy(), float(unit_of(np.ones(1), row_type)[0])
    # Not equal, or rows of equal values would move together.
    moves = (unit / 50 * rng.uniform(0.5, 1.5, (1, num_values))).astype(np.float32)
    gradient = SparseGradient(np.zeros(1, np.int64), moves)
    for step in range(1, num_steps + 1):
        optimizers.apply(table, Slots(()), gradient, Sgd(), learning_rate=1.0, step=step)
    moved = dequantize_rows(start).astype(np.float64) - dequantize_rows(table)
    assert abs((moved - num_steps * moves).mean()) < 6 * unit * np.sqrt(num_steps / 50 / num_values)


ALL_RULES = {
    **RULES,
    **{
        f"{name}, {'decoupled' if decoupled else 'L2'} decay": type(RULES[name])(
            **(vars(RULES[name]) | {"weight_decay": 0.1, "decoupled": decoupled})
        )
        for name in ("sgd", "row-wise adagrad", "adagrad")
        for decoupled in (False, True)
    },
}


def step_of_float32_rows(
    table: NDArray[Any], slots: Slots, gradient: SparseGradient, chosen: OptimizerSettings, row_type: str, step: int
) -> None:
    """What a step of narrow rows is defined as, by those of float32 rows."""
    given: dict[str, Any] = {"learning_rate": 0.1, "step": step}
    wide = dequantize_rows(table)
    if chosen.is_exact:
        optimizers.catch_up(wide, slots, chosen, ids=gradient.ids, learning_rate=0.1, step=step - 1)
        wide = dequantize_rows(round_stochastically(wide, row_type, step - 1))
    optimizers.apply(wide, slots, gradient, chosen, **given, gradient_scale=0.5)
    table[:] = round_stochastically(wide, row_type, step)


# 300 columns are more than are rounded at once.
@pytest.mark.parametrize("dim", [1, 3, 16, 128, 300])
@pytest.mark.parametrize("rule", ALL_RULES)
def test_a_step_is_that_of_float32_rows_rounded(rule: str, dim: int, row_type: str) -> None:
    chosen, rng = ALL_RULES[rule], np.random.default_rng(5)
    ours = (random_rows(9, dim, row_type), make_slots(chosen, 9, dim))
    theirs = (ours[0].copy(), copy_slots(ours[1]))
    for step, ids in ((1, [0, 8]), (2, [0, 3, 4]), (3, []), (9, [0, 1, 5, 7, 8])):
        rows = rng.standard_normal((len(ids), dim)).astype(np.float32)
        gradient = SparseGradient(np.array(ids, np.int64), rows)
        optimizers.apply(*ours, gradient, chosen, learning_rate=0.1, step=step, gradient_scale=0.5)
        step_of_float32_rows(*theirs, gradient, chosen, row_type, step)
        assert ours[0].tobytes() == theirs[0].tobytes()
        assert_same_slots(ours[1], theirs[1])
    optimizers.catch_up(*ours, chosen, learning_rate=0.1, step=12)
    wide = dequantize_rows(theirs[0])
    optimizers.catch_up(wide, theirs[1], chosen, learning_rate=0.1, step=12)
    assert ours[0].tobytes() == round_stochastically(wide, row_type, 12).tobytes()


@pytest.mark.parametrize("dim", [3, 128])
@pytest.mark.parametrize("rule", RULES)
def test_a_step_is_its_definition_to_a_unit(rule: str, dim: int, row_type: str) -> None:
    """The definition's float32 values differ in their last bits, and so may the side to which they are rounded."""
    chosen, rng = RULES[rule], np.random.default_rng(6)
    ours = (random_rows(7, dim, row_type), make_slots(chosen, 7, dim))
    for step in range(1, 5):
        theirs = (ours[0].copy(), copy_slots(ours[1]))
        gradient = random_gradient(rng, 7, dim, 4)
        given: dict[str, Any] = {"learning_rate": 0.1 / step, "step": step, "gradient_scale": 0.5}
        optimizers.apply(*ours, gradient, chosen, **given)
        reference.apply(*theirs, gradient, chosen, **given)
        one, other = (dequantize_rows(state[0]).astype(np.float64) for state in (ours, theirs))
        sizes = np.maximum(np.abs(one), np.abs(other))
        # The exact kinds round what they make up for, too, which may be larger than what the step makes of it.
        units = 2 * unit_of(sizes.max(), row_type) if chosen.is_exact else unit_of(sizes, row_type)
        assert (np.abs(one - other) <= units).all()
        for slot, expected in zip(ours[1].arrays, theirs[1].arrays, strict=True):
            largest = np.max(np.abs(expected), initial=1.0)
            np.testing.assert_allclose(slot, expected, rtol=1e-2 if chosen.is_exact else 3e-5, atol=3e-6 * largest)


def test_nothing_of_nothing(row_type: str) -> None:
    table = random_rows(4, 3, row_type)
    before = table.tobytes()
    empty = SparseGradient(np.zeros(0, np.int64), np.zeros((0, 3), np.float32))
    for chosen in (Sgd(), Adagrad(), Adam(kind="exact"), Momentum(kind="dense")):
        slots = make_slots(chosen, 4, 3)
        optimizers.apply(table, slots, empty, chosen, learning_rate=0.1, step=1)
        optimizers.apply(table[:0], make_slots(chosen, 0, 3), empty, chosen, learning_rate=0.1, step=1)
    assert table.tobytes() == before


@pytest.mark.parametrize("rule", ["sgd", "row-wise adagrad", "adam", "dense momentum", "exact adam"])
def test_threads_change_no_bit(rule: str, row_type: str) -> None:
    results = []
    for num_threads in (1, 2, 7):
        table, slots = random_rows(40_000, 17, row_type), make_slots(RULES[rule], 40_000, 17)
        rng = np.random.default_rng(3)
        for step in (1, 7):
            gradient = random_gradient(rng, 40_000, 17, 15_000)
            given: dict[str, Any] = {"learning_rate": 0.1, "step": step, "num_threads": num_threads}
            optimizers.apply(table, slots, gradient, RULES[rule], **given)
        optimizers.catch_up(table, slots, RULES[rule], learning_rate=0.1, step=9, num_threads=num_threads)
        results.append([table.tobytes(), *(array.tobytes() for array in slots.arrays)])
    assert results[0] == results[1] == results[2]


@pytest.mark.parametrize("rule", RULES)
def test_the_fused_update_has_the_bits_of_the_two_steps(rule: str, row_type: str) -> None:
    chosen = RULES[rule]
    shapes = [(30, 16), (3, 5), (40, 128), (12, 300)]
    batch = make_batch(3, shapes=shapes, feature_tables=[0, 1, 2, 1, 3], batch_size=700)
    tables = [random_rows(*shape, row_type) for shape in shapes]
    apart, fused = ([(table.copy(), make_slots(chosen, *table.shape)) for table in tables] for _ in range(2))
    for step in (1, 2, 5):
        given: dict[str, Any] = {"learning_rate": 0.1, "step": step, "gradient_scale": 0.5}
        gradients = arrays.pooled_lookup_gradient(
            batch.grad, batch.ids, batch.offsets, tables_shape=shapes, **batch.lookup
        )
        for (table, slots), gradient in zip(apart, gradients, strict=True):
            optimizers.apply(table, slots, gradient, chosen, **given)
        optimizers.pooled_lookup_update(
            *zip(*fused, strict=True), [chosen] * 4, batch.grad, batch.ids, batch.offsets, **batch.lookup, **given
        )
    for (table, slots), (other, other_slots) in zip(apart, fused, strict=True):
        assert table.tobytes() == other.tobytes()
        assert_same_slots(slots, other_slots)


@pytest.mark.parametrize("rule", ["momentum", "adam"])
def test_the_exact_kind_differs_from_the_dense_one_by_unbiased_roundings(rule: str, row_type: str) -> None:
    """Moves do not depend on the rows, so both end at theirs, plus roundings: at most half a unit's deviation a step.

    The bounds are six standard deviations of one element, and of the mean of all.
    """
    exact, dense = ((Momentum if rule == "momentum" else Adam)(kind=kind) for kind in ("exact", "dense"))
    num_steps, shape = 60, (300, 7)
    wide = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    states = [(quantize_rows(wide, row_type), make_slots(exact, *shape))]
    states.append((states[0][0].copy(), make_slots(dense, *shape)))
    truth = (dequantize_rows(states[0][0]), make_slots(dense, *shape))
    for step, gradient in random_steps(4, num_steps=num_steps, num_rows=300, dim=7, most_ids=40):
        for state, kind in zip((*states, truth), (exact, dense, dense), strict=True):
            optimizers.apply(*state, gradient, kind, learning_rate=0.01, step=step)
    optimizers.catch_up(*states[0], exact, learning_rate=0.01, step=num_steps)
    unit = unit_of(np.abs(truth[0]).max(axis=None, keepdims=True), row_type).max()
    deviation = 0.5 * unit * np.sqrt(num_steps)
    for table, _ in states:
        error = dequantize_rows(table).astype(np.float64) - truth[0]
        assert np.abs(error).max() < 6 * deviation
        assert abs(error.mean()) < 6 * deviation / np.sqrt(error.size)


def test_the_gradient_of_weights_reads_narrow_rows(row_type: str) -> None:
    batch = make_batch(9, shapes=[(30, 16), (7, 5), (9, 300)], feature_tables=[0, 1, 0, 2], batch_size=20)
    tables = [quantize_rows(table, row_type) for table in batch.tables]
    wide = [dequantize_rows(table) for table in tables]
    weights = np.random.default_rng(2).uniform(0.5, 2, len(batch.ids)).astype(np.float32)
    given: dict[str, Any] = {"weights": weights, **batch.lookup}
    ours, same = (
        arrays.pooled_lookup_weight_gradient(batch.grad, some, batch.ids, batch.offsets, **given)
        for some in (tables, wide)
    )
    np.testing.assert_array_equal(ours, same)
    truth = reference_lookup.pooled_lookup_weight_gradient(batch.grad, tables, batch.ids, batch.offsets, **given)
    np.testing.assert_allclose(ours, truth, rtol=1e-4, atol=1e-4)
    tables[1] = quantize_rows(batch.tables[1], "int8")
    with pytest.raises(ArgumentError, match="table 1 has rows of row-wise int8: the gradient of weights takes"):
        arrays.pooled_lookup_weight_gradient(batch.grad, tables, batch.ids, batch.offsets, **given)


@pytest.mark.parametrize("rule", ["sgd", "row-wise adagrad", "dense adam", "exact momentum"])
@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([0, 2, 2], ArgumentError, "must increase, but 2 at position 2 follows 2"),
        ([0, 1, 5], IdOutOfRangeError, "id 5 at position 2 of the gradient is out of range: table 0 has 5 rows"),
        ([-(2**63), 1, 2], IdOutOfRangeError, "id -9223372036854775808 at position 0"),
    ],
)
def test_bad_ids_change_nothing(
    rule: str, ids: list[int], error: type[KernelError], message: str, row_type: str
) -> None:
    table, slots = random_rows(5, 2, row_type), make_slots(RULES[rule], 5, 2)
    before, slots_before = table.tobytes(), copy_slots(slots)
    gradient = SparseGradient(np.array(ids, np.int64), np.ones((3, 2), np.float32))
    with pytest.raises(error, match=message):
        optimizers.apply(table, slots, gradient, RULES[rule], learning_rate=1.0, step=1)
    assert table.tobytes() == before
    assert_same_slots(slots, slots_before)


def test_steps_that_do_not_count_are_refused(row_type: str) -> None:
    table, slots = random_rows(5, 2, row_type), make_slots(Adagrad(), 5, 2)
    before = table.tobytes()
    gradient = SparseGradient(np.array([1], np.int64), np.ones((1, 2), np.float32))
    with pytest.raises(ArgumentError, match="step is missing: rows that are not float32 are rounded by its number"):
        optimizers.apply(table, slots, gradient, Adagrad(), learning_rate=1.0)
    with pytest.raises(ArgumentError, match="has step 0: expected at least 1, because float16 and bfloat16 rows"):
        optimizers.apply(table, slots, gradient, Adagrad(), learning_rate=1.0, step=0)
    assert table.tobytes() == before


def test_int8_and_other_types_are_not_trained(row_type: str) -> None:
    gradient = SparseGradient(np.array([1], np.int64), np.ones((1, 2), np.float32))
    tables = [random_rows(5, 2, row_type), quantize_rows(np.ones((5, 2), np.float32), "int8")]
    grad, ids = np.ones((1, 4), np.float32), np.array([1, 1])
    message = "is uint8 of shape .5, 10.: expected float32, float16 or uint16 .* int8 rows are looked up only"
    with pytest.raises(ArgumentError, match=f"table {message}"):
        optimizers.apply(tables[1], Slots(()), gradient, Sgd(), learning_rate=1.0, step=1)
    with pytest.raises(ArgumentError, match=f"table 1 {message}"):
        optimizers.pooled_lookup_update(
            *(tables, [Slots(())] * 2, [Sgd()] * 2, grad, ids, np.array([0, 1, 2])),
            feature_tables=[0, 1],
            combiners=["sum", "sum"],
            learning_rate=1.0,
            step=1,
        )
    with pytest.raises(ArgumentError, match="table is float64"):
        optimizers.catch_up(np.ones((5, 2)), Slots(()), Sgd(), learning_rate=1.0, step=1)
