from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from rankhouse.kernels.errors import ArgumentError
from rankhouse.kernels.vocabulary_layer import DynamicVocabulary
from rankhouse.training.ranks import Ranks
from tests.training.launching import run_on_ranks


def int64s(values: Any) -> tf.Tensor:
    return tf.constant(values, tf.int64)


def entries_of(layer: DynamicVocabulary) -> list[list[int]]:
    return [column.numpy().tolist() for column in layer.vocabulary.export()]


def test_only_training_learns() -> None:
    layer = DynamicVocabulary(10)
    assert layer(int64s([[5, -7]]), training=False).numpy().tolist() == [[0, 0]]
    assert layer(int64s([[5, -7]])).numpy().tolist() == [[0, 0]]
    assert layer(int64s([[5, -7]]), training=True).numpy().tolist() == [[2, 1]]
    assert layer(tf.constant([[5, 6]]), training=False).numpy().tolist() == [[2, 0]]
    assert layer.vocabulary.size() == 2


def test_training_may_be_a_tensor() -> None:
    layer = DynamicVocabulary(10)
    call = tf.function(lambda keys, training: layer(keys, training=training))
    assert call(int64s([5]), tf.constant(False)).numpy().tolist() == [0]
    assert call(int64s([5]), tf.constant(True)).numpy().tolist() == [1]
    assert call(int64s([6]), tf.constant(False)).numpy().tolist() == [0]


def test_features_that_share_a_vocabulary_come_in_one_call() -> None:
    """Ragged, sparse and dense keys; no key of the call makes room for another."""
    layer = DynamicVocabulary(3, eviction="oldest")
    layer(int64s([1, 2, 3]), training=True)
    keys = {
        "ragged": tf.ragged.constant([[9], [], [2, 9]], dtype=tf.int64),
        "sparse": tf.SparseTensor([[0, 1], [2, 0]], int64s([8, 2]), [3, 2]),
        "dense": int64s([7, 7, 7]),
    }
    ids = layer(keys, training=True)
    assert ids["ragged"].to_list() == [[0], [], [2, 0]]
    assert tf.sparse.to_dense(ids["sparse"]).numpy().tolist() == [[0, 3], [0, 0], [2, 0]]
    assert ids["dense"].numpy().tolist() == [1, 1, 1]


def test_rows_of_evicted_keys_can_start_anew() -> None:
    table = tf.Variable(tf.ones([3, 2]))

    def reset(evicted: Any) -> None:
        table.scatter_nd_update(evicted.ids[:, tf.newaxis], tf.zeros([tf.size(evicted.ids), 2]))

    layer = DynamicVocabulary(2, eviction="rarest", on_evicted=reset)
    train = tf.function(lambda keys: layer(keys, training=True))
    train(int64s([4, 4, 5]))
    assert table.numpy().min() == 1
    assert train(int64s([6])).numpy().tolist() == [2]
    assert table.numpy().tolist() == [[1, 1], [1, 1], [0, 0]]


def make_model() -> tf_keras.Model:
    keys = tf_keras.Input([4], dtype=tf.int64)
    ids = DynamicVocabulary(50, min_count=2, eviction="oldest", name="vocabulary")(keys)
    rows = tf_keras.layers.Embedding(51, 3)(ids)
    return tf_keras.Model(keys, tf_keras.layers.Dense(1)(tf_keras.layers.Flatten()(rows)))


def trained_model() -> tf_keras.Model:
    model = make_model()
    model.compile(tf_keras.optimizers.legacy.SGD(0.1), "mse")
    rng = np.random.default_rng(0)
    keys = (rng.pareto(0.8, [96, 4]) * 20).astype(np.int64) * 10**9 - 5
    model.fit(keys, np.ones(96), batch_size=16, epochs=2, verbose=0)
    return model


def test_a_model_trains_and_evaluation_changes_nothing() -> None:
    model = trained_model()
    layer = model.get_layer("vocabulary")
    before = entries_of(layer)
    assert layer.step.numpy() == 12
    assert layer.vocabulary.size() == 50
    model.predict(np.arange(40).reshape(10, 4), verbose=0)
    model.evaluate(np.arange(40).reshape(10, 4), np.ones(10), verbose=0)
    assert entries_of(layer) == before


def by_weights(model: tf_keras.Model, path: Path) -> tf_keras.Model:
    model.save_weights(path)
    restored = make_model()
    restored.load_weights(path)
    return restored


def by_checkpoint(model: tf_keras.Model, path: Path) -> tf_keras.Model:
    saved = tf.train.Checkpoint(model=model).save(str(path))
    restored = make_model()
    tf.train.Checkpoint(model=restored).restore(saved).expect_partial()
    return restored


def by_file(model: tf_keras.Model, path: Path) -> tf_keras.Model:
    model.save(path)
    return tf_keras.models.load_model(path)


@pytest.mark.parametrize(
    ("way", "name"),
    [(by_weights, "model.weights.h5"), (by_weights, "weights"), (by_checkpoint, "checkpoint"), (by_file, "m.keras")],
)
def test_a_saved_model_knows_what_it_knew(way: Any, name: str, tmp_path: Path) -> None:
    model = trained_model()
    restored = way(model, tmp_path / name)
    assert entries_of(restored.get_layer("vocabulary")) == entries_of(model.get_layer("vocabulary"))
    assert restored.get_layer("vocabulary").step.numpy() == 12
    keys = model.get_layer("vocabulary").vocabulary.export().keys.numpy()[:40].reshape(10, 4)
    np.testing.assert_array_equal(restored.predict(keys, verbose=0), model.predict(keys, verbose=0))


def test_a_saved_model_serves(tmp_path: Path) -> None:
    model = trained_model()
    tf.saved_model.save(model, str(tmp_path))
    keys = model.get_layer("vocabulary").vocabulary.export().keys[:40]
    keys = tf.reshape(keys, [10, 4])
    np.testing.assert_allclose(tf.saved_model.load(str(tmp_path))(keys), model(keys), rtol=1e-6)


@pytest.mark.parametrize("keys", [tf.zeros([2]), tf.constant(["a"]), tf.ragged.constant([[1.5]])])
def test_keys_that_are_no_integers_are_refused(keys: Any) -> None:
    with pytest.raises(ArgumentError, match="expected int32 or int64"):
        DynamicVocabulary(4)(keys)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="max_keys is 0"):
        DynamicVocabulary(0)
    with pytest.raises(ArgumentError, match="eviction is 'lfu': expected one of"):
        DynamicVocabulary(4, eviction="lfu")


def learn(ranks: Ranks, directory: Path) -> list[list[int]]:
    """Runs on each rank, which sees its part of the keys of every step; parts are uneven, and some are empty."""
    layer = DynamicVocabulary(
        40, min_count=2, eviction="rarest", gather=lambda seen: ranks.allgather(seen, name="vocabulary")
    )
    train = tf.function(lambda keys: layer(keys, training=True), input_signature=[tf.TensorSpec([None], tf.int64)])
    for step in range(10):
        keys = (np.random.default_rng(step).pareto(0.7, 60) * 1e3).astype(np.int64) - 500
        cut = 60 if step == 4 else 7 * step % 50
        train(keys if ranks.size == 1 else [keys[:cut], keys[cut:]][ranks.rank])
    return entries_of(layer)


@pytest.mark.horovod
def test_two_ranks_learn_what_one_learns(tmp_path: Path) -> None:
    expected = learn(Ranks(0, 1), tmp_path)
    assert expected[1].count(0) != len(expected[1])
    assert run_on_ranks(learn, tmp_path, num_ranks=2) == [expected, expected]
