import numpy as np
import pytest
import tensorflow as tf

from rankhouse.training.exchange.batch import Batch, join_ranks
from rankhouse.training.exchange.id_messages import Request, read_requests, write_requests


def bags(lengths: list[list[int]], *, weighted: bool, first: int = 0) -> Batch:
    num_ids = sum(map(sum, lengths))
    ids = tf.range(first, first + num_ids, dtype=tf.int64)
    weights = tf.cast(ids, tf.float32) / 7 if weighted else None
    return Batch(ids, tf.constant(lengths, tf.int64), weights)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("lengths", [[[1, 0, 2], [0, 0, 1]], [[], []], [[0], [3]]])
def test_what_is_written_is_read(lengths: list[list[int]], weighted: bool) -> None:
    sent = [
        Request(bags(lengths, weighted=weighted), (tf.constant([2, 9], tf.int64), tf.zeros([0], tf.int64))),
        Request(bags([[2], [1]], weighted=weighted), (tf.zeros([0], tf.int64), tf.constant([-5], tf.int64))),
    ]
    message, splits = write_requests(sent)
    read = read_requests(message, splits, num_ranks=2, num_inputs=2, num_tables=2, weighted=weighted)
    for one, other in zip(read, sent, strict=True):
        assert one.bags is not None
        assert other.bags is not None
        assert np.array_equal(one.bags.ids, other.bags.ids)
        assert np.array_equal(one.bags.lengths, other.bags.lengths)
        assert (one.bags.weights is None) == (not weighted)
        if weighted:
            assert np.array_equal(one.bags.weights, other.bags.weights)
        assert [ids.numpy().tolist() for ids in one.row_ids] == [ids.numpy().tolist() for ids in other.row_ids]


def test_a_rank_that_is_asked_for_nothing_gets_nothing() -> None:
    message, splits = write_requests([Request(None, ()), Request(None, (tf.constant([1], tf.int64),))])
    assert (message.numpy().tolist(), splits.numpy().tolist()) == ([1, 1], [0, 2])


def test_a_message_of_another_shape_is_refused() -> None:
    message, splits = write_requests([Request(None, (tf.constant([1, 2], tf.int64),))])
    with pytest.raises(tf.errors.InvalidArgumentError):
        read_requests(message[:-1], splits, num_ranks=1, num_inputs=0, num_tables=1, weighted=False)


def test_batches_of_ranks_lie_input_by_input_and_in_each_rank_by_rank() -> None:
    parts = [bags([[1, 1], [2, 0]], weighted=True), bags([[0], [1]], weighted=True, first=10)]
    whole = join_ranks(parts, [1, 0, 1])
    assert whole.ids.numpy().tolist() == [2, 3, 10, 0, 1, 2, 3, 10]
    assert whole.lengths.numpy().tolist() == [[2, 0, 1], [1, 1, 0], [2, 0, 1]]
    assert np.array_equal(whole.weights, whole.ids.numpy().astype(np.float32) / np.float32(7))
