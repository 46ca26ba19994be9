"""The sum over the ranks of the gradients of what every rank holds: dense layers and data-parallel tables."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
import tf_keras

from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.owned_variables import is_owned


@dataclass(frozen=True)
class GradientReduction:
    """What `reduce_gradients` does with gradients.

    Attributes:
        average: Whether what every rank holds gets the mean over the ranks instead of the sum.
        average_owned: The same for owned variables, whose gradients come as sums over the ranks.
        dense: Whether gradients of tables that every rank holds stay dense, so that optimizers see all their rows.
        compression: `horovod.tensorflow.Compression.fp16`, or anything with its `compress` and `decompress`.
        share_overflow: Whether a gradient of an owned variable that is not finite makes one of what every rank holds
            not finite on all ranks, so that all of them skip the step and lower the scale of the loss, or none does.
            Keras' policy "mixed_float16" asks for it as well.
    """

    average: bool = True
    average_owned: bool = True
    dense: bool = False
    compression: Any = None
    share_overflow: bool = False


def reduce_gradients(
    gradients: Sequence[Any],
    variables: Sequence[tf.Variable],
    *,
    ranks: Ranks,
    name: str,
    reduction: GradientReduction,
) -> list[Any]:
    """Averages gradients over the ranks: of losses that are means over each rank's batch, that of their mean.

    Args:
        gradients: One for each variable: a dense tensor, IndexedSlices, or None. None on all ranks or on none.
        variables: The variables; those that are not owned stand in the same order on every rank.
        ranks: Who trains together.
        name: Name of the exchange.
        reduction: What is done.

    Returns:
        The gradients to apply.
    """
    if ranks.size == 1:
        return list(gradients)
    owned = [variable for variable in variables if is_owned(variable)]
    if reduction.dense:
        own = {variable.ref() for variable in owned}
        pairs = zip(gradients, variables, strict=True)
        gradients = [_densify(gradient) if variable.ref() not in own else gradient for gradient, variable in pairs]
    if reduction.share_overflow or tf_keras.mixed_precision.global_policy().compute_dtype == "float16":
        gradients = _with_overflow(gradients, variables)
    summed = sum_gradients(gradients, variables, owned=owned, ranks=ranks, name=name, compression=reduction.compression)
    return [
        _divide(gradient, ranks.size if average else 1)
        for gradient, average in zip(
            summed,
            [reduction.average_owned if is_owned(variable) else reduction.average for variable in variables],
            strict=True,
        )
    ]


def exchange_name(base: str) -> str:
    """Returns a name that no other exchange of the same `tf.function` has; the same on ranks that make it alike."""
    return base if tf.executing_eagerly() else str(tf.compat.v1.get_default_graph().unique_name(base))


def sum_gradients(
    gradients: Sequence[Any],
    variables: Sequence[tf.Variable],
    *,
    owned: Sequence[tf.Variable],
    ranks: Ranks,
    name: str,
    compression: Any = None,
) -> list[Any]:
    """Sums gradients over the ranks, in one exchange, leaving those of owned variables as they are.

    On more than one rank those of data-parallel tables travel as dense tensors (the tables are small, and a dense sum
    has a fixed order and no negotiation of sizes), with a count of how often each row was touched; so that they come
    back as IndexedSlices of the rows that any rank touched, and an optimizer leaves the others alone.

    Args:
        gradients: One for each variable: a dense tensor, IndexedSlices, or None. None on all ranks or on none.
        variables: The variables; those that are not owned stand in the same order on every rank.
        owned: What only this rank holds, among `variables` or not.
        ranks: Who trains together.
        name: Name of the exchange.
        compression: None, or what compresses the message; see GradientReduction.

    Returns:
        The gradients to apply.
    """
    own = {variable.ref() for variable in owned}
    shared = [
        number
        for number, (gradient, variable) in enumerate(zip(gradients, variables, strict=True))
        if gradient is not None and variable.ref() not in own
    ]
    summed = list(gradients)
    if ranks.size == 1 or not shared:
        return summed
    dense = [tf.ensure_shape(tf.convert_to_tensor(gradients[i]), variables[i].shape) for i in shared]
    sparse = [i for i in shared if isinstance(gradients[i], tf.IndexedSlices)]
    touched = [_count_rows(gradients[i].indices, variables[i].shape[0]) for i in sparse]
    totals = _sum_compressed([*dense, *touched], ranks, name, compression)
    for number, total in zip(shared, totals[: len(shared)], strict=True):
        summed[number] = total
    for number, count in zip(sparse, totals[len(shared) :], strict=True):
        ids = tf.where(count > 0)[:, 0]
        summed[number] = tf.IndexedSlices(tf.gather(summed[number], ids), ids, dense_shape=variables[number].shape)
    return summed


def _with_overflow(gradients: Sequence[Any], variables: Sequence[tf.Variable]) -> list[Any]:
    """Adds NaN to the first gradient of what every rank holds, where one of an owned variable is not finite."""
    changed = list(gradients)
    shared = [
        number
        for number, (gradient, variable) in enumerate(zip(gradients, variables, strict=True))
        if gradient is not None and not is_owned(variable)
    ]
    for gradient, variable in zip(gradients, variables, strict=True):
        if shared and gradient is not None and is_owned(variable):
            values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
            # 0 times what is not finite is NaN.
            changed[shared[0]] = _densify(changed[shared[0]]) + 0.0 * tf.reduce_sum(values)
    return changed


def _count_rows(indices: tf.Tensor, num_rows: int) -> tf.Tensor:
    """Returns how often each row is among the indices, float32 [num_rows]."""
    counts = tf.math.unsorted_segment_sum(tf.ones(tf.shape(indices)), indices, num_rows)
    return tf.ensure_shape(counts, [num_rows])


def _sum_compressed(tensors: Sequence[tf.Tensor], ranks: Ranks, name: str, compression: Any) -> list[tf.Tensor]:
    if compression is None:
        return ranks.sum_tensors(tensors, name=name)
    small, contexts = zip(*[compression.compress(tensor) for tensor in tensors], strict=True)
    totals = ranks.sum_tensors(small, name=name)
    return [compression.decompress(total, context) for total, context in zip(totals, contexts, strict=True)]


def _densify(gradient: Any) -> Any:
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient


def _divide(gradient: Any, divisor: int) -> Any:
    if gradient is None or divisor == 1:
        return gradient
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(gradient.values / divisor, gradient.indices, gradient.dense_shape)
    return gradient / divisor
