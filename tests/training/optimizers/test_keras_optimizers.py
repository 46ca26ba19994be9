from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.optimizers.keras_optimizers import distributed_optimizer
from rankhouse.training.optimizers.shared_gradients import GradientReduction, exchange_name, reduce_gradients
from rankhouse.training.plan import TableSpec, make_plan
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.owned_variables import broadcast_variables, is_owned, mark_owned
from rankhouse.training.tables.specs import EmbeddingSpec

ALONE = Ranks(0, 1)
OPTIMIZERS = [tf_keras.optimizers.Adam(0.1), tf_keras.optimizers.legacy.Ftrl(0.1)]


def table(name: str, *, owned: bool) -> tf.Variable:
    plan = make_plan([TableSpec(name, 5, 2)], num_ranks=1, data_parallel_threshold_rows=0 if owned else 9)
    return DistributedEmbedding([EmbeddingSpec(5, 2, name)], plan=plan).shards[0].variable


def state_of(optimizer: Any) -> list[tf.Variable]:
    return list(optimizer.variables() if callable(optimizer.variables) else optimizer.variables)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__module__.rsplit(".")[-1])
def test_a_table_of_this_rank_alone_is_known_and_so_are_its_slots(optimizer: Any, wrapped: bool) -> None:
    optimizer = distributed_optimizer(optimizer) if wrapped else type(optimizer).from_config(optimizer.get_config())
    variables = [table("owned", owned=True), table("shared", owned=False), tf.Variable([1.0], name="owned_bias")]
    optimizer.minimize(lambda: tf.add_n([tf.reduce_sum(v**2) for v in variables]), variables)
    assert [is_owned(variable) for variable in variables] == [True, False, False]
    state = state_of(optimizer)
    own = [variable.name for variable in state if is_owned(variable)]
    assert len(own) == sum("owned" in v.name and "bias" not in v.name for v in state) > 0
    assert all("owned" in name and "bias" not in name for name in own)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__module__.rsplit(".")[-1])
def test_on_one_rank_it_is_the_optimizer_that_was_given(optimizer: Any) -> None:
    ours = distributed_optimizer(optimizer)
    assert type(ours).__name__ == type(optimizer).__name__
    assert ours.get_config() == optimizer.get_config()
    values = []
    for each in (ours, type(optimizer).from_config(optimizer.get_config())):
        model = tf_keras.Sequential([tf_keras.layers.Dense(1, kernel_initializer="ones", input_shape=(2,))])
        model.compile(each, "mse")
        model.fit(np.eye(2), np.arange(2.0), epochs=3, verbose=0)
        values.append(model.get_weights()[0])
    np.testing.assert_array_equal(*values)
    assert not state_of(optimizer) or optimizer.iterations.numpy() == 0


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__module__.rsplit(".")[-1])
def test_variables_may_be_given_by_a_function(optimizer: Any) -> None:
    variable = tf.Variable(2.0)
    distributed_optimizer(optimizer, ranks=ALONE).minimize(lambda: variable * 3.0, lambda: [variable])
    assert variable.numpy() < 2.0


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__module__.rsplit(".")[-1])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_scaled_loss_stays_scaled_around_the_optimizer(optimizer: Any, dynamic: bool) -> None:
    optimizer = type(optimizer).from_config(optimizer.get_config())
    scaled = tf_keras.mixed_precision.LossScaleOptimizer(optimizer, dynamic=dynamic, initial_scale=8.0)
    ours = distributed_optimizer(scaled, ranks=ALONE)
    settings, expected = ours.get_config(), scaled.get_config()
    assert settings.pop("inner_optimizer")["config"] == expected.pop("inner_optimizer")["config"]
    assert settings == expected
    assert ours.inner_optimizer.rankhouse_ranks is ALONE
    variable = tf.Variable(2.0)
    ours.minimize(lambda: variable * 3.0, [variable])
    assert variable.numpy() < 2.0


def test_one_rank_leaves_gradients_and_variables_as_they_are() -> None:
    variable, gradient = tf.Variable([1.0, 2.0]), tf.constant([3.0, 4.0])
    reduction = GradientReduction(average=False)
    assert reduce_gradients([gradient], [variable], ranks=ALONE, name="x", reduction=reduction)[0] is gradient
    broadcast_variables([variable], ranks=ALONE)
    assert variable.numpy().tolist() == [1.0, 2.0]


def test_exchanges_of_one_function_have_names_of_their_own() -> None:
    assert exchange_name("a") == exchange_name("a") == "a"
    names = []

    @tf.function
    def step() -> None:
        names.extend([exchange_name("a"), exchange_name("a")])

    step()
    assert len(set(names)) == 2


def test_a_variable_can_be_marked_but_a_tensor_cannot() -> None:
    variable = tf.Variable(0.0, name="own_counter")
    assert not is_owned(variable)
    mark_owned(variable)
    assert is_owned(variable)
    with pytest.raises(AttributeError):
        mark_owned(tf.constant(0.0))


def test_a_dense_layer_that_is_named_like_a_table_is_no_table() -> None:
    table("user", owned=True)
    with tf.name_scope("tower/user"):
        assert not is_owned(tf.Variable([1.0], name="kernel"))
    with tf.name_scope("tower/dense"):
        assert not is_owned(tf.Variable([1.0], name="user"))


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(TypeError, match="averge"):
        GradientReduction(averge=True)  # type: ignore[call-arg]
