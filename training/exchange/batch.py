"""A batch of bags of ids, as every lookup takes it."""

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from rankhouse.kernels import tf_ops


@dataclass(frozen=True)
class Batch:
    """The ids of some inputs, feature-major: all ids of the first input, sample by sample, then of the next one.

    Attributes:
        ids: int64 [N].
        lengths: int64 [F, B], ids per bag.
        weights: float32 [N], a factor for each id; None: all are 1.
    """

    ids: tf.Tensor
    lengths: tf.Tensor
    weights: tf.Tensor | None = None

    @property
    def size(self) -> tf.Tensor:
        """B, int64 []."""
        return tf.shape(self.lengths, out_type=tf.int64)[1]

    @property
    def offsets(self) -> tf.Tensor:
        """Where bags begin, int64 [F * B + 1]."""
        return tf_ops.offsets_from_lengths(self.lengths)

    @property
    def counts(self) -> tf.Tensor:
        """Ids per input, int64 [F]."""
        return tf.reduce_sum(self.lengths, axis=1)

    def select(self, numbers: Sequence[int]) -> "Batch":
        """Returns the batch of the given ones of its inputs, in their order; an input may come several times."""
        if list(numbers) == list(range(self.lengths.shape[0])):
            return self
        ids = select_blocks(self.ids, self.counts, numbers)
        weights = None if self.weights is None else select_blocks(self.weights, self.counts, numbers)
        return Batch(ids, tf.gather(self.lengths, tf.constant(list(numbers), tf.int64)), weights)

    def split(self) -> list["Batch"]:
        """Returns the batch of each input by itself."""
        num_inputs = self.lengths.shape[0]
        ids = tf.split(self.ids, self.counts, num=num_inputs)
        lengths = tf.split(self.lengths, num_inputs)
        weights = [None] * num_inputs if self.weights is None else tf.split(self.weights, self.counts, num=num_inputs)
        return [Batch(*parts) for parts in zip(ids, lengths, weights, strict=True)]


def join_ranks(parts: Sequence[Batch], numbers: Sequence[int]) -> Batch:
    """Puts the batches of all ranks, of the same inputs, side by side.

    Args:
        parts: By rank.
        numbers: Which inputs of the parts; one may come several times.

    Returns:
        The global batch [len(numbers), sum of the sizes], input by input and in each rank by rank.
    """
    num_inputs = parts[0].lengths.shape[0]
    order = [rank * num_inputs + number for number in numbers for rank in range(len(parts))]
    counts = tf.concat([part.counts for part in parts], axis=0)
    ids = select_blocks(tf.concat([part.ids for part in parts], axis=0), counts, order)
    weights = None
    if parts[0].weights is not None:
        weights = select_blocks(tf.concat([part.weights for part in parts], axis=0), counts, order)
    lengths = tf.concat([part.lengths for part in parts], axis=1)
    if list(numbers) != list(range(num_inputs)):
        lengths = tf.gather(lengths, tf.constant(list(numbers), tf.int64))
    return Batch(ids, lengths, weights)


def select_blocks(values: tf.Tensor, counts: tf.Tensor, numbers: Sequence[int]) -> tf.Tensor:
    """Returns the given blocks of values [N], of which each has so many as `counts` says, one after the other."""
    blocks = tf.RaggedTensor.from_row_lengths(values, counts, validate=False)
    return tf.gather(blocks, tf.constant(list(numbers), tf.int64)).values
