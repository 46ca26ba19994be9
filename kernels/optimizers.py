"""Optimizers on the touched rows of NumPy arrays, in place.

Letters in shapes: R a table's rows, D its width, U unique ids. Any thread may call these functions, but the arrays that
a call writes must not be used meanwhile. Results do not depend on the number of threads.

Tables are float32, float16, or uint16 with the bits of bfloat16; gradients and slots are always float32. Rows of 16
bits make the step of float32 rows and are rounded stochastically (rankhouse/optimizers.h), by bits that depend on the
new value and the number of the step alone: so the step must be given, and count on from 1.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankhouse.kernels import library
from rankhouse.kernels.arguments import check_array
from rankhouse.kernels.bags import FixedHotness, SparseGradient
from rankhouse.kernels.errors import ArgumentError
from rankhouse.kernels.executor import Threads, executor_of
from rankhouse.kernels.lookup_request import LookupRequest, Policy, TableShape
from rankhouse.kernels.optimizer_settings import KINDS, OptimizerSettings
from rankhouse.kernels.rows import row_type_number, row_type_of

# What the settings are called in rh_optimizer, where the names differ.
_FIELDS = {
    "l1_regularization_strength": "l1",
    "l2_regularization_strength": "l2",
    "l2_shrinkage_regularization_strength": "l2_shrinkage",
}


# The dtypes of tables that are trained: float32, float16, and uint16 for the bits of bfloat16.
_TRAINED_TYPES = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.uint16))


@dataclass(frozen=True)
class Slots:
    """What an optimizer remembers of a table.

    Attributes:
        arrays: float32 [R, D] or [R] each, in the order of the settings' slot_names.
        last_steps: int32 [R], the step up to which each row is moved; only of the exact kinds.
    """

    arrays: tuple[NDArray[np.float32], ...]
    last_steps: NDArray[np.int32] | None = None


def make_slots(settings: OptimizerSettings, num_rows: int, dim: int) -> Slots:
    """Returns the slots of a table [num_rows, dim] before the first step."""
    shape = settings.slot_shape(num_rows, dim)
    return Slots(
        arrays=tuple(np.full(shape, settings.initial_value(name), np.float32) for name in settings.slot_names),
        last_steps=np.zeros(num_rows, np.int32) if settings.is_exact else None,
    )


def apply(
    table: NDArray[Any],
    slots: Slots,
    gradient: SparseGradient,
    settings: OptimizerSettings,
    *,
    learning_rate: float,
    step: int | None = None,
    learning_rates: NDArray[np.float32] | None = None,
    gradient_scale: float = 1.0,
    num_threads: Threads = None,
) -> None:
    """Makes one step of a table, in place.

    Args:
        table: float32, float16 or uint16 [R, D].
        slots: What `make_slots` made for it.
        gradient: The rows that the batch touched, each once.
        settings: The rule and its settings.
        learning_rate: Of this step, at least 0.
        step: The number of this step, from 1: read by Adam, Adamax, the exact kinds, and all rules on rows that are not
            float32, which need it. None: 1.
        learning_rates: float32 [step - 1 or more], those of the steps before, for the exact kind of Adam; None: they
            were all `learning_rate`.
        gradient_scale: What the gradient is multiplied with first, not 0; for clipping by the global norm.
        num_threads: Most threads to use; None: as many as there are processors.

    Raises:
        IdOutOfRangeError: An id is not a row of the table; nothing is changed.
        ArgumentError: The ids do not increase, a setting is out of its range, or an array has another dtype, shape or
            layout than expected; nothing is changed.
    """
    _check_gradient(gradient, table)
    optimizer = _optimizer(settings, learning_rate, step_of(step, [table.dtype]), learning_rates, gradient_scale)
    update = _update(table, slots, settings, optimizer)
    update.ids, update.num_ids = gradient.ids.ctypes.data, len(gradient.ids)
    update.gradient = gradient.rows.ctypes.data
    library.check(library.load().rh_apply(update, 1, executor_of(num_threads)))


def pooled_lookup_update(
    tables: Sequence[NDArray[Any]],
    slots: Sequence[Slots],
    settings: Sequence[OptimizerSettings],
    grad: NDArray[np.float32],
    ids: NDArray[Any],
    offsets: NDArray[np.int64] | FixedHotness,
    *,
    feature_tables: Sequence[int],
    combiners: Sequence[str],
    learning_rate: float,
    step: int | None = None,
    weights: NDArray[np.float32] | None = None,
    weighting: str = "tensorflow",
    out_of_range: Policy | Sequence[Policy] = "error",
    learning_rates: NDArray[np.float32] | None = None,
    gradient_scale: float = 1.0,
    num_threads: Threads = None,
) -> None:
    """Makes one step of all tables, in place, from the gradient of what `arrays.pooled_lookup` gave.

    It has the bits of `arrays.pooled_lookup_gradient` and `apply`, but writes no gradient to memory.

    Args:
        tables: float32, float16 or uint16 [R, D] each.
        slots: What `make_slots` made for each table.
        settings: The rule and its settings for each table.
        grad: float32 [B, E], the gradient of what `arrays.pooled_lookup` returned.
        ids: As in `arrays.pooled_lookup`, and so all others that are not said here.
        offsets: As in `arrays.pooled_lookup`.
        feature_tables: As in `arrays.pooled_lookup`.
        combiners: As in `arrays.pooled_lookup`.
        learning_rate: Of this step, at least 0.
        step: As in `apply`.
        weights: As in `arrays.pooled_lookup`.
        weighting: As in `arrays.pooled_lookup`.
        out_of_range: As in `arrays.pooled_lookup`; ids that give rows of zeros have no gradient.
        learning_rates: As in `apply`.
        gradient_scale: As in `apply`.
        num_threads: Most threads to use, or an Executor.

    Raises:
        IdOutOfRangeError: An id is not a row of its table, and the table's policy is "error"; nothing is changed.
        ArgumentError: A setting is out of its range, an array has another dtype, shape or layout than expected, or the
            offsets do not fit the ids; nothing is changed.
    """
    if not len(tables) == len(slots) == len(settings):
        raise ArgumentError(f"{len(tables)} tables, {len(slots)} slots and {len(settings)} settings: expected one each")
    request = LookupRequest(
        [_shape_of(table, f"table {t}") for t, table in enumerate(tables)],
        ids,
        offsets,
        feature_tables=feature_tables,
        combiners=combiners,
        weights=weights,
        weighting=weighting,
        out_of_range=out_of_range,
    )
    request.check_grad(grad)
    step = step_of(step, [table.dtype for table in tables])
    native = (library.Optimizer * len(tables))()
    trained = (library.TrainedTable * len(tables))()
    for t, (table, slot, rule) in enumerate(zip(tables, slots, settings, strict=True)):
        native[t] = _optimizer(rule, learning_rate, step, learning_rates, gradient_scale)
        trained[t] = _update(table, slot, rule, native[t]).table
    library.check(
        library.load().rh_pooled_lookup_update(
            request.lookup, request.feature_rows(grad), native, trained, executor_of(num_threads)
        )
    )


def catch_up(
    table: NDArray[Any],
    slots: Slots,
    settings: OptimizerSettings,
    *,
    learning_rate: float,
    step: int,
    ids: NDArray[np.int64] | None = None,
    learning_rates: NDArray[np.float32] | None = None,
    num_threads: Threads = None,
) -> None:
    """Makes the steps that rows have missed, in place; does nothing for other kinds than the exact ones.

    Args:
        table: float32, float16 or uint16 [R, D].
        slots: What `make_slots` made for it.
        settings: The rule and its settings.
        learning_rate: Of the step `step`.
        step: The last step made.
        ids: int64 [U], increasing: the rows; None: all.
        learning_rates: float32 [step - 1 or more], as in `apply`.
        num_threads: Most threads to use; None: as many as there are processors.

    Raises:
        IdOutOfRangeError: An id is not a row of the table; nothing is changed.
        ArgumentError: The ids do not increase, a setting is out of its range, or an array has another dtype, shape or
            layout than expected; nothing is changed.
    """
    update = _update(table, slots, settings, _optimizer(settings, learning_rate, step, learning_rates, 1.0))
    if ids is not None:
        check_array(ids, "ids", np.int64, 1)
        # NULL would mean all rows, and that is what NumPy may give for the address of an empty array.
        update.ids, update.num_ids = ids.ctypes.data if len(ids) else ctypes.addressof(update), len(ids)
    library.check(library.load().rh_catch_up(update, 1, executor_of(num_threads)))


def squared_norm(gradients: Sequence[SparseGradient], *, num_threads: Threads = None) -> float:
    """Returns the sum of the squares of all gradients' elements, in float64; its root is their global norm.

    Raises:
        ArgumentError: An array has another dtype, shape or layout than expected.
    """
    for t, gradient in enumerate(gradients):
        check_array(gradient.rows, f"the rows of gradient {t}", np.float32, 2)
    buffers = (library.SparseGradientBuffer * len(gradients))(
        *(library.SparseGradientBuffer(None, g.rows.ctypes.data, len(g.rows), len(g.rows)) for g in gradients)
    )
    dims = (ctypes.c_int64 * len(gradients))(*(gradient.rows.shape[1] for gradient in gradients))
    result = ctypes.c_double()
    kernels = library.load()
    library.check(
        kernels.rh_squared_norm(buffers, dims, len(gradients), ctypes.addressof(result), executor_of(num_threads))
    )
    return result.value


def step_of(step: Any, dtypes: Sequence[Any]) -> Any:
    """Returns the number of a step of tables of these dtypes, 1 where none is given.

    Raises:
        ArgumentError: None is given, and not all tables are float32.
    """
    if step is None and any(dtype != np.float32 for dtype in dtypes):
        raise ArgumentError(
            "step is missing: rows that are not float32 are rounded by its number; give it, counting on from 1"
        )
    return 1 if step is None else step


def settings_fields(settings: OptimizerSettings) -> dict[str, Any]:
    """Returns the settings as rh_optimizer has them: rule and kind as numbers, the rest under its names in C."""
    fields = {_FIELDS.get(name, name): value for name, value in vars(settings).items()}
    fields.pop("initial_accumulator_value", None)
    return {**fields, "rule": library.RULES[settings.rule], "kind": KINDS[getattr(settings, "kind", "lazy")]}


def _optimizer(
    settings: OptimizerSettings,
    learning_rate: float,
    step: int,
    learning_rates: NDArray[np.float32] | None,
    gradient_scale: float,
) -> library.Optimizer:
    if gradient_scale == 0:
        raise ArgumentError("gradient_scale is 0: expected another number; is the norm of the gradients infinite?")
    optimizer = library.Optimizer(**settings_fields(settings))
    optimizer.learning_rate, optimizer.gradient_scale, optimizer.step = learning_rate, gradient_scale, step
    if learning_rates is not None:
        check_array(learning_rates, "learning_rates", np.float32, 1)
        if len(learning_rates) < step - 1:
            raise ArgumentError(f"learning_rates has {len(learning_rates)} elements: step {step} needs {step - 1}")
        optimizer.learning_rates = learning_rates.ctypes.data
    return optimizer


def _shape_of(table: NDArray[Any], name: str) -> TableShape:
    _check_table(table, name)
    return TableShape(*table.shape)


def _check_table(table: NDArray[Any], name: str) -> None:
    if not isinstance(table, np.ndarray) or table.dtype not in _TRAINED_TYPES or table.ndim != 2:
        raise ArgumentError(
            f"{name} is {getattr(table, 'dtype', type(table).__name__)} of shape {getattr(table, 'shape', ())}: "
            "expected float32, float16 or uint16 (bfloat16) [rows, width]; int8 rows are looked up only"
        )
    check_array(table, name, table.dtype.type, 2, shape=table.shape)


def _update(
    table: NDArray[Any], slots: Slots, settings: OptimizerSettings, optimizer: library.Optimizer
) -> library.Update:
    _check_table(table, "table")
    if len(slots.arrays) != len(settings.slot_names) or (slots.last_steps is not None) != settings.is_exact:
        raise ArgumentError(
            f"slots were made for other settings: {type(settings).__name__} needs {list(settings.slot_names)}"
            f"{' and last_steps' if settings.is_exact else ''}; use make_slots"
        )
    num_rows, dim = table.shape
    row_type = row_type_number(row_type_of(table))
    trained = library.TrainedTable(rows=table.ctypes.data, num_rows=num_rows, dim=dim, type=row_type)
    shape = settings.slot_shape(num_rows, dim)
    for number, (name, array) in enumerate(zip(settings.slot_names, slots.arrays, strict=True)):
        check_array(array, name, np.float32, len(shape), shape=shape)
        trained.slots[number] = array.ctypes.data
    if slots.last_steps is not None:
        check_array(slots.last_steps, "last_steps", np.int32, 1, shape=(num_rows,))
        trained.last_steps = slots.last_steps.ctypes.data
    return library.Update(table=trained, optimizer=ctypes.pointer(optimizer))


def _check_gradient(gradient: SparseGradient, table: NDArray[Any]) -> None:
    _check_table(table, "table")
    check_array(gradient.ids, "gradient.ids", np.int64, 1)
    check_array(gradient.rows, "gradient.rows", np.float32, 2)
    if gradient.rows.shape != (len(gradient.ids), table.shape[-1]):
        raise ArgumentError(
            f"gradient has {len(gradient.ids)} ids and rows of shape {gradient.rows.shape}: "
            f"expected {(len(gradient.ids), table.shape[-1])}, as wide as the table"
        )
