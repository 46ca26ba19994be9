import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rankhouse.kernels import arrays, library, optimizers
from rankhouse.kernels.bags import SparseGradient
from rankhouse.kernels.errors import ArgumentError, IdOutOfRangeError
from rankhouse.kernels.optimizer_settings import (
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    Ftrl,
    Momentum,
    OptimizerSettings,
    Rmsprop,
    RowwiseAdagrad,
    Sgd,
)
from rankhouse.kernels.reference import lookup as reference
from tests.kernels.backward_cases import ERROR, BackwardCase
from tests.kernels.batches import make_batch

SETTINGS = [
    *(Sgd(), Adagrad(), RowwiseAdagrad(), Ftrl(), Rmsprop(), Adadelta(), Adamax()),
    *(rule(kind=kind) for rule in (Momentum, Adam) for kind in ("lazy", "dense", "exact")),
    RowwiseAdagrad(weight_decay=0.1),
]

RANGE_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, RANGE_BODY, ctypes.c_void_p)
def backwards(_context: int, total: int, _cost: int, body: Callable[..., None], argument: int) -> None:
    """A parallel_for that runs one unit at a time, last first."""
    for unit in reversed(range(total)):
        body(argument, unit, unit + 1)


def bits_of(gradients: list[SparseGradient]) -> list[tuple[bytes, bytes]]:
    return [(gradient.ids.tobytes(), gradient.rows.tobytes()) for gradient in gradients]


