"""The sum over the ranks of the gradients of what every rank holds: dense layers and data-parallel tables."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rankhouse.training.ranks import Ranks


def sum_gradients(
    gradients: Sequence[Any],
    variables: Sequence[tf.Variable],
    *,
    owned: Sequence[tf.Variable],
    ranks: Ranks,
    name: str,
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
    totals = ranks.sum_tensors([*dense, *touched], name=name)
    for number, total in zip(shared, totals[: len(shared)], strict=True):
        summed[number] = total
    for number, count in zip(sparse, totals[len(shared) :], strict=True):
        ids = tf.where(count > 0)[:, 0]
        summed[number] = tf.IndexedSlices(tf.gather(summed[number], ids), ids, dense_shape=variables[number].shape)
    return summed


def _count_rows(indices: tf.Tensor, num_rows: int) -> tf.Tensor:
    """Returns how often each row is among the indices, float32 [num_rows]."""
    counts = tf.math.unsorted_segment_sum(tf.ones(tf.shape(indices)), indices, num_rows)
    return tf.ensure_shape(counts, [num_rows])
