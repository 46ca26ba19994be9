"""The optimizers on NumPy arrays against their definitions in NumPy."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from rankhouse.kernels import optimizers
from rankhouse.kernels.bags import SparseGradient
from rankhouse.kernels.errors import ArgumentError, IdOutOfRangeError
from rankhouse.kernels.optimizer_settings import Adagrad, Adam, Ftrl, Momentum, OptimizerSettings, RowwiseAdagrad, Sgd
from rankhouse.kernels.optimizers import Slots, make_slots
from rankhouse.kernels.reference import optimizers as reference
from tests.kernels.batches import DIMS
from tests.kernels.training_steps import RULES, random_gradient, random_steps

SHAPES = [(10, 16, 4), (7, 5, 7), (3, 1, 0), (0, 4, 0), (500, 33, 250)]


def random_table(num_rows: int, dim: int) -> NDArray[np.float32]:
    return np.random.default_rng(num_rows + dim).standard_normal((num_rows, dim)).astype(np.float32)


def copy_slots(slots: Slots) -> Slots:
    return Slots(
        tuple(array.copy() for array in slots.arrays), None if slots.last_steps is None else slots.last_steps.copy()
    )


def assert_same(ours: tuple[Any, Slots], theirs: tuple[Any, Slots], *, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Arrays are equal to rtol of an element, or atol of the largest where that is above 1."""
    for array, expected in zip((ours[0], *ours[1].arrays), (theirs[0], *theirs[1].arrays), strict=True):
        largest = np.max(np.abs(expected), initial=1.0)
        np.testing.assert_allclose(array, expected, rtol=rtol, atol=atol * largest)
    if theirs[1].last_steps is not None:
        np.testing.assert_array_equal(ours[1].last_steps, theirs[1].last_steps)


@pytest.mark.parametrize(("num_rows", "dim", "num_ids"), [*SHAPES, *((9, dim, 5) for dim in DIMS)])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_equals_its_definition(rule: str, num_rows: int, dim: int, num_ids: int) -> None:
    rng = np.random.default_rng(5)
    chosen = RULES[rule]
    ours = (random_table(num_rows, dim), make_slots(chosen, num_rows, dim))
    theirs = (ours[0].copy(), copy_slots(ours[1]))
    for step in range(1, 5):
        gradient = random_gradient(rng, num_rows, dim, num_ids)
        given: dict[str, Any] = {"learning_rate": 0.1 / step, "step": step, "gradient_scale": 0.5}
        optimizers.apply(*ours, gradient, chosen, **given, learning_rates=np.full(5, 0.1, np.float32))
        reference.apply(*theirs, gradient, chosen, **given, learning_rates=np.full(5, 0.1, np.float32))
        assert_same(ours, theirs, rtol=3e-5, atol=3e-6)


# Widths without, of, and with whole blocks of 16 columns: they have code of their own.
@pytest.mark.parametrize("dim", [6, 16, 37])
@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_weights_decay_where_rows_are_touched(rule: str, decoupled: bool, dim: int) -> None:
    chosen = type(RULES[rule])(**(vars(RULES[rule]) | {"weight_decay": 0.1, "decoupled": decoupled}))
    ours = (random_table(40, dim), make_slots(chosen, 40, dim))
    theirs = (ours[0].copy(), copy_slots(ours[1]))
    for step, gradient in random_steps(1, num_steps=6, num_rows=40, dim=dim, most_ids=9):
        optimizers.apply(*ours, gradient, chosen, learning_rate=0.1, step=step)
        reference.apply(*theirs, gradient, chosen, learning_rate=0.1, step=step)
        assert_same(ours, theirs, rtol=3e-5, atol=3e-6)


LAZY = [name for name, chosen in RULES.items() if getattr(chosen, "kind", "lazy") != "dense"]


@pytest.mark.parametrize("rule", LAZY)
def test_no_other_row_is_touched(rule: str) -> None:
    table = random_table(12, 5)
    slots = make_slots(RULES[rule], 12, 5)
    before = (table.copy(), copy_slots(slots))
    gradient = random_gradient(np.random.default_rng(0), 12, 5, 6)
    optimizers.apply(table, slots, gradient, RULES[rule], learning_rate=0.1)
    others = np.setdiff1d(np.arange(12), gradient.ids)
    np.testing.assert_array_equal(table[others], before[0][others])
    for slot, old in zip(slots.arrays, before[1].arrays, strict=True):
        np.testing.assert_array_equal(slot[others], old[others])
    assert np.all(table[gradient.ids] != before[0][gradient.ids])


