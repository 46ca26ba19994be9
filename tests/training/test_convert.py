"""Keras models whose embedding layers are spread over the ranks: equal answers, equal training, and back again."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from rankhouse.training.convert import distributed_model, placeholder_tables, save_standalone
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.errors import EmbeddingError, OptimizerError
from rankhouse.training.optimizers.keras_optimizers import distributed_optimizer
from rankhouse.training.plan import Plan, TableSpec, place
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.keyed_layer import KeyedEmbedding
from rankhouse.training.tables.specs import VocabularySettings
from tests.training.launching import run_on_ranks

NUM_SAMPLES = 12


def make() -> tf_keras.Model:
    """A shared table, ids that are computed, three dimensions of ids, and an input that no table reads."""
    item = tf_keras.Input((), dtype="int64", name="item")
    seen = tf_keras.Input((3,), dtype="int32", name="seen")
    grid = tf_keras.Input((2, 2), dtype="int32", name="grid")
    price = tf_keras.Input((2,), name="price")
    items, shops = tf_keras.layers.Embedding(10, 4, name="items"), tf_keras.layers.Embedding(7, 3, name="shops")
    rows = [items(item), tf.reduce_sum(items(seen), 1), tf.reduce_mean(shops(tf.math.floormod(seen, 7)), 1)]
    rows += [tf.reduce_max(shops(grid), [1, 2]), price]
    hidden = tf_keras.layers.Dense(5, activation="relu")(tf.concat(rows, 1))
    return tf_keras.Model([item, seen, grid, price], tf_keras.layers.Dense(1)(hidden), name="clicks")


def samples(number: int = NUM_SAMPLES) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    rng = np.random.default_rng(1)
    inputs = (
        rng.integers(10, size=number),
        rng.integers(10, size=(number, 3)).astype(np.int32),
        rng.integers(7, size=(number, 2, 2)).astype(np.int32),
        rng.normal(size=(number, 2)).astype(np.float32),
    )
    return inputs, rng.normal(size=(number, 1)).astype(np.float32)


def test_the_same_scores_and_nothing_left_of_keras_tables() -> None:
    model = make()
    inputs, _ = samples()
    converted = distributed_model(model)
    np.testing.assert_allclose(converted(inputs), model(inputs), rtol=1e-6)
    assert [layer for layer in converted.submodules if isinstance(layer, tf_keras.layers.Embedding)] == []
    assert sum(isinstance(layer, DistributedEmbedding) for layer in converted.layers) == 1
    assert converted.count_params() == model.count_params()


def test_a_sequential_model() -> None:
    no_op = tf_keras.regularizers.L2(0.0)  # DeepCTR makes such ones.
    table = tf_keras.layers.Embedding(9, 2, embeddings_regularizer=no_op, input_shape=(4,))
    layers = [table, tf_keras.layers.Flatten(), tf_keras.layers.Dense(1)]
    model = tf_keras.Sequential(layers)
    ids = np.arange(8).reshape(2, 4)
    np.testing.assert_allclose(distributed_model(model)(ids), model(ids), rtol=1e-6)


def test_rows_and_inputs_that_are_outputs_themselves() -> None:
    ids = tf_keras.Input((2,), dtype="int64")
    rows = tf_keras.layers.Embedding(9, 2, name="a")(ids)
    other = tf_keras.layers.Embedding(9, 3, name="b")(ids)
    model = tf_keras.Model(ids, [rows, ids, tf.reduce_sum(other, 1)])
    values = np.arange(8).reshape(4, 2)
    for found, expected in zip(distributed_model(model)(values), model(values), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    only = tf_keras.Model(ids, rows)
    np.testing.assert_array_equal(distributed_model(only)(values), only(values))


def test_it_learns_what_keras_learns_and_is_saved_as_a_keras_model(tmp_path: Path) -> None:
    inputs, labels = samples()
    model, reference = make(), make()
    reference.set_weights(model.get_weights())
    converted = distributed_model(model)
    for candidate in (converted, reference):
        candidate.compile(tf_keras.optimizers.legacy.Adagrad(0.1), "mse")
        candidate.fit(inputs, labels, batch_size=4, epochs=3, shuffle=False, verbose=0)
    np.testing.assert_allclose(converted(inputs), reference(inputs), rtol=1e-5, atol=1e-6)
    save_standalone(converted, tmp_path / "saved")
    saved = tf_keras.models.load_model(tmp_path / "saved", compile=False)
    np.testing.assert_allclose(saved(inputs), converted(inputs), rtol=1e-5, atol=1e-6)
    assert {type(layer).__module__.split(".")[0] for layer in saved.layers} == {"tf_keras"}


def make_keyed() -> tf_keras.Model:
    """A shared table of any keys beside one of ids."""
    user = tf_keras.Input((), dtype="int64", name="user")
    seen = tf_keras.Input((3,), dtype="int64", name="seen")
    shop = tf_keras.Input((), dtype="int32", name="shop")
    users = KeyedEmbedding(60, 4, name="users")
    rows = [users(user), tf.reduce_sum(users(seen), 1), tf_keras.layers.Embedding(7, 3, name="shops")(shop)]
    return tf_keras.Model([user, seen, shop], tf_keras.layers.Dense(1)(tf.concat(rows, 1)), name="visits")


def keyed_samples() -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    rng = np.random.default_rng(2)
    keys = rng.integers(-(2**63), 2**63 - 1, 20)
    keys[0] = -1
    inputs = (
        keys[rng.integers(20, size=NUM_SAMPLES)],
        keys[rng.integers(20, size=(NUM_SAMPLES, 3))],
        rng.integers(7, size=NUM_SAMPLES).astype(np.int32),
    )
    return inputs, rng.normal(size=(NUM_SAMPLES, 1)).astype(np.float32)


def learn_keys(ranks: Ranks, directory: Path) -> dict[str, float]:
    """Returns by how much a model whose table learns keys on these ranks differs from one of one rank, and saved."""
    inputs, labels = keyed_samples()
    models, tables = [], [TableSpec("users", 60, 4), TableSpec("shops", 7, 3)]
    for own in (Ranks(0, 1), ranks):
        original, rng = make_keyed(), np.random.default_rng(4)
        original.set_weights([rng.normal(size=array.shape) for array in original.get_weights()])
        placements = [place(table, "row_wise", num_ranks=own.size) for table in tables]
        plan = Plan(tuple(tables), tuple(placements), own.size)
        model = distributed_model(original, ranks=own, plan=plan, seed=3)
        model.compile(distributed_optimizer(tf_keras.optimizers.Adagrad(0.1), ranks=own), "mse")
        parts = [
            array.reshape(-1, own.size, 4 // own.size, *array.shape[1:])[:, own.rank] for array in (*inputs, labels)
        ]
        *xs, ys = [part.reshape(-1, *part.shape[2:]) for part in parts]
        model.fit(tuple(xs), ys, batch_size=4 // own.size, epochs=2, shuffle=False, verbose=0)
        models.append(model)
    reference, model = models
    new = (np.array([5, -1]), np.array([[6, 7, 8], inputs[1][0]]), np.array([1, 2], np.int32))
    found = model(new)
    model.evaluate(new, np.zeros((2, 1)), verbose=0)
    differences = {"outputs": np.abs(model(inputs) - reference(inputs)).max(), "new": np.abs(found - model(new)).max()}
    for name in ("saved", "saved.keras"):
        save_standalone(model, directory / name)
        saved = tf_keras.models.load_model(directory / name, compile=False)
        differences[name] = np.abs(saved(new) - found).max()
    return {name: float(difference) for name, difference in differences.items()}


def test_a_table_learns_its_keys_and_is_saved_with_them(tmp_path: Path) -> None:
    assert max(learn_keys(Ranks(0, 1), tmp_path).values()) < 2e-6


def test_a_table_that_learns_keys_is_no_layer_of_its_own(tmp_path: Path) -> None:
    inputs, _ = keyed_samples()
    model = make_keyed()
    with pytest.raises(tf.errors.InvalidArgumentError, match="users holds no table: give its model to distributed_mo"):
        model(inputs)
    assert tf_keras.Model.from_config(model.get_config()).get_layer("users").vocabulary_settings == VocabularySettings()
    converted = distributed_model(model)
    with pytest.raises(EmbeddingError, match=r"Keras leaves keys out of \.h5 files; take \.keras, or a folder"):
        save_standalone(converted, tmp_path / "saved.h5")
    save_standalone(converted, tmp_path / "empty")
    saved = tf_keras.models.load_model(tmp_path / "empty", compile=False)
    np.testing.assert_allclose(saved(inputs), converted(inputs), rtol=1e-6, atol=1e-7)


def optimizers() -> dict[str, tf_keras.optimizers.Optimizer]:
    rate = tf_keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    return {
        "amsgrad": tf_keras.optimizers.Adam(0.05, amsgrad=True),
        "centered": tf_keras.optimizers.legacy.RMSprop(0.05, centered=True),
        "schedule": tf_keras.optimizers.Adagrad(rate),
    }


def learn_on_ranks(ranks: Ranks, directory: Path) -> dict[str, float]:
    """Returns by how much models of several ranks and of one differ, after some steps of each optimizer."""
    inputs, labels = samples()
    differences = {}
    for name, optimizer in optimizers().items():
        tf_keras.utils.set_random_seed(1)  # The same on all ranks, for the reference.
        reference = make()
        tf_keras.utils.set_random_seed(1 + ranks.rank)
        model = make()
        if ranks.rank == 0:
            model.set_weights(reference.get_weights())
        tables = [TableSpec("items", 10, 4), TableSpec("shops", 7, 3)]
        placements = (
            place(tables[0], "row_wise", num_ranks=ranks.size),
            place(tables[1], "data_parallel", num_ranks=2),
        )
        converted = distributed_model(model, ranks=ranks, plan=Plan(tuple(tables), placements, ranks.size))
        reference.compile(optimizers()[name], "mse")
        converted.compile(distributed_optimizer(optimizer, ranks=ranks), "mse")
        reference.fit(inputs, labels, batch_size=4, epochs=2, shuffle=False, verbose=0)
        own = [array.reshape(-1, ranks.size, 2, *array.shape[1:])[:, ranks.rank] for array in (*inputs, labels)]
        *own_inputs, own_labels = [array.reshape(-1, *array.shape[2:]) for array in own]
        converted.fit(tuple(own_inputs), own_labels, batch_size=2, epochs=2, shuffle=False, verbose=0)
        differences[name] = float(np.abs(converted(inputs) - reference(inputs)).max())
    save_standalone(converted, directory / "saved")
    saved = tf_keras.models.load_model(directory / "saved", compile=False)
    differences["saved"] = float(np.abs(saved(inputs) - converted(inputs)).max())
    return differences | {f"keyed {name}": value for name, value in learn_keys(ranks, directory / "keyed").items()}


@pytest.mark.horovod
def test_two_ranks_learn_what_keras_learns_on_one_device(tmp_path: Path) -> None:
    for differences in run_on_ranks(learn_on_ranks, tmp_path, num_ranks=2):
        assert {*optimizers(), "saved", "keyed outputs"} < set(differences)
        assert max(differences.values()) < 2e-5, differences


def test_rows_of_16_bits_stay_so(tmp_path: Path) -> None:
    ids = tf_keras.Input((2,), dtype="int64")
    tables = [
        tf_keras.layers.Embedding(9, 3, name=dtype, dtype=dtype) for dtype in ("bfloat16", "mixed_bfloat16", "float16")
    ]
    rows = [tf.cast(table(ids), tf.float32) for table in tables]
    model = tf_keras.Model(ids, tf_keras.layers.Dense(1)(tf.concat([*rows, rows[0] ** 2], 2)))
    converted = distributed_model(model)
    held = {
        variable.name.split("/")[-1]: variable.dtype for variable in converted.weights if "kernel" not in variable.name
    }
    assert (held["bfloat16:0"], held["mixed_bfloat16:0"], held["float16:0"]) == (tf.bfloat16, tf.float32, tf.float16)
    batch = np.arange(8).reshape(4, 2)
    assert np.array_equal(converted.predict(batch, verbose=0), model.predict(batch, verbose=0))
    save_standalone(converted, tmp_path / "folder")
    alone = tf_keras.models.load_model(tmp_path / "folder", compile=False)
    assert np.array_equal(alone.predict(batch, verbose=0), model.predict(batch, verbose=0))
    with pytest.raises(EmbeddingError, match=r"no bfloat16 into \.keras and \.h5 files; take a folder"):
        save_standalone(converted, tmp_path / "model.keras")
    converted.compile(distributed_optimizer(tf_keras.optimizers.Adam()), "mse")
    with pytest.raises(OptimizerError, match=r"held as bfloat16, where Keras.* Adam would round to the nearest"):
        converted.fit(batch, np.ones((4, 2, 1)), verbose=0)


def test_placeholders_take_one_row_and_become_whole_tables() -> None:
    with placeholder_tables():
        model = make()
    assert [layer.embeddings.shape[0] for layer in model.layers if isinstance(layer, tf_keras.layers.Embedding)] == [
        1,
        1,
    ]
    first, second = distributed_model(model, seed=3), distributed_model(model, seed=3)
    inputs, _ = samples()
    np.testing.assert_array_equal(first(inputs), second(inputs))
    assert len(np.unique(first.get_layer("clicks_tables").get_weights()[0])) > 30
    assert tf_keras.layers.Embedding(5, 2)(np.array([4])).shape == (1, 2)


def test_a_placeholder_of_one_row_is_one() -> None:
    layers = [tf_keras.layers.Embedding(1, 8, input_shape=(1,))]
    with placeholder_tables():
        model = tf_keras.Sequential(layers)
    assert np.all(distributed_model(model).layers[-1].get_weights()[0] != 0)


def test_the_guide_runs_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = Path(__file__).parents[2] / "docs/moving_from_openembedding_and_hybridbackend.md"
    script, keyed = re.findall(r"```python\n(.*?)```", guide.read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(script, str(guide), "exec"), names)
    assert (tmp_path / "saved_model" / "saved_model.pb").is_file()
    exec(compile(keyed, str(guide), "exec"), names)
    model = distributed_model(tf_keras.Model(names["keys"], tf.reduce_sum(names["rows"], [1, 2])))
    model.compile(distributed_optimizer(tf_keras.optimizers.Adam(), ranks=Ranks(0, 1)), "mse")
    model.fit(np.array([[5, 2**62 + 1, 5], [-1, 2**62, 7]]), np.zeros(2), verbose=0)
    (table,) = model.get_layer(f"{model.name.removeprefix('distributed_')}_tables").get_weights()
    assert table.keys.tolist() == [-1, 5, 7, 2**62, 2**62 + 1]


def test_what_cannot_be_saved_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    model = distributed_model(tf_keras.Sequential([tf_keras.layers.Embedding(3, 2, input_shape=(1,))]))
    with pytest.raises(EmbeddingError, match=r"rank 0 could not save model .*; give a path that it can write"):
        save_standalone(model, tmp_path / "file" / "model.keras")


def test_what_cannot_be_spread_is_told() -> None:
    dense = tf_keras.Sequential([tf_keras.layers.Dense(1, input_shape=(2,))])
    with pytest.raises(EmbeddingError, match=r"has no tf_keras\.layers\.Embedding"):
        distributed_model(dense)
    with pytest.raises(EmbeddingError, match=r"keys of the layer .* are float32, which .* give the model an input of"):
        distributed_model(tf_keras.Sequential([KeyedEmbedding(3, 2, input_shape=(1,))]))
    with pytest.raises(EmbeddingError, match="neither functional nor a sequential one with an input shape"):
        distributed_model(tf_keras.Sequential([tf_keras.layers.Dense(1)]))
    inner = tf_keras.Sequential([tf_keras.layers.Embedding(3, 2, input_shape=(1,))], name="inner")
    outer = tf_keras.Sequential([inner, tf_keras.layers.Dense(1)])
    with pytest.raises(EmbeddingError, match="has the model 'inner' in it, with embedding layers of its own"):
        distributed_model(outer)
    masked = tf_keras.Sequential([tf_keras.layers.Embedding(3, 2, mask_zero=True, input_shape=(1,))])
    with pytest.raises(EmbeddingError, match="mask_zero"):
        distributed_model(masked)
    ids = tf_keras.Input((1,), dtype="int64")
    best = tf.argmax(tf_keras.layers.Embedding(3, 5, name="users")(ids), axis=2)
    chained = tf_keras.Model(ids, tf_keras.layers.Embedding(5, 2, name="groups")(best))
    with pytest.raises(EmbeddingError, match=r"computes ids of 'groups' from rows of 'users'.*two Dis"):
        distributed_model(chained)
    with pytest.raises(EmbeddingError, match="was not made by distributed_model"):
        save_standalone(dense, "nowhere")