def long_case(num_ids: int, dim: int, num_features: int = 1) -> BackwardCase:
    """All ids of a table of two rows, most of them the same."""
    case = BackwardCase(5, num_tables=1, num_features=num_features, batch_size=num_ids, rows=[2], dims=[dim])
    case.combiners[:] = 0
    case.policies[:] = [ERROR]
    case.hotness[:] = 1
    case.ragged, case.weights = False, None
    case.ids = np.zeros(num_ids * num_features, np.int64)
    case.ids[num_ids // 3] = 1
    case.offsets = np.arange(len(case.ids) + 1)
    case.grads = [case.rng.standard_normal((num_ids, dim)).astype(np.float32) for _ in range(num_features)]
    case.lookup = case._lookup()
    return case


@pytest.mark.parametrize("seed", range(60))
def test_gradient_equals_a_plain_loop_and_threads_change_no_bit(seed: int) -> None:
    case = BackwardCase(seed)
    one = case.gradients(library.Executor(num_threads=1))
    for gradient, truth, dim in zip(one, case.truth(), case.dims, strict=True):
        np.testing.assert_array_equal(gradient.ids, sorted(truth))
        expected = np.array([truth[row] for row in sorted(truth)]).reshape(-1, dim)
        np.testing.assert_allclose(gradient.rows, expected, rtol=1e-5, atol=1e-4)
    for num_threads in (2, 3, 8):
        assert bits_of(case.gradients(library.Executor(num_threads=num_threads))) == bits_of(one)
    strange = library.Executor(parallel_for=ctypes.cast(backwards, ctypes.c_void_p))
    assert bits_of(case.gradients(strange)) == bits_of(one)


def in_chunks(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The order that rh_pooled_lookup_gradient promises: chunks of 256 from their first, then the chunks' sums."""
    total = None
    for begin in range(0, len(rows), 256):
        chunk = rows[begin].copy()
        for row in rows[begin + 1 : begin + 256]:
            chunk += row
        total = chunk if total is None else total + chunk
    assert total is not None
    return total


@pytest.mark.parametrize("num_ids", [255, 256, 257, 258, 1000, 2047, 2048, 2049, 2050, 5000, 70_001])
@pytest.mark.parametrize(("dim", "num_features"), [(16, 1), (3, 1), (8, 1), (128, 1), (32, 2), (300, 2)])
def test_hot_rows_are_added_up_in_chunks(num_ids: int, dim: int, num_features: int) -> None:
    case = long_case(num_ids, dim, num_features)
    (one,) = case.gradients(library.Executor(num_threads=1))
    rows = np.concatenate(case.grads)
    assert one.rows.tobytes() == np.stack([in_chunks(rows[case.ids == row]) for row in (0, 1)]).tobytes()
    assert bits_of(case.gradients(library.Executor(num_threads=3))) == bits_of([one])


@pytest.mark.parametrize("dim", [8, 16])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_first_contribution_of_minus_zero_stays(dim: int, num_threads: int) -> None:
    case = long_case(2, dim)
    case.grads[0][:] = -0.0
    (gradient,) = case.gradients(library.Executor(num_threads=num_threads))
    assert np.signbit(gradient.rows).all()


@pytest.mark.parametrize("seed", range(16))
def test_tables_that_need_no_sort_have_the_bits_of_sorted_ones(seed: int) -> None:
    # One thread sorts no ids of narrow tables, and takes several tables together; of 64 threads none has a table alone.
    shape = {"num_tables": 6, "num_features": 6, "rows": [1, 10, 64, 65, 1000], "dims": [1, 3, 8, 16, 17, 32]}
    case = BackwardCase(200 + seed, **shape, tables=range(6), batch_size=[700, 128, 1][seed % 3])
    alone = case.gradients(library.Executor(num_threads=1))
    assert bits_of(alone) == bits_of(case.gradients(library.Executor(num_threads=64)))
    assert [gradient.ids.tolist() for gradient in alone] == [sorted(truth) for truth in case.truth()]


@pytest.mark.parametrize("combiner", ["mean", "sqrtn"])
def test_weighted_bags_of_many_ids_have_the_bits_of_sorted_ones(combiner: str) -> None:
    # The ids that need no sort are taken 128 at a time: bags begin and go on anywhere among them.
    rng, lengths = np.random.default_rng(7), [100, 700, 0, 28, 128, 1, 3]
    ids, weights = rng.integers(0, 50, sum(lengths)), rng.uniform(0.5, 2, sum(lengths)).astype(np.float32)
    offsets, grad = np.cumsum([0, *lengths]), rng.standard_normal((len(lengths), 8)).astype(np.float32)
    given: dict[str, Any] = {"weights": weights, "feature_tables": [0], "combiners": [combiner]}
    alone, shared = (
        arrays.pooled_lookup_gradient(grad, ids, offsets, tables_shape=[(50, 8)], num_threads=threads, **given)
        for threads in (1, 64)
    )
    assert bits_of(alone) == bits_of(shared)
    (truth,) = reference.pooled_lookup_gradient(grad, ids, offsets, tables_shape=[(50, 8)], **given)
    np.testing.assert_allclose(alone[0].rows, truth.rows, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_fused_update_has_the_bits_of_gradient_and_apply(settings: OptimizerSettings, seed: int) -> None:
    case = BackwardCase(seed + 100, rows=[1, 3, 50, 700], batch_size=[0, 5, 300][seed % 3])
    gradients = case.gradients(library.Executor(num_threads=1))
    shapes = list(zip(case.num_rows, case.dims, strict=True))
    tables = [case.rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    fused = [table.copy() for table in tables]
    slots = [optimizers.make_slots(settings, *shape) for shape in shapes]
    fused_slots = [optimizers.make_slots(settings, *shape) for shape in shapes]
    for step in (1, 3):
        for table, slot, gradient in zip(tables, slots, gradients, strict=True):
            optimizers.apply(table, slot, gradient, settings, learning_rate=0.1, step=step)
        case.update(fused, fused_slots, settings, step, num_threads=step)
        for table, other in zip(tables, fused, strict=True):
            assert table.tobytes() == other.tobytes()
        for slot, other_slot in zip(slots, fused_slots, strict=True):
            for array, other in zip(slot.arrays, other_slot.arrays, strict=True):
                assert array.tobytes() == other.tobytes()


@pytest.mark.parametrize("dim", [16, 5000])
def test_fused_update_of_hot_and_of_wide_rows(dim: int) -> None:
    case = long_case(6000 if dim == 16 else 40, dim)
    (gradient,) = case.gradients(library.Executor(num_threads=1))
    table = case.rng.standard_normal((2, dim)).astype(np.float32)
    fused = table.copy()
    slots, fused_slots = (optimizers.make_slots(Adagrad(), 2, dim) for _ in range(2))
    optimizers.apply(table, slots, gradient, Adagrad(), learning_rate=0.1)
    case.update([fused], [fused_slots], Adagrad(), 1, num_threads=2)
    assert fused.tobytes() == table.tobytes()
    assert fused_slots.arrays[0].tobytes() == slots.arrays[0].tobytes()


def test_update_in_numpy_equals_gradient_and_apply() -> None:
    batch = make_batch(3, shapes=[(40, 16), (300, 5)], feature_tables=[0, 1, 1], batch_size=60)
    settings: list[OptimizerSettings] = [Adam(kind="lazy"), RowwiseAdagrad()]
    arguments = {"feature_tables": batch.feature_tables, "combiners": batch.combiners}
    tables = [table.copy() for table in batch.tables]
    slots, fused_slots = (
        [optimizers.make_slots(rule, *shape) for rule, shape in zip(settings, batch.tables_shape, strict=True)]
        for _ in range(2)
    )
    gradients = arrays.pooled_lookup_gradient(
        batch.grad, batch.ids, batch.offsets, tables_shape=batch.tables_shape, **arguments
    )
    for table, slot, rule, gradient in zip(tables, slots, settings, gradients, strict=True):
        optimizers.apply(table, slot, gradient, rule, learning_rate=0.1, gradient_scale=0.5)
    everything = (batch.tables, fused_slots, settings, batch.grad, batch.ids, batch.offsets)
    with pytest.raises(ArgumentError, match="2 tables, 2 slots and 1 settings"):
        optimizers.pooled_lookup_update(
            batch.tables, fused_slots, settings[:1], *everything[3:], learning_rate=0.1, **arguments
        )
    with pytest.raises(ArgumentError, match=r"table 0 is float32 of shape \(640,\)"):
        optimizers.pooled_lookup_update(
            [batch.tables[0].reshape(-1), batch.tables[1]], *everything[1:], learning_rate=0.1, **arguments
        )
    with pytest.raises(ArgumentError, match="gradient_scale is 0"):
        optimizers.pooled_lookup_update(*everything, learning_rate=0.1, gradient_scale=0.0, **arguments)
    optimizers.pooled_lookup_update(*everything, learning_rate=0.1, gradient_scale=0.5, **arguments)
    for table, other in zip(tables, batch.tables, strict=True):
        assert table.tobytes() == other.tobytes()


def test_many_tables_of_very_different_size() -> None:
    case = BackwardCase(9, num_tables=26, num_features=40, batch_size=150)
    one = case.gradients(library.Executor(num_threads=1))
    assert [len(gradient.ids) for gradient in one] == [len(truth) for truth in case.truth()]
    assert bits_of(case.gradients(library.Executor(num_threads=4))) == bits_of(one)


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("bad_id", [-1, 2, 2**63 - 1, -(2**63)])
def test_a_bad_id_changes_nothing(bad_id: int, num_threads: int) -> None:
    case = long_case(9000, 16)
    case.ids[8000] = bad_id
    table = np.ones((2, 16), np.float32)
    message = rf"id {bad_id} of feature 0 \(sample 8000, position 0 in its bag\) is out of range: table 0 has 2 rows"
    with pytest.raises(IdOutOfRangeError, match=message):
        case.update([table], [optimizers.Slots(())], Sgd(), 1, num_threads=num_threads)
    np.testing.assert_array_equal(table, 1)


@pytest.mark.parametrize("first", [0, 1])
def test_the_first_bad_id_is_named_whether_its_table_is_sorted_or_not(first: int) -> None:
    # Of two threads one has the table with few ids to itself; they share the one with many.
    hotness = [8, 1] if first == 0 else [1, 8]
    case = BackwardCase(3, num_tables=2, num_features=2, tables=[0, 1], hotness=hotness, rows=[50], batch_size=40)
    case.policies[:] = [ERROR] * 2
    case.ids[:] = 0
    case.ids[[2, -1]] = 50
    case.ragged, case.weights = False, None
    case.combiners[:] = 0
    case.grads = [np.ones((40, dim), np.float32) for dim in case.dims]
    case.lookup = case._lookup()
    with pytest.raises(IdOutOfRangeError, match=r"id 50 of feature 0 \(sample"):
        case.gradients(library.Executor(num_threads=2))


@pytest.mark.parametrize("num_threads", [1, 2])
def test_bad_bags_change_nothing(num_threads: int) -> None:
    case = long_case(4, 16)
    case.ragged = True
    case.offsets = np.array([0, 3, 2, 3, 4])
    case.lookup = case._lookup()
    table = np.ones((2, 16), np.float32)
    with pytest.raises(ArgumentError, match="offsets of feature 0, sample 1 run from 3 to 2"):
        case.update([table], [optimizers.Slots(())], Sgd(), 1, num_threads=num_threads)
    np.testing.assert_array_equal(table, 1)


def test_update_refuses_what_does_not_fit() -> None:
    case = long_case(4, 16)
    with pytest.raises(ArgumentError, match=r"trained has shape \[3, 16\]: expected that of the lookup"):
        case.update([np.ones((3, 16), np.float32)], [optimizers.Slots(())], Sgd(), 1)
    with pytest.raises(ArgumentError, match="NULL slot 0"):
        case.update([np.ones((2, 16), np.float32)], [optimizers.Slots(())], Adagrad(), 1)
    settings = Adam(kind="exact")
    slots = optimizers.make_slots(settings, 2, 16)
    assert slots.last_steps is not None
    slots.last_steps[1] = 7
    table = np.ones((2, 16), np.float32)
    for num_threads in (1, 2):
        with pytest.raises(ArgumentError, match="row 1 of table 0 is at step 7, and this is step 7"):
            case.update([table], [slots], settings, 7, num_threads=num_threads)
    np.testing.assert_array_equal(table, 1)


def test_a_small_capacity_is_refused() -> None:
    case = long_case(4, 16)
    buffer = library.SparseGradientBuffer(case.ids.ctypes.data, case.grads[0].ctypes.data, 1)
    with pytest.raises(ArgumentError, match="gradient of table 0 has capacity 1: expected at least 2"):
        library.check(library.load().rh_pooled_lookup_gradient(case.lookup, case.feature_rows, buffer, None))