@pytest.mark.parametrize("rule", RULES)
def test_threads_change_no_bit(rule: str) -> None:
    results = []
    for num_threads in (1, 2, 7):
        state = (random_table(40_000, 17), make_slots(RULES[rule], 40_000, 17))
        rng = np.random.default_rng(3)
        for step in (1, 7):
            gradient = random_gradient(rng, 40_000, 17, 15_000)
            given: dict[str, Any] = {"learning_rate": 0.1, "step": step, "num_threads": num_threads}
            optimizers.apply(*state, gradient, RULES[rule], **given)
        optimizers.catch_up(*state, RULES[rule], learning_rate=0.1, step=9, num_threads=num_threads)
        results.append(state)
    for table, slots in results[1:]:
        np.testing.assert_array_equal(table, results[0][0])
        for slot, expected in zip(slots.arrays, results[0][1].arrays, strict=True):
            np.testing.assert_array_equal(slot, expected)


def schedule(step: int) -> float:
    """Grows from almost nothing, then falls, with a pause in which nothing is learnt."""
    return 0.0 if 40 <= step < 50 else 0.05 * min(1.0, step / 30) / max(1.0, step / 60)


EXACT: dict[str, Momentum | Adam] = {
    "momentum": Momentum(kind="exact"),
    "nesterov": Momentum(momentum=0.95, nesterov=True, kind="exact"),
    "no momentum": Momentum(momentum=0.0, kind="exact"),
    "adam": Adam(kind="exact"),
    "adam with a large epsilon": Adam(epsilon=0.1, kind="exact"),
    "adam with a short memory": Adam(beta_1=0.5, beta_2=0.6, kind="exact"),
    "adam with a long memory": Adam(beta_1=0.99, beta_2=0.9999, kind="exact"),
    "adam without a first moment": Adam(beta_1=0.0, beta_2=0.9, kind="exact"),
}


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("name", EXACT)
def test_the_exact_kind_equals_the_dense_one_at_every_lookup(name: str, scheduled: bool) -> None:
    exact = EXACT[name]
    dense = type(exact)(**(vars(exact) | {"kind": "dense"}))
    rates = np.array([schedule(step) if scheduled else 0.05 for step in range(1, 402)], np.float32)
    lazily = (random_table(60, 7), make_slots(exact, 60, 7))
    eagerly = (lazily[0].copy(), make_slots(dense, 60, 7))
    rng = np.random.default_rng(8)
    for step, gradient in random_steps(4, num_steps=400, num_rows=60, dim=7, most_ids=3):
        looked_up = np.union1d(gradient.ids, rng.integers(0, 60, 2))
        given: dict[str, Any] = {"learning_rates": rates} if scheduled else {}
        rate, last_rate = float(rates[step - 1]), float(rates[step - 2])
        if step > 1:
            optimizers.catch_up(*lazily, exact, ids=looked_up, learning_rate=last_rate, step=step - 1, **given)
            np.testing.assert_allclose(lazily[0][looked_up], eagerly[0][looked_up], rtol=1e-5, atol=1e-5)
        optimizers.apply(*lazily, gradient, exact, learning_rate=rate, step=step, **given)
        optimizers.apply(*eagerly, gradient, dense, learning_rate=rate, step=step)
    optimizers.catch_up(*lazily, exact, learning_rate=float(rates[399]), step=400, **given)
    assert_same(lazily, (eagerly[0], Slots(eagerly[1].arrays, np.full(60, 400, np.int32))), rtol=2e-5, atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    beta_1=st.floats(0, 0.98),
    beta_2=st.floats(0.05, 0.99995),
    epsilon=st.sampled_from([1e-8, 1e-4, 1.0]),
    size=st.sampled_from([1e-6, 1e-2, 1e3]),
    last_step=st.integers(1, 3000),
    num_missed=st.integers(0, 700),
)
def test_missed_steps_of_adam_equal_their_sum(
    beta_1: float, beta_2: float, epsilon: float, size: float, last_step: int, num_missed: int
) -> None:
    beta_1 = min(beta_1, float(np.sqrt(beta_2)) * 0.98)
    chosen = Adam(beta_1=beta_1, beta_2=beta_2, epsilon=epsilon, kind="exact")
    rng = np.random.default_rng(last_step)
    # The weights start at 0, so that no rounding of theirs hides how exact the moves are.
    table, slots = np.zeros((1, 5), np.float32), make_slots(chosen, 1, 5)
    slots.arrays[0][:] = size * rng.standard_normal(5)
    slots.arrays[1][:] = size**2 * 10.0 ** rng.uniform(-4, 1, 5)
    assert slots.last_steps is not None
    slots.last_steps[:] = last_step
    a, root = slots.arrays[0][0].astype(np.float64), np.sqrt(slots.arrays[1][0].astype(np.float64))
    first, second, rate = np.float64(np.float32(beta_1)), np.float64(np.float32(beta_2)), np.float64(np.float32(0.1))
    moved = np.zeros(5)
    for k in range(1, num_missed + 1):
        t = last_step + k
        lr = rate * np.sqrt(1 - second**t) / (1 - first**t)
        moved -= lr * first**k * a / (second ** (k / 2) * root + np.float64(np.float32(epsilon)))
    optimizers.catch_up(table, slots, chosen, learning_rate=0.1, step=last_step + num_missed)
    np.testing.assert_allclose(table[0], moved, rtol=4e-6, atol=1e-30)
    np.testing.assert_allclose(slots.arrays[0][0], a * first**num_missed, rtol=1e-6, atol=1e-37)


