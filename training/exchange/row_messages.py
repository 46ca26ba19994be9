"""How messages of rows are put together and taken apart: pieces of one width and format, rank by rank.

`training/exchange/wire.py` sends them, the only place where rows and their gradients travel between ranks.
"""

from collections.abc import Sequence

import tensorflow as tf

from rankhouse.training.exchange.wire import Rows


def join_segments(blocks: Sequence[tf.Tensor], counts: Sequence[tf.Tensor], num_ranks: int) -> tf.Tensor:
    """Writes a message.

    Args:
        blocks: [n_k, width_k] each: its rows for rank 0, then those for rank 1, and so on.
        counts: For each block how many of its rows are for which rank, int64 [R].
        num_ranks: R.

    Returns:
        [T], rank by rank and in each block by block.
    """
    if len(blocks) == 1:
        return tf.reshape(blocks[0], [-1])
    parts = [tf.split(block, count, num=num_ranks) for block, count in zip(blocks, counts, strict=True)]
    flat = [tf.reshape(part[rank], [-1]) for rank in range(num_ranks) for part in parts]
    return tf.concat(flat, axis=0)


def split_segments(message: tf.Tensor, segments: Sequence[Sequence[Rows]]) -> list[list[tf.Tensor]]:
    """Reads a message: by rank, its segments as [rows, width] each."""
    every = [segment for of_rank in segments for segment in of_rank]
    flat = iter(tf.split(message, tf.stack([segment.num_elements for segment in every]), num=len(every)))
    return [[tf.reshape(next(flat), [-1, segment.width]) for segment in of_rank] for of_rank in segments]
