"""Row-wise Adagrad on tables that are cut by columns: what it keeps is of whole rows, and so of all their slices.

Whole tables are the kernels', in one pass over each row. Here each slice sums up its squares first, then all slices of
a table are added up (`tables/column_slices.py`), and then each makes its step.
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import tensorflow as tf

from rankhouse.kernels import tf_ops
from rankhouse.kernels.optimizer_settings import RowwiseAdagrad, Sgd
from rankhouse.training.tables.column_slices import ColumnSlices, column_slices_of


@dataclass(frozen=True)
class SliceGradient:
    """The gradient of a slice of columns in one step.

    Attributes:
        rows: float32 [U, D], of the rows that the step touched, with all that is done to them before the step.
        mean_squares: float32 [U], of whole rows.
    """

    rows: tf.Tensor
    mean_squares: tf.Tensor


def slice_gradients(
    gradients: Iterable[tuple[tf.IndexedSlices | tf.Tensor, tf.Variable]],
    settings: RowwiseAdagrad,
    *,
    gradient_scale: tf.Tensor | None,
) -> dict[Hashable, SliceGradient]:
    """Finds what the slices among the variables of a step need; collective.

    Args:
        gradients: All of the step, with their variables; those of tables are IndexedSlices.
        settings: The rule's.
        gradient_scale: float32 [], what gradients are multiplied with first; None: 1.

    Returns:
        By the variable of each slice (its `ref()`); nothing where no table is cut.

    Raises:
        OptimizerError: Some slices of a table have a gradient, and others have not.
    """
    layers: dict[ColumnSlices, dict[Hashable, tf.Tensor]] = {}
    for gradient, variable in gradients:
        layer = column_slices_of(variable)
        if layer is not None:
            rows = layers.setdefault(layer, {})
            if layer.has(variable) and isinstance(gradient, tf.IndexedSlices):
                rows[variable.ref()] = _decayed(variable, gradient, settings, gradient_scale)
    found: dict[Hashable, SliceGradient] = {}
    for layer, rows in layers.items():
        means = layer.means({ref: tf.reduce_sum(values * values, axis=1) for ref, values in rows.items()})
        found |= {ref: SliceGradient(values, means[ref]) for ref, values in rows.items()}
    return found


def apply_to_slice(
    table: tf.Variable,
    accumulator: tf.Variable,
    ids: tf.Tensor,
    gradient: SliceGradient,
    settings: RowwiseAdagrad,
    *,
    learning_rate: tf.Tensor,
    step: tf.Tensor,
) -> None:
    """Makes one step of a slice, in place.

    Args:
        table: [R, D], the slice.
        accumulator: float32 [R].
        ids: int64 [U], increasing, the rows of the gradient.
        gradient: What `slice_gradients` found for it.
        settings: The rule's.
        learning_rate: Of this step.
        step: Its number, from 1.
    """
    accumulator.scatter_add(tf.IndexedSlices(gradient.mean_squares, ids))
    divisors = tf.sqrt(tf.gather(accumulator, ids)) + settings.epsilon
    # What is left is a plain step, which the kernels make as that of any table.
    tf_ops.apply(
        table,
        tf_ops.Slots(()),
        tf.IndexedSlices(gradient.rows / divisors[:, tf.newaxis], ids),
        Sgd(weight_decay=settings.weight_decay if settings.decoupled else 0.0, decoupled=True),
        learning_rate=learning_rate,
        step=step,
    )


def _decayed(
    table: tf.Variable, gradient: tf.IndexedSlices, settings: RowwiseAdagrad, scale: tf.Tensor | None
) -> tf.Tensor:
    rows = gradient.values if scale is None else gradient.values * scale
    if settings.weight_decay and not settings.decoupled:
        rows += settings.weight_decay * tf.cast(tf.gather(table, gradient.indices), tf.float32)
    return rows
