from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from rankhouse.training.compat.distributed_embeddings import Embedding, IntegerLookup, embedding_lookup
from rankhouse.training.compat.distributed_embeddings.python.layers.embedding import ConcatOneHotEmbedding

TABLE = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
BAGS = tf.ragged.constant([[1, 2], [], [0, 0, 1], []], dtype=tf.int64)
POOLED = {
    "sum": [[8, 10], [0, 0], [5, 8], [0, 0]],
    "mean": [[4, 5], [0, 0], [5 / 3, 8 / 3], [0, 0]],
}
FORMS = {"ragged": BAGS, "sparse": BAGS.to_sparse()}


def layer_of(**options: Any) -> Embedding:
    layer = Embedding(3, 2, **options)
    layer.build(None)
    layer.set_weights([TABLE])
    return layer


@pytest.mark.parametrize("param", [tf.Variable(TABLE), tf.constant(TABLE)], ids=["variable", "tensor"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("combiner", POOLED)
def test_empty_samples_are_zeros_and_take_nothing_from_their_neighbours(param: Any, form: str, combiner: str) -> None:
    """As many ids as samples, ends without ids, and empty rows between: each went wrong there in its own way."""
    np.testing.assert_allclose(embedding_lookup(param, FORMS[form], combiner), POOLED[combiner], rtol=1e-6)
    few = tf.ragged.constant([[1, 2], []], dtype=tf.int32)
    few = few if form == "ragged" else few.to_sparse()
    np.testing.assert_allclose(embedding_lookup(param, few, combiner), POOLED[combiner][:2], rtol=1e-6)


@pytest.mark.parametrize("param", [tf.Variable(TABLE), tf.constant(TABLE)], ids=["variable", "tensor"])
def test_the_function_takes_dense_ids_and_keeps_their_shape_without_a_combiner(param: Any) -> None:
    ids = tf.constant([[0, 1], [2, 0]])
    np.testing.assert_array_equal(embedding_lookup(param, ids), TABLE[ids.numpy()])
    np.testing.assert_array_equal(embedding_lookup(param, ids, "mean"), TABLE[ids.numpy()].mean(axis=1))
    np.testing.assert_array_equal(embedding_lookup(param, ids[:, :1], "sum"), TABLE[ids.numpy()[:, 0]])
    assert embedding_lookup(param, BAGS).to_list() == [[TABLE[i].tolist() for i in bag] for bag in BAGS.to_list()]


@pytest.mark.parametrize("form", FORMS)
def test_the_gradient_is_that_of_tensorflow_row_by_row_and_none_of_empty_samples(form: str) -> None:
    table = tf.Variable(TABLE)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(embedding_lookup(table, FORMS[form], "mean") * [[1.0], [10.0], [100.0], [1000.0]])
    gradient = tape.gradient(loss, table)
    assert isinstance(gradient, tf.IndexedSlices)
    assert gradient.indices.numpy().tolist() == [0, 1, 2]
    np.testing.assert_allclose(gradient.values.numpy()[:, 0], [200 / 3, 0.5 + 100 / 3, 0.5], rtol=1e-6)


@pytest.mark.parametrize(
    ("ids", "combiner", "expected"),
    [
        ([0, 1, 0], None, [[1, 2], [3, 4], [1, 2]]),
        ([[0, 1], [2, 0]], None, [[[1, 2], [3, 4]], [[5, 6], [1, 2]]]),
        ([[0, 1], [2, 0]], "sum", [[4, 6], [6, 8]]),
        ([[[0, 1], [2, 0], [1, 2]]], "mean", [[[2, 3], [3, 4], [4, 5]]]),
        ([[0.0, 1.0]], "sum", [[4, 6]]),
    ],
)
def test_the_layer_takes_what_it_took_there(ids: Any, combiner: str | None, expected: Any) -> None:
    np.testing.assert_allclose(layer_of(combiner=combiner)(tf.constant(ids)), expected)


def test_a_sequential_model_knows_its_variables_before_it_is_called() -> None:
    model = tf_keras.Sequential([Embedding(3, 2, combiner="sum")])
    model.layers[0].set_weights([TABLE])
    np.testing.assert_allclose(model.predict(np.array([[0, 1]]), verbose=0), [[4, 6]])


def test_a_keras_configuration_keeps_its_mask_and_initializer_gets_its_dtype() -> None:
    keras = tf_keras.layers.Embedding(3, 2, mask_zero=True, input_length=4, embeddings_initializer="ones")
    layer = Embedding.from_config(keras.get_config())
    assert layer.mask_zero
    assert layer.compute_mask(tf.constant([[0, 1]])).numpy().tolist() == [[False, True]]
    seen = []

    def initializer(shape: Any, dtype: Any = None) -> tf.Tensor:
        seen.append(dtype)
        return tf.ones(shape, dtype)

    Embedding(3, 2, initializer).build(None)
    assert seen == [tf.float32]


def test_an_equal_layer_comes_from_the_configuration() -> None:
    layer = Embedding(3, 2, "ones", "l2", None, "non_neg", "mean", False, name="shop")
    again = Embedding.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert (again.combiner, again.use_custom_kernel, again.name) == ("mean", False, "shop")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: embedding_lookup([1.0], BAGS, "sum"), TypeError, "param is a list"),
        (lambda: embedding_lookup(tf.constant(TABLE), tf.constant([1])), ValueError, "Only support 2D input"),
        (lambda: embedding_lookup(tf.constant(TABLE), BAGS, "max"), ValueError, "combiner is 'max'"),
        (lambda: embedding_lookup(tf.constant(TABLE), BAGS.to_sparse()), ValueError, "expected a combiner"),
        (lambda: Embedding(0, 2), ValueError, "input_dim is 0"),
        (lambda: layer_of(combiner="sum")(tf.constant([1])), ValueError, r"for one id each give \[B, 1\]"),
        (lambda: layer_of(combiner="sum")(tf.ragged.constant([[[1]]])), ValueError, "expected the rank 2"),
        (lambda: layer_of()(tf.constant([3])), tf.errors.InvalidArgumentError, "3"),
        (lambda: layer_of(combiner="sum")(tf.constant([[-1]])), tf.errors.InvalidArgumentError, "-1"),
        (lambda: IntegerLookup(0), tf.errors.InvalidArgumentError, "max_keys"),
    ],
)
def test_what_is_wrong_is_said(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("use_gpu", [False, True])
def test_integer_lookup_learns_keys_as_they_come_until_it_is_full(use_gpu: bool) -> None:
    lookup = IntegerLookup(max_tokens=4, use_gpu=use_gpu)
    assert lookup.capacity == 5
    assert lookup(tf.constant([12, 1138, 12], tf.int64)).numpy().tolist() == [1, 2, 1]
    # Of three new keys the first two have room.
    assert lookup(tf.constant([[42, 1138], [-1, 36], [12, 7]])).numpy().tolist() == [[3, 2], [0, 4], [1, 0]]
    assert lookup(tf.constant([[12, 1138, 42], [42, 1000, 36]])).numpy().tolist() == [[1, 2, 3], [3, 0, 4]]
    assert lookup.get_vocabulary() == [-1, 12, 1138, 42, 36]
    keras = tf_keras.layers.IntegerLookup(vocabulary=lookup.get_vocabulary()[1:])
    keys = tf.range(-2, 1200, dtype=tf.int64)
    np.testing.assert_array_equal(lookup(keys), keras(keys))


def test_integer_lookup_takes_large_batches_and_keys_that_were_sentinels() -> None:
    keys = np.random.default_rng(5).integers(-1000, 1000, 100_000)
    lookup = IntegerLookup(3000)
    found = lookup(tf.constant(keys))
    values, firsts = np.unique(keys[keys != -1], return_index=True)
    vocabulary = [-1, *keys[keys != -1][np.sort(firsts)].tolist()]
    assert lookup.get_vocabulary() == vocabulary
    assert len(vocabulary) == len(values) + 1
    np.testing.assert_array_equal(np.array(vocabulary)[found], keys)
    assert lookup(tf.constant([-1, -2, -3])).numpy().tolist() == [0, vocabulary.index(-2), vocabulary.index(-3)]


def test_integer_lookup_learns_in_training_and_in_functions_but_not_in_evaluation() -> None:
    model = tf_keras.Sequential(
        [tf_keras.Input((1,), dtype="int64"), IntegerLookup(9), Embedding(10, 2, combiner="sum")]
    )
    model.compile("sgd", "mse")
    lookup = model.layers[0]
    model.predict(np.array([[7], [8]]), verbose=0)
    model.evaluate(np.array([[7], [8]]), np.zeros((2, 2)), verbose=0)
    assert lookup.get_vocabulary() == [-1]
    model.fit(np.array([[7], [8], [7]]), np.zeros((3, 2)), shuffle=False, verbose=0)
    assert lookup.get_vocabulary() == [-1, 7, 8]
    assert tf.function(lookup)(tf.ragged.constant([[9], []], dtype=tf.int64)).to_list() == [[3], []]
    assert lookup(tf.sparse.from_dense([[0, 5], [9, 0]])).values.numpy().tolist() == [4, 3]


def test_concatenated_features_read_their_own_rows() -> None:
    layer = ConcatOneHotEmbedding([2, 3], 2)
    rows = np.arange(10, dtype=np.float32).reshape(5, 2)
    layer.set_weights([rows])
    np.testing.assert_array_equal(layer(tf.constant([[1, 0], [0, 2]])), rows[[[1, 2], [0, 4]]])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"not a row of its feature .* \[2, 3\] rows"):
        layer(tf.constant([[2, 0]]))
