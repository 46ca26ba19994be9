"""From the tensors that a layer is called with to the bags that a lookup takes, and back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from rankhouse.kernels import tf_ops
from rankhouse.training.errors import EmbeddingError
from rankhouse.training.exchange.batch import Batch
from rankhouse.training.tables.specs import Input


@dataclass(frozen=True)
class PackedInput:
    """One input of a call.

    Attributes:
        batch: Its ids, [1, B] bags.
        combiner: How its rows are pooled; None where each id gives a row of its own.
        tensor: What the layer was called with.
        pools: Whether the input names a combiner.
    """

    batch: Batch
    combiner: str | None
    tensor: Any
    pools: bool

    def output(self, rows: tf.Tensor) -> Any:
        """Shapes what was looked up like the input.

        Args:
            rows: float32 [B, dim], or [n, dim] where there is no combiner.

        Returns:
            [B, dim]; where the input names no combiner, [B, dim] of [B], [B, k, dim] of [B, k], and a RaggedTensor
            [B, None, dim] of ragged and sparse ones.
        """
        if self.pools or self.tensor.shape.rank == 1:
            return rows
        if isinstance(self.tensor, tf.RaggedTensor | tf.SparseTensor):
            return tf.RaggedTensor.from_row_lengths(rows, self.batch.lengths[0], validate=False)
        shape = tf.shape(self.tensor)
        shaped = tf.reshape(rows, tf.stack([shape[0], shape[1], rows.shape[1]]))
        return tf.ensure_shape(shaped, [*self.tensor.shape, rows.shape[1]])


def pack_input(tensor: Any, weights: Any, item: Input) -> PackedInput:
    """Reads the ids of one input.

    Args:
        tensor: Integers: [B], [B, k], a RaggedTensor [B, None] or a SparseTensor [B, k].
        weights: float32, a factor for each id, of the kind and shape of the ids; None: all are 1.
        item: The input.

    Raises:
        EmbeddingError: A shape, a dtype or the weights do not fit.
    """
    if not tensor.dtype.is_integer:
        raise EmbeddingError(f"input {item.name!r} has dtype {tensor.dtype.name}; expected integer ids")
    if weights is not None and item.combiner is None:
        raise EmbeddingError(f"input {item.name!r} has weights, but no combiner that would use them; give it one")
    ids, lengths = _read(tensor, item.name)
    factors = None if weights is None else _read_weights(tensor, weights, item.name)
    batch = Batch(ids, lengths[tf.newaxis], factors)
    combiner = item.combiner
    is_dense = not isinstance(tensor, tf.RaggedTensor | tf.SparseTensor)
    if combiner is None and is_dense and (tensor.shape.rank == 1 or tensor.shape[1] == 1):
        # Bags of one id each are their own sum, and the bags of many tables are looked up, and travel, together.
        combiner = "sum"
    return PackedInput(batch, combiner, tensor, pools=item.combiner is not None)


def join_inputs(inputs: Sequence[PackedInput]) -> Batch:
    """Puts the bags of all inputs together; where only some have weights, those of the others are 1."""
    ids = tf.concat([item.batch.ids for item in inputs], axis=0)
    lengths = tf.concat([item.batch.lengths for item in inputs], axis=0)
    if all(item.batch.weights is None for item in inputs):
        return Batch(ids, lengths)
    weights = [
        tf.ones(tf.shape(item.batch.ids)) if item.batch.weights is None else item.batch.weights for item in inputs
    ]
    return Batch(ids, lengths, tf.concat(weights, axis=0))


def _read(tensor: Any, name: str) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the ids int64 [n] and lengths int64 [B] of one input."""
    if isinstance(tensor, tf.SparseTensor):
        if tensor.shape.rank not in (None, 2):
            raise EmbeddingError(f"input {name!r} is sparse of shape {tensor.shape}; expected [B, k]")
        bags = tf_ops.from_sparse(tensor)
        return tf.cast(bags.ids, tf.int64), bags.offsets[1:] - bags.offsets[:-1]
    if isinstance(tensor, tf.RaggedTensor):
        if tensor.shape.rank != 2 or tensor.ragged_rank != 1:
            raise EmbeddingError(f"input {name!r} is ragged of shape {tensor.shape}; expected [B, None]")
        return tf.cast(tensor.values, tf.int64), tf.cast(tensor.row_lengths(), tf.int64)
    if tensor.shape.rank not in (1, 2):
        raise EmbeddingError(f"input {name!r} has shape {tensor.shape}; expected [B] or [B, k]")
    shape = tf.shape(tensor, out_type=tf.int64)
    hotness = shape[1] if tensor.shape.rank == 2 else tf.constant(1, tf.int64)
    return tf.reshape(tf.cast(tensor, tf.int64), [-1]), tf.fill([shape[0]], hotness)


def _read_weights(tensor: Any, weights: Any, name: str) -> tf.Tensor:
    """Returns one weight for each id, float32 [n]."""
    kinds = (tf.RaggedTensor, tf.SparseTensor)
    if any(isinstance(tensor, kind) != isinstance(weights, kind) for kind in kinds) or not weights.dtype.is_floating:
        raise EmbeddingError(
            f"input {name!r} is a {type(tensor).__name__}, but its weights are a {type(weights).__name__} of "
            f"{weights.dtype.name}; expected floats of the same kind and shape as the ids"
        )
    flat = weights.values if isinstance(weights, kinds) else tf.reshape(weights, [-1])
    num_ids = tf.size(tensor.values if isinstance(tensor, kinds) else tensor)
    said = f"input {name!r} has another number of weights than of ids"
    with tf.control_dependencies([tf.debugging.assert_equal(tf.size(flat), num_ids, message=said)]):
        return tf.cast(flat, tf.float32)
