import tensorflow as tf

from rankhouse.training.tables.owned_variables import is_owned, mark_owned


def variable(name: str, shape: tuple[int, ...], *, trainable: bool = False) -> tf.Variable:
    return tf.Variable(tf.zeros(shape), name=name, trainable=trainable)


def test_what_is_only_named_like_a_slot_is_not_owned() -> None:
    table = variable("user", (5, 2), trainable=True)
    mark_owned(table)
    # As Keras names the statistics of a normalization "user" in a model "tower".
    assert not is_owned(variable("tower/user/moving_mean", (2,)))
    assert not is_owned(variable("tower/user/kernel", (5, 2), trainable=True))
    assert is_owned(variable("Adam/user/m", (5, 2)))
    assert not hasattr(variable("user", (5, 2), trainable=True), "rankhouse_owned")
