"""What a rank asks another one: one row of int64 numbers, so that one exchange carries everything.

    [the rank's batch size, if the owner pools for it]
    [for each table whose rows the owner is asked for: how many]
    [the lengths, the ids, and the weights, two to a number, of the inputs that the owner pools]
    [for each table whose rows the owner is asked for: the unique ids, in rising order]

Lengths travel as 64 bits although 32 would do: a second exchange for them would cost more than the bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from rankhouse.training.exchange.batch import Batch


@dataclass(frozen=True)
class Request:
    """What one rank asks one owner.

    Attributes:
        bags: The ids of the inputs that the owner pools; None where it pools none.
        row_ids: For each table whose rows the owner has, the unique ids int64 [U].
    """

    bags: Batch | None
    row_ids: tuple[tf.Tensor, ...]


def write_requests(requests: Sequence[Request]) -> tuple[tf.Tensor, tf.Tensor]:
    """Writes one message for each rank: int64 [M], and how many numbers are for which rank, int32 [R]."""
    parts, sizes = [], []
    for request in requests:
        of_rank = [tf.stack(_header(request))] if _header(request) else []
        if request.bags is not None:
            of_rank += [tf.reshape(request.bags.lengths, [-1]), request.bags.ids]
            if request.bags.weights is not None:
                of_rank.append(_pack_weights(request.bags.weights))
        of_rank += request.row_ids
        parts += of_rank
        sizes.append(tf.add_n([tf.size(part) for part in of_rank]) if of_rank else tf.constant(0))
    return tf.concat([tf.zeros([0], tf.int64), *parts], axis=0), tf.stack(sizes)


def read_requests(
    received: tf.Tensor, splits: tf.Tensor, *, num_ranks: int, num_inputs: int, num_tables: int, weighted: bool
) -> list[Request]:
    """Reads the messages of all ranks, of as many inputs and tables as this rank is asked for."""
    return [
        _read_request(message, num_inputs, num_tables, weighted=weighted)
        for message in tf.split(received, splits, num=num_ranks)
    ]


def _header(request: Request) -> list[tf.Tensor]:
    sizes = [tf.size(ids, out_type=tf.int64) for ids in request.row_ids]
    return sizes if request.bags is None else [request.bags.size, *sizes]


def _read_request(message: tf.Tensor, num_inputs: int, num_tables: int, *, weighted: bool) -> Request:
    bags, at = None, int(num_inputs > 0) + num_tables
    row_counts = message[at - num_tables : at]
    rest = message[at:]
    if num_inputs:
        size = message[0]
        lengths = tf.reshape(rest[: num_inputs * size], [num_inputs, size])
        rest = rest[num_inputs * size :]
        num_ids = tf.reduce_sum(lengths)
        ids, rest = rest[:num_ids], rest[num_ids:]
        weights = None
        if weighted:
            weights, rest = _unpack_weights(rest, num_ids), rest[(num_ids + 1) // 2 :]
        bags = Batch(ids, lengths, weights)
    row_ids = tf.split(rest, row_counts, num=num_tables) if num_tables else []
    return Request(bags, tuple(row_ids))


def _pack_weights(weights: tf.Tensor) -> tf.Tensor:
    pairs = tf.reshape(tf.pad(weights, [[0, tf.size(weights) % 2]]), [-1, 2])
    return tf.bitcast(pairs, tf.int64)


def _unpack_weights(numbers: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.bitcast(numbers[: (count + 1) // 2], tf.float32), [-1])[:count]
