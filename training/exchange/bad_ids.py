"""What is said of an id that is not a row of its table.

Lookups count such ids as they go, which costs nothing; only where there are some they are looked for.
"""

from collections.abc import Sequence

import tensorflow as tf

from rankhouse.training.embedding_specs import Input
from rankhouse.training.exchange.batch import Batch


def require_rows(
    values: tf.Tensor, num_bad: tf.Tensor, batch: Batch, inputs: Sequence[Input], num_rows: Sequence[int]
) -> tf.Tensor:
    """Returns `values` if there are no bad ids, and fails otherwise.

    Args:
        values: Any tensor: what needs it waits for the check.
        num_bad: An integer, how many ids of the batch are no rows.
        batch: The ids.
        inputs: Those of the batch.
        num_rows: Rows of the table of each input.

    Raises:
        tf.errors.InvalidArgumentError: There are; the message names the first, its input, and its table.
    """
    good = tf.cond(num_bad == 0, lambda: tf.constant(True), lambda: _fail(batch, inputs, num_rows))
    with tf.control_dependencies([good]):
        return tf.identity(values)


def _fail(batch: Batch, inputs: Sequence[Input], num_rows: Sequence[int]) -> tf.Tensor:
    limits = tf.constant(list(num_rows), tf.int64)
    numbers = tf.repeat(tf.range(len(inputs)), batch.counts)
    bad = (batch.ids < 0) | (batch.ids >= tf.gather(limits, numbers))
    first = tf.argmax(tf.cast(bad, tf.int32))
    number = numbers[first]
    # No quotes: an Assert in a graph escapes them.
    message = tf.strings.join(
        [
            "id ",
            tf.strings.as_string(batch.ids[first]),
            " of input ",
            tf.gather([item.name for item in inputs], number),
            " is out of range: table ",
            tf.gather([item.table for item in inputs], number),
            " has ",
            tf.strings.as_string(limits[number]),
            " rows",
        ]
    )
    with tf.control_dependencies([tf.debugging.Assert(False, [message])]):
        return tf.constant(False)
