"""Tables on the host, with some rows cached, train as tables held whole: to the bit, on one rank and on two."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from rankhouse.training.checkpoint.checkpoint import load_checkpoint
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.errors import EmbeddingError, HostRowsError, OptimizerError
from rankhouse.training.optimizers.keras_optimizers import distributed_optimizer
from rankhouse.training.plan import Plan, TableSpec, place
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.specs import EmbeddingSpec
from tests.training.host_tables import (
    CACHED,
    NUM_SETTINGS,
    NUM_STEPS,
    SETTINGS,
    build,
    look_everywhere,
    same_tables,
    train_all,
)
from tests.training.launching import run_on_ranks

ALONE = Ranks(0, 1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("host_tables")


@pytest.fixture(scope="module")
def alone(directory: Path) -> dict[str, Any]:
    return train_all(ALONE, directory)


@pytest.fixture(scope="module")
def together(directory: Path) -> list[dict[str, Any]]:
    return run_on_ranks(train_all, directory, num_ranks=2)


def check(found: dict[str, Any], num_ranks: int) -> None:
    assert {name for name, same in found.items() if name != "stats" and same is not True} == set()
    assert sum(name.endswith(" steps") for name in found) == NUM_SETTINGS[num_ranks]
    for stats in found["stats"].values():
        assert min(stats["hits"], stats["written_back"]) > 0
        assert stats["misses"] > CACHED


def test_one_rank_trains_saves_and_loads_as_with_tables_held_whole(alone: dict[str, Any]) -> None:
    check(alone, 1)
    assert alone["stats"].keys() == {"whole", "taken", "rows", "columns"}


@pytest.mark.horovod
def test_two_ranks_do_too(together: list[dict[str, Any]]) -> None:
    for found in together:
        check(found, 2)


@pytest.mark.horovod
def test_what_two_ranks_saved_is_loaded_by_one(together: list[dict[str, Any]], directory: Path) -> None:
    states = []
    for name, cached in (("host", None), ("whole", 45)):
        states.append(build(ALONE, directory, SETTINGS["adagrad"], cached=cached, seed=6))
        load_checkpoint(directory / f"{name}-2" / f"step-{NUM_STEPS:08}", states[-1], ranks=ALONE)
    assert same_tables(*states)


def test_a_lookup_of_more_rows_than_are_cached_is_refused(directory: Path) -> None:
    state = build(ALONE, directory, SETTINGS["sgd"], cached=CACHED - 1)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=f"needs {CACHED} different .* cache_rows are {CACHED - 1}"
    ):
        look_everywhere(state.embedding, 0)


def test_an_id_that_is_no_row_brings_none(directory: Path) -> None:
    state = build(ALONE, directory, SETTINGS["sgd"], cached=CACHED)
    lengths = np.zeros([len(state.embedding.inputs), 1], np.int64)
    lengths[2] = 1
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"id 200 of input whole/sum is out of range"):
        state.embedding.lookup(tf.constant([200], tf.int64), tf.constant(lengths))
    assert state.embedding.host_stats()["whole"].misses == 0


def test_a_gradient_without_an_optimizer_that_knows_is_refused() -> None:
    table = TableSpec("a", 100, 4)
    placement = replace(place(table, "table_wise", num_ranks=1), device="host", cache_rows=10)
    layer = DistributedEmbedding([EmbeddingSpec(100, 4, "a")], plan=Plan((table,), (placement,), 1))
    with tf.GradientTape() as tape:
        rows = layer([tf.constant([3, 5])], training=True)[0]
    with pytest.raises(HostRowsError, match="table a lies in host memory"):
        tape.gradient(rows, layer.trainable_variables)


def keras_model(cached: int | None, optimizer: Any) -> tf_keras.Model:
    """A model with one table, on the host or not, and an optimizer of Keras."""
    table = TableSpec("a", 300, 4)
    placement = place(table, "table_wise", num_ranks=1)
    if cached:
        placement = replace(placement, device="host", cache_rows=cached)
    layer = DistributedEmbedding([EmbeddingSpec(300, 4, "a")], plan=Plan((table,), (placement,), 1), name="tables")
    ids = tf_keras.Input([2], dtype=tf.int64)
    model = tf_keras.Model(ids, tf.reduce_sum(layer([ids])[0], axis=1))
    model.compile(optimizer, "mse")
    return model


def test_keras_fits_evaluates_and_goes_on() -> None:
    """To rounding: TensorFlow's operations on vectors round a row by where it lies among those of the step."""
    models = [
        keras_model(cached, distributed_optimizer(tf_keras.optimizers.Adagrad(0.1), ranks=ALONE))
        for cached in (None, 50)
    ]
    generator = np.random.default_rng(3)
    ids, labels = generator.integers(0, 300, [80, 2]), generator.normal(size=80)
    for model in models:
        model.fit(ids, labels, batch_size=20, verbose=0, shuffle=False)
        model.predict(ids[::-1], batch_size=20, verbose=0)
        model.fit(ids, labels, batch_size=20, verbose=0, shuffle=False)
    whole, host = (model.get_layer("tables") for model in models)
    np.testing.assert_allclose(host.get_weights()[0], whole.get_weights()[0], rtol=1e-6)
    assert host.host_stats()["a"].written_back > 50


def test_keras_optimizers_that_would_forget_rows_are_refused() -> None:
    model = keras_model(5, "sgd")
    for optimizer in (tf_keras.optimizers.Adam(), tf_keras.optimizers.legacy.Adam(), tf_keras.optimizers.SGD(0.1, 0.9)):
        made = distributed_optimizer(optimizer, ranks=ALONE)
        with pytest.raises(
            OptimizerError, match=r"'a' lies in host memory, but Keras' .* moves all rows in every step"
        ):
            made.minimize(lambda: 0.0, model.trainable_variables)


def test_keras_does_not_save_a_cache_for_a_table(tmp_path: Path) -> None:
    model = keras_model(5, "sgd")
    for save in (
        lambda: model.save_weights(tmp_path / "model.weights.h5"),
        lambda: model.save_weights(tmp_path / "old.h5"),
        lambda: model.save_weights(tmp_path / "checkpoint"),
        lambda: model.save(tmp_path / "model.keras"),
        lambda: model.save(tmp_path / "saved_model"),
        lambda: tf.train.Checkpoint(model=model).write(str(tmp_path / "tensorflow")),
        model.get_weights,
    ):
        with pytest.raises(EmbeddingError, match="'a' of 'tables' lies in host memory or learns its keys"):
            save()
    assert model.get_layer("tables").get_weights()[0].shape == (300, 4)
