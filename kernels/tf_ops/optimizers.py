"""Optimizers on the rows of variables, in place.

Tables are float32, float16 or bfloat16 variables; gradients and slots are always float32. Rows of 16 bits make the step
of float32 rows and are rounded stochastically (rankhouse/optimizers.h), by bits that depend on the new value and the
number of the step alone: so the step must be given, and count on from 1.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from rankhouse.kernels.bags import FixedHotness
from rankhouse.kernels.errors import ArgumentError
from rankhouse.kernels.optimizer_settings import OptimizerSettings
from rankhouse.kernels.optimizers import settings_fields, step_of
from rankhouse.kernels.tf_ops.lookup import batch_arguments
from rankhouse.kernels.tf_ops.native import check_not_compiled, check_placement, check_variable, ops


@dataclass(frozen=True)
class Slots:
    """What an optimizer remembers of a variable.

    Attributes:
        variables: float32 [R, D] or [R] each, in the order of the settings' slot_names.
        last_steps: int32 [R], the step up to which each row is moved; only of the exact kinds.
    """

    variables: tuple[tf.Variable, ...]
    last_steps: tf.Variable | None = None


def make_slots(table: tf.Variable, settings: OptimizerSettings) -> Slots:
    """Returns the slots of a variable [R, D] before the first step.

    Raises:
        ArgumentError: The variable is not float32, float16 or bfloat16 [R, D] of a known shape on the CPU.
    """
    check_variable(table, "table")
    shape = settings.slot_shape(*table.shape)
    variables = tuple(
        tf.Variable(tf.fill(shape, tf.constant(settings.initial_value(name))), trainable=False, name=name)
        for name in settings.slot_names
    )
    if not settings.is_exact:
        return Slots(variables)
    return Slots(variables, tf.Variable(tf.zeros(table.shape[0], tf.int32), trainable=False, name="last_steps"))


def apply(
    table: tf.Variable,
    slots: Slots,
    gradient: tf.IndexedSlices,
    settings: OptimizerSettings,
    *,
    learning_rate: float | tf.Tensor,
    step: int | tf.Tensor | None = None,
    learning_rates: tf.Tensor | None = None,
    gradient_scale: float | tf.Tensor = 1.0,
) -> tf.Operation | None:
    """Makes one step of a table, in place.

    Args:
        table: float32, float16 or bfloat16 [R, D].
        slots: What `make_slots` made for it.
        gradient: Of the rows that the batch touched, with increasing ids: of `pooled_lookup` or `combine_duplicates`.
        settings: The rule and its settings.
        learning_rate: Of this step, at least 0.
        step: The number of this step, from 1: read by Adam, Adamax, the exact kinds, and all rules on rows that are not
            float32, which need it. None: 1.
        learning_rates: float32 [step - 1 or more], those of the steps before, for the exact kind of Adam; None: they
            were all `learning_rate`.
        gradient_scale: What the gradient is multiplied with first, not 0; for clipping by the global norm.

    Returns:
        The operation, in graphs; None where it ran at once.

    Raises:
        ArgumentError: The variable is not float32, float16 or bfloat16 [R, D] of a known shape on the CPU, or the slots
            are of other settings.
        UnsupportedError: XLA was to compile it.
        tf.errors.InvalidArgumentError: An id is not a row, ids do not increase, a number is out of its range, or a
            variable has another shape; nothing is changed.
    """
    check_not_compiled("apply")
    return ops().rankhouse_apply(
        variables=_handles(table, slots, settings),
        ids=tf.cast(gradient.indices, tf.int64),
        gradient=gradient.values,
        **_step(learning_rate, step_of(step, [table.dtype]), gradient_scale, learning_rates),
        **settings_fields(settings),
    )


def pooled_lookup_update(
    tables: Sequence[tf.Variable],
    slots: Sequence[Slots],
    settings: OptimizerSettings,
    grad: tf.Tensor,
    ids: tf.Tensor,
    offsets: tf.Tensor | FixedHotness,
    *,
    feature_tables: Sequence[int],
    combiners: Sequence[str],
    learning_rate: float | tf.Tensor,
    step: int | tf.Tensor | None = None,
    weights: tf.Tensor | None = None,
    weighting: str = "tensorflow",
    out_of_range: str | int | Sequence[str | int] = "error",
    learning_rates: tf.Tensor | None = None,
    gradient_scale: float | tf.Tensor = 1.0,
) -> tf.Operation | None:
    """Makes the gradient of a lookup and a step of its tables in one pass: the same bits, without the gradient's rows.

    It is for training loops that have the gradient of what `pooled_lookup` returned, and no other of these tables.

    Args:
        tables: float32, float16 or bfloat16 [R, D] each.
        slots: What `make_slots` made for each table.
        settings: The rule and its settings, of all tables.
        grad: float32 [B, E], the gradient of what `pooled_lookup` returned.
        ids: As in `pooled_lookup`, and so all others that are not said here.
        offsets: As in `pooled_lookup`.
        feature_tables: As in `pooled_lookup`.
        combiners: As in `pooled_lookup`.
        learning_rate: As in `apply`.
        step: As in `apply`.
        weights: As in `pooled_lookup`.
        weighting: As in `pooled_lookup`.
        out_of_range: As in `pooled_lookup`.
        learning_rates: As in `apply`.
        gradient_scale: As in `apply`.

    Returns:
        The operation, in graphs; None where it ran at once.

    Raises:
        ArgumentError: A variable, a feature, a policy or the slots are not as said here.
        UnsupportedError: XLA was to compile it.
        tf.errors.InvalidArgumentError: An id is not a row, a number is out of its range, or shapes do not fit; nothing
            is changed.
    """
    check_not_compiled("pooled_lookup_update")
    if len(tables) != len(slots):
        raise ArgumentError(f"{len(tables)} tables and {len(slots)} slots: expected one each")
    variables = [_handles(table, its_slots, settings) for table, its_slots in zip(tables, slots, strict=True)]
    batch = batch_arguments(
        tables,
        ids,
        offsets,
        feature_tables=feature_tables,
        combiners=combiners,
        weights=weights,
        weighting=weighting,
        out_of_range=out_of_range,
    )
    return ops().rankhouse_pooled_lookup_update(
        grad=grad,
        variables=[handle for handles in variables for handle in handles],
        num_tables=len(tables),
        **batch,
        **_step(learning_rate, step_of(step, [table.dtype for table in tables]), gradient_scale, learning_rates),
        **settings_fields(settings),
    )


def catch_up(
    table: tf.Variable,
    slots: Slots,
    settings: OptimizerSettings,
    *,
    learning_rate: float | tf.Tensor,
    step: int | tf.Tensor,
    ids: tf.Tensor | None = None,
    learning_rates: tf.Tensor | None = None,
) -> tf.Operation | None:
    """Makes the steps that rows have missed, in place; does nothing for other kinds than the exact ones.

    Args:
        table: float32, float16 or bfloat16 [R, D].
        slots: What `make_slots` made for it.
        settings: The rule and its settings.
        learning_rate: Of the step `step`.
        step: The last step made; at 0 there is nothing to do.
        ids: int64 or int32 [N], the rows, in any order and several times; what is no row is left out. None: all rows.
        learning_rates: float32 [step - 1 or more], as in `apply`.

    Returns:
        The operation, in graphs; None where it ran at once.

    Raises:
        ArgumentError: The variable is not float32, float16 or bfloat16 [R, D] of a known shape on the CPU, or the slots
            are of other settings.
        UnsupportedError: XLA was to compile it.
        tf.errors.InvalidArgumentError: A number is out of its range, or a variable has another shape; nothing is
            changed.
    """
    if not settings.is_exact:
        return None
    check_not_compiled("catch_up")
    return ops().rankhouse_catch_up(
        variables=_handles(table, slots, settings),
        ids=[] if ids is None else [tf.cast(ids, tf.int64)],
        **_step(learning_rate, step, 1.0, learning_rates),
        **settings_fields(settings),
    )


def squared_norm(gradients: Sequence[tf.IndexedSlices | tf.Tensor]) -> tf.Tensor:
    """Returns the sum of the squares of all gradients' elements, float64 []; its root is their global norm.

    The gradients are float32: dense, or of rows that are each there once.
    """
    check_not_compiled("squared_norm")
    rows = [gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient for gradient in gradients]
    return ops().rankhouse_squared_norm(rows=rows)


def _handles(table: tf.Variable, slots: Slots, settings: OptimizerSettings) -> list[tf.Tensor]:
    check_variable(table, "table")
    if len(slots.variables) != len(settings.slot_names) or (slots.last_steps is not None) != settings.is_exact:
        raise ArgumentError(
            f"slots were made for other settings: {type(settings).__name__} needs {list(settings.slot_names)}"
            f"{' and last_steps' if settings.is_exact else ''}; use make_slots"
        )
    names = dict(zip(settings.slot_names, slots.variables, strict=True))
    if slots.last_steps is not None:
        names["last_steps"] = slots.last_steps
    for name, variable in names.items():
        check_placement(variable, name)
    return [table.handle, *(variable.handle for variable in names.values())]


def _step(learning_rate: Any, step: Any, gradient_scale: Any, learning_rates: tf.Tensor | None) -> dict[str, Any]:
    return {
        "learning_rate": tf.cast(learning_rate, tf.float32),
        "step": tf.cast(step, tf.int64),
        "gradient_scale": tf.cast(gradient_scale, tf.float32),
        "learning_rates": tf.zeros([0]) if learning_rates is None else learning_rates,
    }