def test_before_the_first_step_no_row_is_behind() -> None:
    table, slots = random_table(5, 9), make_slots(Adam(kind="exact"), 5, 9)
    before = table.copy()
    optimizers.catch_up(table, slots, Adam(kind="exact"), learning_rate=0.1, step=0)
    np.testing.assert_array_equal(table, before)
    np.testing.assert_array_equal(slots.last_steps, np.zeros(5))
    with pytest.raises(ArgumentError, match="step -1: expected at least 0"):
        optimizers.catch_up(table, slots, Adam(kind="exact"), learning_rate=0.1, step=-1)


def test_rows_that_were_never_touched_stay() -> None:
    table, slots = random_table(5, 9), make_slots(Adam(kind="exact"), 5, 9)
    before = table.copy()
    optimizers.catch_up(table, slots, Adam(kind="exact"), learning_rate=0.1, step=1_000_000)
    np.testing.assert_array_equal(table, before)
    np.testing.assert_array_equal(slots.last_steps, np.full(5, 1_000_000))


@pytest.mark.parametrize("ids", [None, [], [1, 3]])
def test_catch_up_moves_the_named_rows(ids: list[int] | None) -> None:
    chosen = Momentum(kind="exact")
    table, slots = np.zeros((4, 2), np.float32), make_slots(chosen, 4, 2)
    slots.arrays[0][:] = 1
    given = None if ids is None else np.array(ids, np.int64)
    optimizers.catch_up(table, slots, chosen, ids=given, learning_rate=0.1, step=1)
    moved = range(4) if ids is None else ids
    np.testing.assert_allclose(table, [[0.9, 0.9] if row in moved else [0, 0] for row in range(4)], rtol=1e-6)
    assert slots.last_steps is not None
    assert slots.last_steps.tolist() == [int(row in moved) for row in range(4)]
    again = table.copy()
    optimizers.catch_up(table, slots, chosen, ids=given, learning_rate=0.1, step=1)
    np.testing.assert_array_equal(table, again)


@pytest.mark.parametrize("kind", ["lazy", "dense"])
def test_catch_up_does_nothing_for_other_kinds(kind: Any) -> None:
    table, slots = random_table(4, 2), make_slots(Momentum(kind=kind), 4, 2)
    slots.arrays[0][:] = 1
    before = table.copy()
    optimizers.catch_up(table, slots, Momentum(kind=kind), learning_rate=0.1, step=5)
    np.testing.assert_array_equal(table, before)


def test_rowwise_adagrad_is_fbgemms() -> None:
    """fbgemm_gpu's EXACT_ROWWISE_ADAGRAD: the mean of g^2 per row, and one multiplier for the row."""
    table, slots = random_table(6, 8), make_slots(RowwiseAdagrad(initial_accumulator_value=0, epsilon=1e-8), 6, 8)
    gradient = random_gradient(np.random.default_rng(1), 6, 8, 4)
    momentum1, weights = np.zeros(6), table.astype(np.float64)
    for _ in range(3):
        optimizers.apply(table, slots, gradient, RowwiseAdagrad(epsilon=1e-8), learning_rate=0.2)
        for row, g in zip(gradient.ids, gradient.rows.astype(np.float64), strict=True):
            momentum1[row] += (g**2).sum() / 8
            weights[row] -= 0.2 / (np.sqrt(momentum1[row]) + 1e-8) * g
    np.testing.assert_allclose(table, weights, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slots.arrays[0], momentum1, rtol=1e-6)


