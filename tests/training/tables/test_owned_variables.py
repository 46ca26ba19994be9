import pytest
import tensorflow as tf

from rankhouse.training.errors import EmbeddingError
from rankhouse.training.tables.owned_variables import is_owned, mark_owned, mark_shared, mark_slot


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


def test_a_slot_of_one_of_two_tables_of_one_name_is_not_guessed() -> None:
    owned, shared = (variable("two/models", (5, 2), trainable=True) for _ in range(2))
    mark_owned(owned)
    mark_shared(shared)
    slot, marked = variable("Adam/m/two/models", (5, 2)), variable("Adam/v/two/models", (5, 2))
    with pytest.raises(EmbeddingError, match="Adam/m/two/models:0 may belong to either of two tables of one name"):
        is_owned(slot)
    mark_slot(marked, shared)
    assert not is_owned(marked)
    del owned
    assert not is_owned(slot)
