import pytest
import tensorflow as tf

from rankhouse.training.exchange.traffic import Bytes, Rounding, Traffic


def count(traffic: Traffic, name: str, sent: int, received: int) -> None:
    traffic.count(name, tf.constant(sent, tf.int64), tf.constant(received, tf.int64))


def test_counters_move_with_every_call_of_a_graph_and_beyond_32_bits() -> None:
    traffic = Traffic()

    @tf.function(input_signature=[tf.TensorSpec([], tf.int64)])
    def step(sent: tf.Tensor) -> None:
        traffic.count("ids", sent, sent + 1)
        traffic.count("rows", sent, sent)

    for _ in range(3):
        step(tf.constant(2**31, tf.int64))
    assert traffic.read() == {"ids": Bytes(3 * 2**31, 3 * 2**31 + 3), "rows": Bytes(3 * 2**31, 3 * 2**31)}
    assert traffic.total() == Bytes(6 * 2**31, 6 * 2**31 + 3)


def test_what_is_left_out_does_not_count() -> None:
    traffic = Traffic()
    count(traffic, "ids", 1000, 1000)
    traffic.restart()
    count(traffic, "ids", 1, 2)

    def evaluate() -> None:
        with traffic.left_out():
            count(traffic, "ids", 10, 20)
            count(traffic, "scores", 7, 7)
            raise RuntimeError("evaluation failed")

    with pytest.raises(RuntimeError, match="evaluation failed"):
        evaluate()
    count(traffic, "ids", 100, 200)
    assert traffic.read() == {"ids": Bytes(101, 202), "scores": Bytes(0, 0)}
    assert traffic.total() == Bytes(101, 202)


def test_the_largest_errors_are_kept() -> None:
    traffic = Traffic()
    for error, relative in ((0.5, 0.01), (0.25, 0.02)):
        traffic.record_rounding("rows", tf.constant(error), tf.constant(relative))
    traffic.count_saturated("rows", tf.constant(2, tf.int64))
    traffic.count_saturated("rows", tf.constant(3, tf.int64))
    assert traffic.roundings() == {"rows": Rounding(0.5, pytest.approx(0.02), 5)}
