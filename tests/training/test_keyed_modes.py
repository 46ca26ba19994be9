"""Tables that learn their keys, in every parallel mode: one rank against three, evaluation and checkpoints."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from rankhouse.kernels.optimizer_settings import Momentum
from rankhouse.training.checkpoint.checkpoint import load_checkpoint
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.errors import CheckpointError, EmbeddingError
from rankhouse.training.optimizers.optimizers import Optimizer
from rankhouse.training.plan import Plan, TableSpec, place
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.keyed_tables import KeyedRows
from rankhouse.training.tables.specs import EmbeddingSpec, Input, VocabularySettings
from tests.training.keyed_modes import CAPACITY, NUM_STEPS, SAME_ORDER, Model, train_all
from tests.training.launching import run_on_ranks

ALONE = Ranks(0, 1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keyed")


@pytest.fixture(scope="module")
def alone(directory: Path) -> dict[str, Any]:
    return train_all(ALONE, directory)


@pytest.fixture(scope="module")
def together(directory: Path, alone: dict[str, Any]) -> list[dict[str, Any]]:
    return run_on_ranks(train_all, directory, num_ranks=3)


def found(directory: Path, num_ranks: int) -> Iterator[tuple[str, Any, list[Any]]]:
    """Yields what one rank and N ranks found: (name, array, arrays by rank)."""
    one = np.load(directory / "keyed-1-0.npz")
    many = [np.load(directory / f"keyed-{num_ranks}-{rank}.npz") for rank in range(num_ranks)]
    for name in one.files:
        yield name, one[name], [arrays[name] for arrays in many]


@pytest.mark.horovod
def test_n_ranks_learn_the_keys_and_rows_of_one(together: list[dict[str, Any]], directory: Path) -> None:
    """Also when they go on from its checkpoint. To the bit where their owner adds up the gradients of a batch."""
    for name, expected, parts in found(directory, len(together)):
        if name.startswith("output/"):
            assert np.array_equal(np.concatenate(parts), expected), name
            continue
        if name.startswith("evaluation/"):
            np.testing.assert_allclose(np.concatenate(parts), expected, rtol=1e-4, atol=1e-5, err_msg=name)
            continue
        stage, table, array = name.split("/")
        assert all(np.array_equal(part, parts[0]) for part in parts), name
        if array == "keys" or stage == "loaded" or table in SAME_ORDER:
            assert np.array_equal(parts[0], expected), name
        else:
            np.testing.assert_allclose(parts[0], expected, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.horovod
def test_evaluation_learns_nothing_and_weights_come_back(together: list[dict[str, Any]], directory: Path) -> None:
    assert {answer["learnt_in_evaluation"] for answer in together} == {False}
    assert {answer["num_lookups"] for answer in together} == {NUM_STEPS + 1}
    for rank in range(len(together)):
        arrays = np.load(directory / f"keyed-{len(together)}-{rank}.npz")
        for name in (name for name in arrays.files if name.startswith("after/")):
            assert np.array_equal(arrays[name], arrays[name.replace("after", "set", 1)]), name


@pytest.mark.horovod
def test_one_rank_goes_on_from_a_checkpoint_of_many(together: list[dict[str, Any]], directory: Path) -> None:
    model = Model(ALONE)
    load_checkpoint(directory / f"saved-{len(together)}" / f"step-{NUM_STEPS:08d}", model.state, ranks=ALONE)
    arrays = np.load(directory / f"keyed-{len(together)}-0.npz")
    assert all(np.array_equal(table, arrays[f"after/{name}"]) for name, table in model.tables().items())
    model.train(NUM_STEPS, NUM_STEPS + 1)
    for name, table in model.tables().items():
        np.testing.assert_allclose(table, arrays[f"later/{name}"], rtol=1e-4, atol=1e-5, err_msg=name)


def one_table(mode: Any = "table_wise", *, rows: int = 4, plan: dict[str, Any] | None = None, **settings: Any) -> Any:
    """A layer of one table, looked up by pooled bags and by single keys, and a step of Momentum."""
    table = TableSpec("a", rows, 2)
    where = Plan((table,), (place(table, mode, num_ranks=1, **(plan or {})),), 1)
    spec = EmbeddingSpec(rows, 2, "a", vocabulary=VocabularySettings(**settings))
    layer = DistributedEmbedding([spec], inputs=[Input("x", "a"), Input("y", "a", None)], plan=where, seed=1)
    optimizer = Optimizer(Momentum(momentum=0.5), tables=[shard.variable for shard in layer.shards], learning_rate=0.1)

    def step(*keys: int) -> np.ndarray:
        with tf.GradientTape() as tape:
            pooled, single = layer([tf.constant(keys)[:, tf.newaxis], tf.constant(keys)], training=True)
            loss = tf.reduce_sum(pooled) + tf.reduce_sum(single)
        variables = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return np.array(single)

    return layer, step, optimizer


@pytest.mark.parametrize(
    ("mode", "plan"), [("data_parallel", {}), ("column_wise", {"num_slices": 2}), ("row_wise", {})]
)
def test_all_modes_learn_the_same(mode: Any, plan: dict[str, Any]) -> None:
    (layer, step, _), (other, other_step, _) = one_table(), one_table(mode, plan=plan)
    for keys in ((5, -1), (7, 5), (2**62, -1)):
        assert np.array_equal(step(*keys), other_step(*keys))
    (expected,), (table,) = layer.get_weights(), other.get_weights()
    assert table.keys.tolist() == expected.keys.tolist() == [-1, 5, 7, 2**62]
    assert np.array_equal(table.rows, expected.rows)


def test_a_row_that_another_key_gets_starts_anew_with_its_slots() -> None:
    layer, step, optimizer = one_table(rows=2, when_full="oldest")
    first = step(1, 2)
    step(2)
    step(3, 2)  # 1 goes.
    (table,) = layer.get_weights()
    assert table.keys.tolist() == [2, 3]
    fresh_layer, fresh_step, _ = one_table(rows=2)
    initial = fresh_step(3, 1)
    # One step of momentum from its own initial value: nothing is left of the key before it.
    np.testing.assert_allclose(table.rows[1], fresh_layer.get_weights()[0].rows[1], rtol=1e-6)
    assert np.array_equal(initial[1], first[0])
    momentum = optimizer.slots(layer.shards[0].variable)["momentum"].numpy()
    assert sorted(momentum[:, 0].tolist()) == pytest.approx([-0.35, -0.2])


def test_steps_in_one_function_are_those_of_functions_of_their_own() -> None:
    batches = [[1, 2], [3, 4], [5, 6], [1, 3]]
    tables = []
    for calls in ([batches], [[batch] for batch in batches]):
        layer, _, optimizer = one_table(rows=2, when_full="oldest")
        variables = layer.trainable_variables
        for call in calls:
            train = tf.function(partial(several_steps, layer, optimizer, variables), autograph=False)
            train(tf.constant(call, tf.int64))
        tables += layer.get_weights()
    assert tables[0].keys.tolist() == tables[1].keys.tolist() == [1, 3]
    np.testing.assert_allclose(tables[0].rows, tables[1].rows, rtol=1e-4)


def several_steps(layer: Any, optimizer: Optimizer, variables: list[tf.Variable], batches: tf.Tensor) -> None:
    for keys in tf.unstack(batches):
        with tf.GradientTape() as tape:
            _, single = layer([keys[:, tf.newaxis], keys], training=True)
            # A step that lasts longer than it takes to learn the keys of the next one.
            long = tf.fill([1000, 1000], tf.stop_gradient(tf.reduce_sum(single)))
            loss = tf.reduce_sum(single) * tf.reduce_mean(long @ long)
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))


def test_a_key_gets_a_row_when_it_was_seen_often_enough() -> None:
    layer, step, _ = one_table(min_steps=2)
    assert not step(4, 4, 4).any()
    assert not layer([tf.constant([[4]]), tf.constant([4])], training=False)[1].numpy().any()
    assert step(4, 9)[0].any()
    assert layer.get_weights()[0].keys.tolist() == [4]


def test_a_full_table_says_so_or_has_new_keys_stay_unknown() -> None:
    _, step, _ = one_table(rows=2)
    step(1, 2)
    message = "table a: all 2 rows of this rank are taken, and there is none for the key 3; make input_dim larger"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        step(3, 4)
    layer, _, _ = one_table(rows=2)
    inputs = [tf_keras.Input([1], dtype="int64"), tf_keras.Input([], dtype="int64")]
    model = tf_keras.Model(inputs, layer(inputs)[1])
    model.compile("sgd", "mse")
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        model.fit([np.array([[1], [2], [3]]), np.array([1, 2, 3])], np.zeros([3, 2]), verbose=0)
    assert message in str(caught.value).splitlines()[-2]  # Below the trace of the graph; the last line names the node.
    layer, step, _ = one_table(rows=2, when_full="unknown")
    step(1, 2)
    assert not step(3, 4).any()
    assert layer.get_weights()[0].keys.tolist() == [1, 2]


def test_a_layer_comes_back_from_its_configuration() -> None:
    layer, _, _ = one_table(min_steps=3, when_full="rarest")
    again = DistributedEmbedding.from_config(layer.get_config())
    assert again.specs[0].vocabulary == VocabularySettings(min_steps=3, when_full="rarest")


def test_what_tensorflow_saves_has_the_keys_and_what_keras_would_leave_out_is_refused(tmp_path: Path) -> None:
    layer, step, _ = one_table()
    step(5, -7)
    other, other_step, _ = one_table()
    other_step(1, 2)
    tf.train.Checkpoint(layer=other).restore(tf.train.Checkpoint(layer=layer).write(str(tmp_path / "saved")))
    for found, expected in zip(other.get_weights()[0], layer.get_weights()[0], strict=True):
        assert np.array_equal(found, expected)
    with pytest.raises(EmbeddingError, match="lies in host memory or learns its keys, which Keras"):
        layer.save_own_variables({})
    with pytest.raises(EmbeddingError, match="or what this layer's get_weights returns"):
        tf_keras.backend.batch_get_value(layer.weights)  # As for HDF5 files, and for a model's `get_weights`.
    with pytest.raises(EmbeddingError, match=r"a plain model \(save_standalone\)"):
        tf.saved_model.save(layer, str(tmp_path / "saved_model"))


def test_refuses_what_a_vocabulary_cannot_do() -> None:
    for settings, message in [
        ({"when_full": "random"}, "when_full = 'random'; expected one of error, unknown, oldest, rarest"),
        ({"min_steps": 0}, "min_steps = 0; expected an integer, at least 1"),
    ]:
        with pytest.raises(EmbeddingError, match=message):
            VocabularySettings(**settings)
    with pytest.raises(EmbeddingError, match="table 'a' has a vocabulary, so its rows are drawn by key"):
        EmbeddingSpec(4, 2, "a", embeddings_initializer="orthogonal", vocabulary=VocabularySettings())
    mapping = {"input_dim": 4, "output_dim": 2, "name": "a", "vocabulary": {"min_count": 2}}
    with pytest.raises(EmbeddingError, match="unknown key 'min_count' in the vocabulary of table 'a'; did you mean"):
        DistributedEmbedding([mapping])


def test_refuses_weights_that_are_no_keys_with_rows() -> None:
    layer, step, _ = one_table(rows=2)
    step(1, 2)
    for wrong, message in [
        (np.zeros((2, 2)), r"its weights are KeyedRows\(keys, rows\)"),
        (KeyedRows(np.array([1]), np.zeros((2, 2), np.float32)), r"keys of shape \(1,\) and rows of shape \(2, 2\)"),
        ((np.array([7, 7]), np.zeros((2, 2))), "key 7 comes twice"),
        ((np.arange(3), np.zeros((3, 2))), "table 'a': 3 keys fall to the 2 rows that rank 0 has"),
    ]:
        with pytest.raises(EmbeddingError, match=message):
            layer.set_weights([wrong])
    assert layer.get_weights()[0].keys.tolist() == [1, 2]


def test_refuses_a_checkpoint_with_more_keys_than_rows(alone: dict[str, Any], directory: Path) -> None:
    model = Model(ALONE, capacity=40)
    with pytest.raises(CheckpointError, match=r"table 'more': \d+ keys fall to the 40 rows that rank 0 has"):
        load_checkpoint(directory / "saved-1" / f"step-{NUM_STEPS:08d}", model.state, ranks=ALONE)
    assert CAPACITY > 40
