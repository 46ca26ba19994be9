from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from hypothesis import given, settings
from hypothesis import strategies as st

from rankhouse.kernels import tf_ops
from rankhouse.kernels.errors import ArgumentError, UnsupportedError
from rankhouse.kernels.layers import Embedding
from rankhouse.kernels.optimizer_settings import Sgd

PROPERTY = settings(deadline=None, max_examples=30, derandomize=True)
COMBINERS = ("sum", "mean", "sqrtn")
ROWS, DIM = 30, 5


def make_layer(combiner: str | None = None, **settings: Any) -> Embedding:
    layer = Embedding(ROWS, DIM, tf_keras.initializers.RandomNormal(seed=1), combiner=combiner, **settings)
    layer.build()
    return layer


def random_bags(seed: int, lengths: list[int]) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Ids, with duplicates, and weights."""
    rng = np.random.default_rng(seed)
    ids = tf.RaggedTensor.from_row_lengths(rng.integers(0, ROWS, sum(lengths)), lengths)
    return ids, ids.with_values(tf.constant(rng.uniform(0.5, 2, sum(lengths)), tf.float32))


def sparse_truth(layer: Embedding, ids: tf.SparseTensor, weights: tf.SparseTensor | None) -> tf.Tensor:
    return tf.nn.safe_embedding_lookup_sparse(layer.embeddings, ids, weights, combiner=layer.combiner)


@PROPERTY
@given(shape=st.lists(st.integers(0, 4), min_size=1, max_size=4), dtype=st.sampled_from(["int32", "int64"]))
def test_without_combiner_it_is_keras_layer(shape: list[int], dtype: str) -> None:
    layer, keras = make_layer(), tf_keras.layers.Embedding(ROWS, DIM)
    keras.build(None)
    keras.embeddings.assign(layer.embeddings)
    ids = np.random.default_rng(len(shape)).integers(0, ROWS, shape).astype(dtype)
    with tf.GradientTape(persistent=True) as tape:
        ours, theirs = layer(ids), keras(ids)
        losses = tf.reduce_sum(ours**2), tf.reduce_sum(theirs**2)
    np.testing.assert_array_equal(ours, theirs)
    assert layer.compute_output_shape(shape) == [*shape, DIM]
    gradient = tape.gradient(losses[0], layer.embeddings)
    np.testing.assert_allclose(
        tf.convert_to_tensor(gradient), tf.convert_to_tensor(tape.gradient(losses[1], keras.embeddings)), rtol=1e-5
    )
    np.testing.assert_array_equal(gradient.indices, np.unique(ids))


@PROPERTY
@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=8),
    combiner=st.sampled_from(COMBINERS),
    weighted=st.booleans(),
    form=st.sampled_from(["ragged", "sparse"]),
)
def test_pooling_equals_embedding_lookup_sparse(lengths: list[int], combiner: str, weighted: bool, form: str) -> None:
    layer = make_layer(combiner)
    ids, weights = random_bags(3, lengths)
    factors = tf.Variable(weights.values)
    with tf.GradientTape(persistent=True) as tape:
        weights = ids.with_values(tf.convert_to_tensor(factors))
        sparse = ids.to_sparse(), weights.to_sparse()
        given_pair = (ids, weights) if form == "ragged" else sparse
        ours = layer(given_pair if weighted else given_pair[0])
        theirs = sparse_truth(layer, sparse[0], sparse[1] if weighted else None)
        losses = tf.reduce_sum(ours**2), tf.reduce_sum(theirs**2)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    for source in (layer.embeddings, factors) if weighted else (layer.embeddings,):
        our_gradient, their_gradient = (tape.gradient(loss, source, unconnected_gradients="zero") for loss in losses)
        np.testing.assert_allclose(
            tf.convert_to_tensor(our_gradient), tf.convert_to_tensor(their_gradient), rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 4), (4, 0), (0, 3), (0, 0), (1, 1)])
def test_dense_ids_are_pooled_over_the_last_axis(shape: tuple[int, ...], combiner: str) -> None:
    layer = make_layer(combiner)
    ids = np.random.default_rng(0).integers(0, ROWS, shape)
    rows = layer.embeddings.numpy()[ids]
    divisor = {"sum": 1, "mean": max(1, shape[-1]), "sqrtn": max(1, shape[-1]) ** 0.5}[combiner]
    unknown = [tf.TensorSpec([None] * len(shape), tf.int64)]
    for lookup in (layer, tf.function(layer), tf.function(layer, input_signature=unknown)):
        np.testing.assert_allclose(lookup(ids), rows.sum(-2) / divisor, rtol=1e-5, atol=1e-6)
    assert layer.compute_output_shape(shape) == [*shape[:-1], DIM]
    twice = layer([ids, np.full(shape, 2.0)])
    expected = rows.sum(-2) / (0.5 if combiner == "sum" else divisor)
    np.testing.assert_allclose(twice, expected, rtol=1e-5, atol=1e-6)
    assert layer.compute_output_shape([shape, shape]) == [*shape[:-1], DIM]


def test_fbgemm_weighting_divides_by_the_number_of_ids() -> None:
    layer = make_layer("mean", weighting="fbgemm")
    rows = layer.embeddings.numpy()
    pooled = layer((np.array([[1, 2]]), np.array([[3.0, 5.0]])))
    np.testing.assert_allclose(pooled[0], (3 * rows[1] + 5 * rows[2]) / 2, rtol=1e-5)


@pytest.mark.parametrize("combiner", COMBINERS)
@pytest.mark.parametrize("form", ["ragged", "sparse"])
def test_as_many_ids_as_samples_with_an_empty_bag(form: str, combiner: str) -> None:
    """distributed-embeddings takes two ids in two samples for one each."""
    layer = make_layer(combiner)
    ids = tf.ragged.constant([[1, 1], []], dtype=tf.int64)
    pooled = layer(ids if form == "ragged" else ids.to_sparse())
    factor = {"sum": 2, "mean": 1, "sqrtn": 2**0.5}[combiner]
    np.testing.assert_allclose(pooled, [factor * layer.embeddings.numpy()[1], np.zeros(DIM)], rtol=1e-6)


@pytest.mark.parametrize("combiner", COMBINERS)
def test_empty_rows_of_a_sparse_tensor_take_nobodys_ids(combiner: str) -> None:
    """distributed-embeddings gives row 1 the id of row 0 here, and its mean of an empty bag is not a number."""
    layer = make_layer(combiner)
    ids = tf.SparseTensor([[0, 0], [2, 0], [2, 1], [2, 2]], tf.constant([4, 6, 6, 6], tf.int64), [5, 3])
    pooled = layer(ids)
    rows = layer.embeddings.numpy()
    np.testing.assert_array_equal(pooled.numpy()[[1, 3, 4]], np.zeros((3, DIM)))
    np.testing.assert_array_equal(pooled[0], rows[4])
    np.testing.assert_allclose(pooled[2], rows[6] * {"sum": 3, "mean": 1, "sqrtn": 3**0.5}[combiner], rtol=1e-6)


def test_one_column_without_combiner_keeps_its_axis() -> None:
    """distributed-embeddings gives [B, D] where Keras gives [B, 1, D]."""
    assert make_layer()(np.array([[1], [2]])).shape == (2, 1, DIM)


@pytest.mark.parametrize("bad_id", [-1, ROWS, 2**63 - 1, -(2**63)])
def test_bad_ids_are_named_or_follow_the_policy(bad_id: int) -> None:
    ids = np.array([[1, 2], [3, bad_id]])
    message = rf"id {bad_id} of feature 0 \(sample 1, position 1 in its bag\) is out of range: table 0 has 30 rows"
    layer = make_layer("sum")
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        layer(ids)
    rows = layer.embeddings.numpy()
    expected = {"zero": 0 * rows[0], "clip": rows[0] if bad_id < 0 else rows[-1], 7: rows[7]}
    for policy, row in expected.items():
        np.testing.assert_allclose(make_layer("sum", out_of_range=policy)(ids)[1], rows[3] + row, rtol=1e-6)


def test_two_layers_do_not_reach_into_each_other() -> None:
    """distributed-embeddings joins tables of one width, so that an id too large trains a row of the next one."""
    layers = [make_layer("sum"), make_layer("sum")]
    with pytest.raises(tf.errors.InvalidArgumentError, match="id 30 of feature 0"), tf.GradientTape():
        [layer(np.array([[ROWS]])) for layer in layers]


def test_an_initializer_gets_shape_and_dtype_of_the_table() -> None:
    """distributed-embeddings drops the dtype."""
    asked = []

    def initializer(shape: Any, dtype: Any = None, **_: Any) -> tf.Tensor:
        asked.append((tuple(shape), dtype))
        return tf.fill(shape, tf.constant(3, dtype))

    layer = Embedding(7, 2, initializer)
    np.testing.assert_array_equal(layer(np.array([6])), [[3, 3]])
    assert asked == [((7, 2), tf.float32)]


def test_a_mask_is_handed_on_and_padding_left_out() -> None:
    ids = np.array([[0, 3, 0], [0, 0, 0]])
    layer = make_layer(mask_zero=True)
    np.testing.assert_array_equal(layer.compute_mask(ids), ids != 0)
    np.testing.assert_array_equal(layer(ids)._keras_mask, ids != 0)
    assert make_layer().compute_mask(ids) is None
    pooled = make_layer("mean", mask_zero=True)
    assert pooled.compute_mask(ids) is None
    weights = np.full(ids.shape, 5.0)
    for result in (pooled(ids), pooled(tf.RaggedTensor.from_tensor(ids)), pooled([ids, weights])):
        np.testing.assert_allclose(result, [pooled.embeddings.numpy()[3], np.zeros(DIM)], rtol=1e-6)
    with pytest.raises(ArgumentError, match="mask_zero, which a SparseTensor cannot have"):
        layer(tf.sparse.from_dense(ids))


def test_ragged_and_sparse_ids_without_combiner_equal_keras() -> None:
    layer, keras = make_layer(), tf_keras.layers.Embedding(ROWS, DIM)
    keras.build(None)
    keras.embeddings.assign(layer.embeddings)
    ragged = tf.ragged.constant([[1, 2], [], [3]], dtype=tf.int64)
    np.testing.assert_array_equal(layer(ragged).to_tensor(), keras(ragged).to_tensor())
    np.testing.assert_array_equal(layer(ragged.to_sparse()), keras(ragged.to_sparse()))
    deep = tf.ragged.constant([[[1, 2], []], [], [[3]]], dtype=tf.int32)
    np.testing.assert_array_equal(layer(deep).to_tensor(), keras(deep).to_tensor())


def test_configurations_go_round_and_keras_are_taken() -> None:
    settings = {"combiner": "mean", "out_of_range": 2, "weighting": "fbgemm", "mask_zero": True, "name": "e"}
    layer = Embedding(9, 4, "zeros", "l2", "l1", "nonneg", **settings)
    again = tf_keras.layers.deserialize(tf_keras.layers.serialize(layer))
    assert isinstance(again, Embedding)
    assert again.get_config() == layer.get_config()
    keras = tf_keras.layers.Embedding(9, 4, "ones", mask_zero=True, input_length=3, name="words")
    taken = Embedding.from_config(keras.get_config())
    assert (taken.name, taken.combiner, taken.mask_zero) == ("words", None, True)
    np.testing.assert_array_equal(taken(np.array([1])), np.ones((1, 4)))


BOTH = ("SGD", "Adam", "Adagrad", "Adadelta", "Adamax", "Ftrl", "Nadam", "RMSprop")
OPTIMIZERS = [
    *((tf_keras.optimizers, name) for name in (*BOTH, "AdamW", "Lion")),
    *((tf_keras.optimizers.legacy, name) for name in BOTH),
]


@pytest.mark.parametrize(("package", "name"), OPTIMIZERS)
def test_fit_with_every_optimizer_equals_keras_layer(package: Any, name: str) -> None:
    ids = np.random.default_rng(0).integers(0, ROWS, (32, 3))
    labels = np.random.default_rng(1).random(32).astype(np.float32)
    trained = []
    for layer_class in (Embedding, tf_keras.layers.Embedding):
        layers = [layer_class(ROWS, DIM), tf_keras.layers.Flatten(), tf_keras.layers.Dense(1, name="dense")]
        model = tf_keras.Sequential([tf_keras.Input((3,), dtype="int64"), *layers])
        model.set_weights([np.random.default_rng(2).random(array.shape) - 0.5 for array in model.get_weights()])
        model.compile(getattr(package, name)(0.05), "mse")
        model.fit(ids, labels, batch_size=8, epochs=2, verbose=0, shuffle=False)
        trained.append(model.get_weights())
    for ours, theirs in zip(*trained, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("form", ["ragged", "sparse", "pair"])
def test_functional_models_train_and_are_saved(form: str, tmp_path: Path) -> None:
    ids, weights = random_bags(5, [2, 0, 3, 1])
    shape = {"shape": (None,), "ragged": form == "ragged", "sparse": form == "sparse"}
    inputs: Any = tf_keras.Input(dtype="int64", **shape)
    data: Any = {"ragged": ids, "sparse": ids.to_sparse(), "pair": [ids.to_tensor(), weights.to_tensor()]}[form]
    if form == "pair":
        inputs = [inputs, tf_keras.Input((None,))]
    model = tf_keras.Model(inputs, tf_keras.layers.Dense(1)(Embedding(ROWS, DIM, combiner="mean")(inputs)))
    model.compile("adagrad", "mse")
    history = model.fit(data, np.ones((4, 1)), epochs=3, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0]
    expected = model(data)
    for name in ("model.keras", "saved"):
        model.save(tmp_path / name)
        np.testing.assert_allclose(tf_keras.models.load_model(tmp_path / name)(data), expected, rtol=1e-5)
    fresh = tf_keras.models.clone_model(model)
    model.save_weights(tmp_path / "weights.h5")
    fresh.load_weights(tmp_path / "weights.h5")
    np.testing.assert_allclose(fresh(data), expected, rtol=1e-5)


def test_a_subclassed_model_shares_one_table_between_features() -> None:
    class TwoFeatures(tf_keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = Embedding(ROWS, DIM, "ones", combiner="sum")

        def call(self, inputs: Any) -> tf.Tensor:
            return tf.reduce_sum(self.table(inputs["a"]) + self.table(inputs["b"]), axis=1)

    model = TwoFeatures()
    model.compile(tf_keras.optimizers.SGD(0.125), "mae")
    # Row 3 is in both: both gradients reach it.
    model.fit({"a": np.array([[3, 4]]), "b": np.array([[3, 3]])}, np.zeros(1), verbose=0)
    expected = np.ones((ROWS, DIM))
    expected[3], expected[4] = 1 - 3 / 8, 1 - 1 / 8
    np.testing.assert_allclose(model.table.embeddings, expected)


def test_a_regularizer_and_a_constraint_reach_the_table() -> None:
    layer = Embedding(3, 2, "ones", tf_keras.regularizers.L2(0.5), embeddings_constraint="nonneg")
    model = tf_keras.Sequential([layer])
    model.compile(tf_keras.optimizers.SGD(2.0), "mse")
    model.fit(np.zeros(1, np.int64), np.ones((1, 2)), verbose=0)
    np.testing.assert_array_equal(layer.embeddings, np.zeros((3, 2)))  # 1 - 2 * 1 would be -1


def test_mixed_precision_keeps_the_table_in_float32() -> None:
    layer = Embedding(2**20, DIM, combiner="sum", dtype="mixed_float16")
    assert layer(np.array([[2**20 - 1]])).dtype == tf.float16
    assert layer.embeddings.dtype == tf.float32


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_table_of_16_bits_gives_the_rows_of_keras_layer(dtype: str) -> None:
    ids = np.array([[3, 1], [0, 3]])
    ours, theirs = (kind(4, 3, dtype=dtype) for kind in (Embedding, tf_keras.layers.Embedding))
    theirs.build(None)
    ours.build(None)
    ours.set_weights(theirs.get_weights())
    assert ours(ids).dtype == theirs(ids).dtype == ours.embeddings.dtype == dtype
    np.testing.assert_array_equal(tf.cast(ours(ids), tf.float32), tf.cast(theirs(ids), tf.float32))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.cast(ours(ids), tf.float32))
    gradient = tape.gradient(loss, ours.embeddings)
    assert gradient.values.dtype == tf.float32
    np.testing.assert_array_equal(tf.convert_to_tensor(gradient), [[1] * 3, [1] * 3, [0] * 3, [2] * 3])
    before = tf.cast(ours.embeddings, tf.float32)
    tf_ops.apply(ours.embeddings, tf_ops.make_slots(ours.embeddings, Sgd()), gradient, Sgd(), learning_rate=8.0, step=1)
    np.testing.assert_allclose(before - tf.cast(ours.embeddings, tf.float32), tf.convert_to_tensor(gradient) * 8, 0.02)
    assert Embedding.from_config(ours.get_config()).variable_dtype == dtype
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected to be a float tensor"):
        tf_keras.optimizers.SGD(0.1).apply_gradients([(gradient, ours.embeddings)])


def test_float_ids_are_taken_where_they_are_exact() -> None:
    np.testing.assert_array_equal(make_layer()(np.float32([3])), make_layer()(np.array([3])))
    with pytest.raises(ArgumentError, match="float32, which holds integers up to 16777216 exactly, but input_dim is"):
        Embedding(2**24 + 1, 1)(np.float32([3]))


def test_ids_and_weights_must_lie_in_the_same_places() -> None:
    layer = make_layer("sum")
    ids, other = tf.ragged.constant([[1], [2, 3]]), tf.ragged.constant([[1.0, 2.0], [3.0]])
    for pair in ((ids, other), (ids.to_sparse(), other.to_sparse())):
        with pytest.raises(tf.errors.InvalidArgumentError, match="ids and weights lie in different places"):
            layer(pair)
        with pytest.raises(tf.errors.InvalidArgumentError, match="ids and weights lie in different places"):
            tf.function(layer)(pair)


@pytest.mark.parametrize(
    ("combiner", "inputs", "message"),
    [
        ("sum", np.array([1, 2]), r"pools the last axis of ids, but they have shape \(2,\)"),
        (None, [np.array([1]), np.array([1.0])], "has no combiner"),
        ("sum", [np.array([[1]])] * 3, "was given 3 inputs"),
        ("sum", [np.array([[1]]), tf.ragged.constant([[1.0]])], "ids are a dense tensor and weights a RaggedTensor"),
        ("sum", [np.array([[1]]), np.array([[1.0, 2.0]])], r"ids have shape \(1, 1\) and weights \(1, 2\)"),
        ("sum", tf.ragged.constant([[[1]]]), r"expected the rank 2, \[samples, ids of a sample\]"),
        ("sum", tf.SparseTensor([[0]], [1], [2]), r"expected the rank 2, \[samples, ids of a sample\]"),
    ],
)
def test_wrong_inputs_are_refused(combiner: str | None, inputs: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make_layer(combiner)(inputs)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"input_dim": 0}, "input_dim is 0: expected an integer, at least 1"),
        ({"output_dim": 1.5}, "output_dim is 1.5"),
        ({"combiner": "max"}, "combiner is 'max'"),
        ({"weighting": "torch"}, "weighting is 'torch'"),
        ({"out_of_range": "wrap"}, "out_of_range is 'wrap'"),
        ({"out_of_range": 4}, "or a row below 4"),
        ({"dtype": "float64"}, "has variables of float64: expected float32, float16 or bfloat16"),
    ],
)
def test_wrong_settings_are_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Embedding(**({"input_dim": 4, "output_dim": 2} | changed))


def test_compiling_with_xla_is_refused_with_what_to_do() -> None:
    model = tf_keras.Sequential([make_layer("sum"), tf_keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=True)
    with pytest.raises(UnsupportedError, match="leave jit_compile off there, and set it on a function of the dense"):
        model.fit(np.zeros((4, 1), np.int64), np.zeros(4), verbose=0)