def test_mean_of_squares_has_the_order_that_is_written() -> None:
    """16 partial sums, added pairwise, in float32."""
    rng = np.random.default_rng(2)
    row = rng.standard_normal(37).astype(np.float32)
    sums = np.zeros(16, np.float32)
    for d, g in enumerate(row):
        sums[d % 16] += g * g
    for width in (8, 4, 2, 1):
        sums[:width] += sums[width : 2 * width]
    table, slots = np.zeros((1, 37), np.float32), make_slots(RowwiseAdagrad(initial_accumulator_value=0), 1, 37)
    gradient = SparseGradient(np.array([0]), row[np.newaxis])
    optimizers.apply(table, slots, gradient, RowwiseAdagrad(), learning_rate=1.0)
    assert slots.arrays[0][0] == sums[0] / np.float32(37)


@pytest.mark.parametrize("sizes", [[], [0], [5], [3, 0, 70_000]])
def test_squared_norm(sizes: list[int]) -> None:
    rng = np.random.default_rng(4)
    gradients = [random_gradient(rng, size, 7 if size < 100 else 3, size) for size in sizes]
    norms = [optimizers.squared_norm(gradients, num_threads=threads) for threads in (1, 2, 5, None)]
    assert norms[0] == pytest.approx(reference.squared_norm(gradients), rel=1e-13)
    assert len(set(norms)) == 1


def test_squared_norm_of_what_float32_cannot_hold() -> None:
    gradient = SparseGradient(np.array([0]), np.full((1, 2), 1e30, np.float32))
    assert optimizers.squared_norm([gradient]) == pytest.approx(2e60)
    gradient.rows[0, 0] = np.nan
    assert np.isnan(optimizers.squared_norm([gradient]))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    ("ids", "error", "message"),
    [
        ([0, 2, 2], ArgumentError, "must increase, but 2 at position 2 follows 2: combine duplicates first"),
        ([0, 2, 1], ArgumentError, "must increase, but 1 at position 2 follows 2"),
        ([0, 1, 5], IdOutOfRangeError, "id 5 at position 2 of the gradient is out of range: table 0 has 5 rows"),
        ([-1, 1, 2], IdOutOfRangeError, "id -1 at position 0"),
        ([-(2**63), 1, 2], IdOutOfRangeError, "id -9223372036854775808 at position 0"),
        ([0, 1, 2**63 - 1], IdOutOfRangeError, "id 9223372036854775807 at position 2"),
    ],
)
def test_bad_ids_change_nothing(rule: str, ids: list[int], error: type[Exception], message: str) -> None:
    table, slots = np.ones((5, 2), np.float32), make_slots(RULES[rule], 5, 2)
    before = copy_slots(slots)
    gradient = SparseGradient(np.array(ids, np.int64), np.ones((3, 2), np.float32))
    with pytest.raises(error, match=message):
        optimizers.apply(table, slots, gradient, RULES[rule], learning_rate=1.0)
    assert_same((table, slots), (np.ones((5, 2)), before), rtol=0, atol=0)


ONE_ROW = SparseGradient(np.array([1], np.int64), np.ones((1, 2), np.float32))


