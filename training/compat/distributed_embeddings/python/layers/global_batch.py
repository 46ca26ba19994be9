"""Inputs that come by table instead of by sample (`dp_input=False`): each rank has the global batch of its tables.

Rows are looked up for samples, so the ids go to their samples' ranks first, in one exchange, and then the usual way.
Letters: R ranks, G samples on all ranks, B = G / R on one, f inputs of a rank.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from rankhouse.training.errors import CompatError
from rankhouse.training.ranks import Ranks


def local_batch(
    inputs: Sequence[Any], input_ids: Sequence[Sequence[int]], *, ranks: Ranks, name: str
) -> tuple[tf.Tensor, tf.Tensor]:
    """Sends every rank the ids of its samples.

    Args:
        inputs: This rank's, in the order of `input_ids[rank]`: dense [G] or [G, k], ragged [G, None] or sparse [G, k].
            Rank r gets the samples from r * B on.
        input_ids: By rank, the numbers of its inputs. An input may be given by several ranks, as the same.
        ranks: Who trains together.
        name: Name of the exchange.

    Returns:
        Of all inputs in the order of their numbers: ids int64 [N], input by input, and lengths int64 [F, B].

    Raises:
        CompatError: G cannot be divided by R.
        tf.errors.InvalidArgumentError: The same, found when the step runs.
    """
    packed = [_pack(tensor) for tensor in inputs]
    ids = tf.concat([values for values, _ in packed], axis=0)
    lengths_fG = tf.stack([lengths for _, lengths in packed])
    batch = _divide_batch(inputs[0], lengths_fG, ranks)
    message, splits = _write(ids, lengths_fG, batch, ranks.size)
    received, received_splits = ranks.alltoall(message, splits, name=name)
    parts = tf.split(received, received_splits, num=ranks.size)
    ids_of: dict[int, tf.Tensor] = {}
    lengths_of: dict[int, tf.Tensor] = {}
    for part, numbers in zip(parts, input_ids, strict=True):
        lengths = tf.reshape(part[: len(numbers) * batch], [len(numbers), batch])
        blocks = tf.split(part[len(numbers) * batch :], tf.reduce_sum(lengths, axis=1), num=len(numbers))
        ids_of.update(zip(numbers, blocks, strict=True))
        lengths_of.update(zip(numbers, tf.unstack(lengths, num=len(numbers)), strict=True))
    order = sorted(ids_of)
    return tf.concat([ids_of[number] for number in order], axis=0), tf.stack([lengths_of[number] for number in order])


def _pack(tensor: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the ids int64 [n] and the lengths int64 [G] of one input."""
    if isinstance(tensor, tf.SparseTensor):
        tensor = tf.RaggedTensor.from_value_rowids(tensor.values, tensor.indices[:, 0], tensor.dense_shape[0])
    if isinstance(tensor, tf.RaggedTensor):
        return tf.cast(tensor.values, tf.int64), tf.cast(tensor.row_lengths(), tf.int64)
    shape = tf.shape(tensor, out_type=tf.int64)
    hotness = shape[1] if tensor.shape.rank == 2 else tf.constant(1, tf.int64)
    return tf.reshape(tf.cast(tensor, tf.int64), [-1]), tf.fill([shape[0]], hotness)


def _divide_batch(tensor: Any, lengths_fG: tf.Tensor, ranks: Ranks) -> tf.Tensor:
    """Returns B, int64 []."""
    known = tensor.shape[0]
    message = f"the global batch is not divisible by the {ranks.size} ranks, each of which gets an equal part"
    if known is not None and known % ranks.size:
        raise CompatError(f"{message}: it has {known} samples")
    size = tf.shape(lengths_fG, out_type=tf.int64)[1]
    divisible = tf.debugging.assert_equal(size % ranks.size, tf.constant(0, tf.int64), message)
    with tf.control_dependencies([] if divisible is None else [divisible]):
        return size // ranks.size


def _write(ids: tf.Tensor, lengths_fG: tf.Tensor, batch: tf.Tensor, num_ranks: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Puts for each rank the lengths of its samples, input by input, and their ids into a row; and the sizes."""
    num_inputs = lengths_fG.shape[0]
    lengths_fRB = tf.reshape(lengths_fG, [num_inputs, num_ranks, batch])
    counts_fR = tf.reduce_sum(lengths_fRB, axis=2)
    blocks = tf.RaggedTensor.from_row_lengths(ids, tf.reshape(counts_fR, [-1]), validate=False)
    turned = [number * num_ranks + rank for rank in range(num_ranks) for number in range(num_inputs)]
    ids_by_rank = tf.gather(blocks, tf.constant(turned, tf.int64)).values
    counts_R = tf.reduce_sum(counts_fR, axis=0)
    id_parts = tf.split(ids_by_rank, counts_R, num=num_ranks)
    length_parts = [tf.reshape(lengths_fRB[:, rank], [-1]) for rank in range(num_ranks)]
    pieces = [piece for pair in zip(length_parts, id_parts, strict=True) for piece in pair]
    return tf.concat(pieces, axis=0), tf.cast(num_inputs * batch + counts_R, tf.int32)
