"""What is said of an id that is not a row of its table.

Lookups count such ids as they go, which costs nothing; only where there are some they are looked for.
"""

from collections.abc import Sequence

import tensorflow as tf

from rankhouse.training.exchange.batch import Batch
from rankhouse.training.tables.specs import Input


def require_rows(
    values: Sequence[tf.Tensor],
    num_bad: tf.Tensor,
    batches: Sequence[Batch],
    inputs: Sequence[Input],
    num_rows: Sequence[int | None],
) -> list[tf.Tensor]:
    """Returns `values` if there are no bad ids, and fails otherwise.

    Args:
        values: Any tensors: what needs them waits for the check.
        num_bad: An integer, how many of the ids are no rows.
        batches: The ids.
        inputs: Those of the batches, in their order.
        num_rows: Rows of the table of each input; None: any number is an id.

    Raises:
        tf.errors.InvalidArgumentError: There are; the message names the first, its input, and its table.
    """
    good = tf.cond(num_bad == 0, lambda: tf.constant(True), lambda: _fail(batches, inputs, num_rows))
    with tf.control_dependencies([good]):
        return [tf.identity(value) for value in values]


def count_bad(batch: Batch, num_rows: Sequence[int | None]) -> tf.Tensor:
    """Counts the ids of a batch that are no rows; `num_rows` has one for each input, or None: any number is an id."""
    return tf.math.count_nonzero(_is_bad(batch.ids, tf.repeat(tf.range(len(num_rows)), batch.counts), num_rows))


def _is_bad(ids: tf.Tensor, numbers: tf.Tensor, num_rows: Sequence[int | None]) -> tf.Tensor:
    """Says of ids of the inputs `numbers` whether they are no rows."""
    limits = tf.gather(tf.constant([limit or 0 for limit in num_rows], tf.int64), numbers)
    has_limit = tf.gather(tf.constant([limit is not None for limit in num_rows]), numbers)
    return has_limit & ((ids < 0) | (ids >= limits))


def _fail(batches: Sequence[Batch], inputs: Sequence[Input], num_rows: Sequence[int | None]) -> tf.Tensor:
    limits = tf.constant([limit or 0 for limit in num_rows], tf.int64)
    ids = tf.concat([batch.ids for batch in batches], axis=0)
    numbers = tf.repeat(tf.range(len(inputs)), tf.concat([batch.counts for batch in batches], axis=0))
    first = tf.argmax(tf.cast(_is_bad(ids, numbers, num_rows), tf.int32))
    number = numbers[first]
    # No quotes: an Assert in a graph escapes them.
    message = tf.strings.join(
        [
            "id ",
            tf.strings.as_string(ids[first]),
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