@pytest.mark.parametrize(
    ("chosen", "given", "message"),
    [
        (Sgd(), {"learning_rate": float("nan")}, "learning_rate nan: expected a number of at least 0"),
        (Sgd(), {"learning_rate": -1.0}, "learning_rate -1: expected a number of at least 0"),
        (Sgd(), {"learning_rate": float("inf")}, "learning_rate inf"),
        (Ftrl(), {"learning_rate": 0.0}, "learning_rate .by which FTRL divides. 0: expected a number above 0"),
        (Sgd(), {"gradient_scale": 0.0}, "gradient_scale is 0: expected another number"),
        (Sgd(), {"gradient_scale": float("inf")}, "gradient_scale inf: expected a finite number"),
        (Adam(), {"step": 0}, "step 0: expected at least 1 .the first step is 1."),
        (Momentum(kind="exact"), {"step": 0}, "step 0"),
        (Momentum(kind="exact"), {"step": 2**31}, "the exact kind counts to 2147483647"),
        (Adam(kind="exact"), {"step": 4, "learning_rates": np.ones(2, np.float32)}, "2 elements: step 4 needs 3"),
    ],
)
def test_bad_calls_are_refused_and_change_nothing(
    chosen: OptimizerSettings, given: dict[str, Any], message: str
) -> None:
    table, slots = np.ones((5, 2), np.float32), make_slots(chosen, 5, 2)
    before = copy_slots(slots)
    with pytest.raises(ArgumentError, match=message):
        optimizers.apply(table, slots, ONE_ROW, chosen, **({"learning_rate": 0.1} | given))
    assert_same((table, slots), (np.ones((5, 2)), before), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("rule", "given", "message"),
    [
        (Sgd, {"weight_decay": -0.1}, "weight_decay is -0.1"),
        (Sgd, {"weight_decay": float("nan")}, "weight_decay is nan"),
        (Momentum, {"momentum": 1.0}, "momentum is 1.0: expected a number of at least 0 and below 1"),
        (Momentum, {"kind": "eager"}, "kind is 'eager': expected one of 'lazy', 'dense', 'exact'"),
        (Adagrad, {"epsilon": -1e-7}, "epsilon is -1e-07"),
        (Adagrad, {"initial_accumulator_value": -1}, "initial_accumulator_value is -1"),
        (Adam, {"beta_1": 1.0}, "beta_1 is 1.0"),
        (Adam, {"beta_2": -0.1}, "beta_2 is -0.1"),
        (Adam, {"epsilon": 0.0, "kind": "dense"}, "epsilon is 0: the dense kind needs one above 0"),
        (Adam, {"beta_1": 0.9, "beta_2": 0.8, "kind": "exact"}, "the exact kind needs beta_1.2 < beta_2"),
        (Ftrl, {"learning_rate_power": 0.5}, "learning_rate_power is 0.5: expected a number of at most 0"),
        (Ftrl, {"l1_regularization_strength": -1.0}, "l1_regularization_strength is -1.0"),
        (Ftrl, {"beta": float("inf")}, "beta is inf"),
    ],
)
def test_bad_settings_are_refused(rule: type[OptimizerSettings], given: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        rule(**given)


@pytest.mark.parametrize(("last_step", "step"), [(3, 3), (4, 3), (-1, 3)])
def test_steps_go_forward(last_step: int, step: int) -> None:
    chosen = Momentum(kind="exact")
    table, slots = np.ones((5, 2), np.float32), make_slots(chosen, 5, 2)
    assert slots.last_steps is not None
    slots.last_steps[1] = last_step
    with pytest.raises(ArgumentError, match=f"row 1 of table 0 is at step {last_step}, and this is step 3"):
        optimizers.apply(table, slots, ONE_ROW, chosen, learning_rate=0.1, step=step)
    np.testing.assert_array_equal(table, np.ones((5, 2)))


def test_arrays_of_other_shapes_are_refused() -> None:
    table, slots = np.ones((5, 2), np.float32), make_slots(Adagrad(), 5, 2)
    narrow = SparseGradient(np.array([1], np.int64), np.ones((1, 1), np.float32))
    with pytest.raises(ArgumentError, match=r"rows of shape \(1, 1\): expected \(1, 2\), as wide as the table"):
        optimizers.apply(table, slots, narrow, Adagrad(), learning_rate=1.0)
    with pytest.raises(ArgumentError, match=r"accumulator has shape \(4, 2\)"):
        optimizers.apply(table, make_slots(Adagrad(), 4, 2), ONE_ROW, Adagrad(), learning_rate=1.0)
    with pytest.raises(ArgumentError, match=r"slots were made for other settings: Adam needs \['m', 'v'\]"):
        optimizers.apply(table, slots, ONE_ROW, Adam(), learning_rate=1.0)
    with pytest.raises(ArgumentError, match="and last_steps; use make_slots"):
        optimizers.apply(table, make_slots(Adam(), 5, 2), ONE_ROW, Adam(kind="exact"), learning_rate=1.0)
    with pytest.raises(ArgumentError, match="ids is int32"):
        optimizers.catch_up(table, slots, Adagrad(), learning_rate=1.0, step=1, ids=np.zeros(1, np.int32))
    table.flags.writeable = False
    with pytest.raises(ArgumentError, match="expected a writeable array"):
        optimizers.apply(table, slots, ONE_ROW, Adagrad(), learning_rate=1.0)
