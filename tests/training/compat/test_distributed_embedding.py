"""The layer on one rank; `test_ranks.py` has it on several."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from rankhouse.training.compat import distributed_embeddings
from rankhouse.training.compat.distributed_embeddings import Embedding, IntegerLookup
from rankhouse.training.compat.distributed_embeddings import dist_model_parallel as dmp
from rankhouse.training.errors import CompatError
from tests.training.compat import scripts
from tests.training.compat.scripts import BY_TABLE, INPUTS, Model

GUIDE = Path(__file__).parents[3] / "docs/moving_from_distributed_embeddings.md"


def layer_of(*tables: Any, **options: Any) -> dmp.DistributedEmbedding:
    return dmp.DistributedEmbedding(list(tables), **options)


def keras(rows: int = 3, width: int = 2, **options: Any) -> tf_keras.layers.Embedding:
    return tf_keras.layers.Embedding(rows, width, **options)


@pytest.mark.parametrize(("inputs", "dp_input"), [(INPUTS, True), (BY_TABLE, False)], ids=["by sample", "by table"])
def test_outputs_are_those_of_the_layers_by_themselves(inputs: Any, dp_input: bool) -> None:
    plain, spread = Model(inputs), Model(inputs, {"dp_input": dp_input, "strategy": "memory_balanced"})
    batch, _ = scripts.batch_of(0, inputs)
    order = range(len(inputs)) if dp_input else spread.embedding.strategy.input_ids_list[0]
    scripts.prepare(plain, inputs, batch)
    scripts.prepare(spread, inputs, [batch[number] for number in order])
    np.testing.assert_allclose(spread([batch[number] for number in order]), plain(batch), rtol=1e-5, atol=1e-6)


def test_the_shape_of_ids_is_kept_without_a_combiner() -> None:
    layer = layer_of(keras())
    bags = tf.ragged.constant([[1, 2], []], dtype=tf.int32)
    for ids, shape in (([1, 2], [2, 2]), ([[1], [2]], [2, 1, 2]), ([[1, 2], [0, 2]], [2, 2, 2]), (bags, [2, None, 2])):
        assert layer([tf.constant(ids) if isinstance(ids, list) else ids])[0].shape.as_list() == shape


def test_floating_point_ids_and_weights_and_a_compute_dtype() -> None:
    layer = layer_of(Embedding(3, 2, "ones", combiner="sum"), dtype="mixed_bfloat16")
    output = layer([tf.constant([[1.0, 2.0], [0.0, 0.0]])], weights=[tf.constant([[2.0, 3.0], [0.5, 0.0]])])[0]
    assert output.dtype == tf.bfloat16
    assert output.numpy().tolist() == [[5.0, 5.0], [0.5, 0.5]]
    assert layer.weights[0].dtype == tf.float32


@pytest.mark.parametrize("layer_class", [tf_keras.layers.Embedding, Embedding])
def test_rows_are_held_as_the_layers_say(layer_class: Any) -> None:
    layer = layer_of(layer_class(3, 2, "ones", dtype="bfloat16"), layer_class(3, 2, dtype="mixed_float16"))
    outputs = layer([tf.constant([1, 2]), tf.constant([0, 1])])
    assert [variable.dtype for variable in layer.weights] == [tf.bfloat16, tf.float32]
    assert [output.dtype for output in outputs] == [tf.float32] * 2
    assert outputs[0].numpy().tolist() == [[1.0, 1.0]] * 2
    assert [spec.dtype for spec in dmp.DistributedEmbedding.from_config(layer.get_config())._specs] == [
        "bfloat16",
        "float32",
    ]


def test_an_id_of_one_table_is_never_a_row_of_another() -> None:
    layer = layer_of(keras(name="a"), keras(5, name="b"))
    for ids in (3, -1):
        with pytest.raises(tf.errors.InvalidArgumentError, match=str(ids)):
            layer([tf.constant([ids]), tf.constant([0])])


def test_tables_have_their_own_initializers_and_values() -> None:
    layer = layer_of(keras(embeddings_initializer="ones"), keras(embeddings_initializer="zeros"), keras(), keras())
    layer.build()
    ones, zeros, one, other = layer.get_weights()
    assert ones.all()
    assert not zeros.any()
    assert not np.array_equal(one, other)
    reseeded = layer_of(keras(name="a"), seed=1)
    reseeded.build()
    same = layer_of(keras(name="a"), seed=1, row_slice_threshold=1, gpu_embedding_size=0)
    same.build()
    assert np.array_equal(same.get_weights()[0], reseeded.get_weights()[0])


def test_padding_is_masked_or_left_out_of_bags() -> None:
    layer = layer_of(keras(mask_zero=True), Embedding(3, 2, "ones", combiner="mean", mask_zero=True))
    ids = tf.constant([[0, 1], [0, 0]])
    apart, pooled = layer([ids, ids])
    assert apart._keras_mask.numpy().tolist() == [[False, True], [False, False]]
    assert pooled.numpy().tolist() == [[1.0, 1.0], [0.0, 0.0]]
    sparse = tf.sparse.from_dense(ids)
    assert layer([ids, sparse])[1].numpy().tolist() == [[1.0, 1.0], [0.0, 0.0]]


def test_works_in_a_functional_model_and_comes_back_from_its_configuration() -> None:
    layer = layer_of(keras(name="a"), Embedding(4, 2, combiner="sum", name="b"), input_table_map=[1, 0], name="tables")
    x, y = tf_keras.Input((None,), dtype="int64", ragged=True), tf_keras.Input((), dtype="int64")
    model = tf_keras.Model([x, y], tf_keras.layers.Concatenate()(layer([x, y])))
    again = tf_keras.Model.from_config(model.get_config())
    given = [tf.ragged.constant([[3], [1, 2]], dtype=tf.int64), tf.constant([0, 2], tf.int64)]
    np.testing.assert_array_equal(model(given), again(given))
    assert [variable.name for variable in model.variables] == ["tables/a:0", "tables/b:0"]


def test_fit_trains_as_keras_does() -> None:
    options = {"strategy": "memory_optimized"}
    by_fit = scripts.train_by_fit(_Alone(), INPUTS, tf_keras.optimizers.Adagrad(0.1), **options)
    alone = scripts.train_alone(INPUTS, lambda: tf_keras.optimizers.Adagrad(0.1))
    assert scripts.difference(by_fit, alone) < 1e-5


def test_a_tape_on_one_rank_is_the_tape() -> None:
    variable = tf.Variable(3.0)
    with dmp.DistributedGradientTape(tf.GradientTape(persistent=True)) as tape:
        loss = variable**2
    assert tape.gradient(loss, variable).numpy() == 6.0
    assert tape.gradient(loss, {"v": [variable]})["v"][0].numpy() == 6.0
    assert tape.watched_variables()[0] is variable


def test_the_names_are_all_there() -> None:
    assert distributed_embeddings.__version__ == "1.0.0"
    assert set(distributed_embeddings.__all__) == {
        *("Embedding", "IntegerLookup", "embedding_lookup", "DistributedEmbedding", "DistEmbeddingStrategy"),
        *("DistributedGradientTape", "DistributedOptimizer", "BroadcastGlobalVariablesCallback"),
        *("broadcast_variables", "dist_model_parallel", "__version__"),
    }
    assert isinstance(layer_of(keras()).strategy, distributed_embeddings.DistEmbeddingStrategy)


def test_the_script_of_the_guide_runs() -> None:
    (script,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(script, str(GUIDE), "exec"), names)
    assert names["losses"][-1] < names["losses"][0]


class Custom(tf_keras.layers.Layer):
    """A layer whose lookup is its own."""


class OfKeras3:
    """A layer as `tf.keras` gives it without TF_USE_LEGACY_KERAS=1."""

    __module__ = "keras.src.layers"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: layer_of(keras(embeddings_regularizer="l2", name="a")), "'a' has embeddings_regularizer"),
        (lambda: layer_of(keras(embeddings_constraint="non_neg", name="a")), "'a' has embeddings_constraint"),
        (lambda: layer_of(Custom()), "cannot spread <.*Custom.* its own code"),
        (lambda: layer_of(OfKeras3()), "of Keras 3, .*: start Python with TF_USE_LEGACY_KERAS=1"),
        (lambda: layer_of(keras(), strategy="optimal"), "Unsupported shard strategy 'optimal'"),
        (lambda: layer_of(keras())(tf.constant([1])), "was given a EagerTensor: expected a list of 1"),
        (lambda: layer_of(keras())([tf.constant([1])] * 2), "was given 2 inputs: expected a list of 1"),
        (lambda: layer_of(keras()).set_weights([np.zeros((3, 2))]), "set_weights of .* before it has tables"),
        (lambda: layer_of(keras()).get_weights(), "get_weights of .* before it has tables"),
        (lambda: layer_of(keras(), dp_input=False)([tf.constant([[1, 2]])]), "input 0 has several ids"),
        (lambda: dmp.DistributedOptimizer(tf_keras.optimizers.SGD(), backward_passes_per_step=2), "expected 1"),
        (lambda: dmp.DistributedGradientTape(tf.GradientTape(), op=2), "op is 2: expected horovod.tensorflow.Average"),
        (lambda: dmp.BroadcastGlobalVariablesCallback(1), "root_rank is 1: expected one of the 1 ranks"),
    ],
)
def test_what_is_wrong_is_said_as_a_value_error(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("weights", [[], [np.zeros((2, 3), np.float32)], ["/nowhere.npy"]])
def test_weights_that_are_no_tables_are_refused(weights: list[Any]) -> None:
    layer = layer_of(keras())
    layer.build()
    with pytest.raises(CompatError, match="set_weights of 'distributed_embedding"):
        layer.set_weights(weights)


def test_an_argument_that_horovod_does_not_have_is_refused() -> None:
    with pytest.raises(TypeError, match="compresion"):
        dmp.DistributedGradientTape(tf.GradientTape(), compresion=None)
    with pytest.raises(TypeError, match="max_token"):
        IntegerLookup(max_token=3)  # type: ignore[call-arg]


class _Alone:
    rank, size = 0, 1
