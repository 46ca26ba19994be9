"""A table whose rows come and go, step by step, against the same table held whole."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from rankhouse.kernels import tf_ops
from rankhouse.kernels.bags import FixedHotness
from rankhouse.kernels.optimizer_settings import Adagrad, Adam, Momentum
from rankhouse.training.errors import HostRowsError, OptimizerError
from rankhouse.training.optimizers.optimizers import Optimizer
from rankhouse.training.tables.host_rows import HostRows, check_gradient, host_rows_of
from rankhouse.training.tables.host_rows_arrays import make_array
from rankhouse.training.tables.variable_rows import read_rows, read_rows_at, write_rows, write_rows_at

NUM_ROWS, CACHED, DIM, FIRST = 400, 60, 4, 1000
INITIAL = np.random.default_rng(5).normal(size=(NUM_ROWS, DIM)).astype(np.float32)


def host_table(folder: Path | None = None) -> HostRows:
    variable = tf.Variable(tf.zeros([CACHED, DIM]))
    rows = HostRows("t", variable, num_rows=NUM_ROWS, first_row=FIRST, folder=folder)
    write_rows(variable, 0, INITIAL)
    return rows


def look_up(table: tf.Variable, rows: tf.Tensor) -> tf.Tensor:
    return tf_ops.pooled_lookup([table], rows, FixedHotness((1,)), feature_tables=[0], combiners=["sum"])


def step(table: tf.Variable, optimizer: Optimizer, ids: tf.Tensor) -> None:
    """Looks rows up in two lookups, of which the second needs the room of what the first has brought, and updates."""
    host_rows = host_rows_of(table)
    with tf.GradientTape() as tape:
        loss = 0.0
        for part in tf.split(ids, 2):
            rows = part - FIRST if host_rows is None else host_rows.rows(part, training=True)
            loss += tf.reduce_sum((look_up(table, rows) - 0.1) ** 2)
    gradient = tape.gradient(loss, table)
    gradient = tf_ops.combine_duplicates(gradient, table.shape[0])
    optimizer.apply_gradients([(gradient, table)])


def batches(num: int) -> Iterator[tf.Tensor]:
    """Two steps' ids at once, int64 [2, 40]: some of the same few rows, others of all."""
    generator = np.random.default_rng(2)
    for _ in range(num):
        few, all_rows = generator.integers(0, 30, [2, 20]), generator.integers(0, NUM_ROWS, [2, 20])
        yield tf.constant(FIRST + np.concatenate([few, all_rows], axis=1))


@pytest.mark.parametrize("in_a_file", [False, True])
def test_two_steps_in_one_function_have_the_bits_of_a_table_held_whole(tmp_path: Path, in_a_file: bool) -> None:
    host = host_table(tmp_path if in_a_file else None)
    cached, whole = host._arrays[0].variable, tf.Variable(INITIAL)
    optimizers = [Optimizer(Adagrad(), tables=[table], learning_rate=0.1) for table in (cached, whole)]

    @tf.function(input_signature=[tf.TensorSpec([2, 40], tf.int64)], autograph=False)
    def both(ids: tf.Tensor) -> None:
        for table, optimizer in zip((cached, whole), optimizers, strict=True):
            for number in range(2):
                step(table, optimizer, ids[number])

    for ids in batches(10):
        both(ids)
    assert host.stats.misses > NUM_ROWS
    assert host.stats.written_back == host.stats.misses - CACHED
    assert host.stats.hits + host.stats.misses == 10 * 2 * 40
    slots = [
        optimizer.slots(table)["accumulator"] for optimizer, table in zip(optimizers, (cached, whole), strict=True)
    ]
    stamps = [optimizer.touched_steps(table) for optimizer, table in zip(optimizers, (cached, whole), strict=True)]
    for mine, other in ((cached, whole), slots, stamps):
        assert np.array_equal(read_rows(mine, 0, NUM_ROWS), other.numpy())
        some = np.array([NUM_ROWS - 1, 0, 17])
        assert np.array_equal(read_rows_at(mine, some), other.numpy()[some])
    assert list(tmp_path.iterdir()) == []  # files have no names, and are gone with the process


def test_rows_come_after_the_update_before_and_before_their_lookup() -> None:
    """By control dependencies, not by chance: whatever runs side by side, one can only come after the other."""
    host = host_table()
    table = host._arrays[0].variable
    optimizer = Optimizer(Adagrad(), tables=[table], learning_rate=0.1)

    @tf.function(input_signature=[tf.TensorSpec([2, 40], tf.int64)], autograph=False)
    def two_steps(ids: tf.Tensor) -> None:
        for number in range(2):
            step(table, optimizer, ids[number])

    operations = two_steps.get_concrete_function().graph.get_operations()
    order = {"EagerPyFunc", "RankhousePooledLookup", "RankhouseApply"}
    on_table = [operation for operation in operations if operation.type in order]
    kinds = [operation.type for operation in on_table]
    one_step = ["EagerPyFunc", "RankhousePooledLookup"] * 2 + ["EagerPyFunc", "RankhouseApply"]
    assert kinds == 2 * one_step
    for before, after in pairwise(on_table):
        if (before.type, after.type) != ("RankhousePooledLookup", "RankhousePooledLookup"):
            assert before in needed_by(after)


def needed_by(operation: Any) -> set[Any]:
    """All operations that come before one, whatever TensorFlow does."""
    found: set[Any] = set()
    left = [operation]
    while left:
        here = left.pop()
        for before in [*here.control_inputs, *(tensor.op for tensor in here.inputs)]:
            if before not in found:
                found.add(before)
                left.append(before)
    return found


def test_rows_that_are_overwritten_are_so_in_the_cache_too() -> None:
    host = host_table()
    table = host._arrays[0].variable
    ids = tf.constant([FIRST, FIRST + 7, FIRST + NUM_ROWS - 1], tf.int64)
    assert np.array_equal(look_up(table, host.rows(ids, training=False)), INITIAL[ids.numpy() - FIRST])
    write_rows(table, 0, -INITIAL)
    assert np.array_equal(look_up(table, host.rows(ids, training=False)), -INITIAL[ids.numpy() - FIRST])
    assert (host.stats.hits, host.stats.misses, host.stats.written_back) == (3, 3, 0)
    write_rows_at(table, np.array([NUM_ROWS - 1, 5]), np.full([2, DIM], 9, np.float32))
    assert np.array_equal(look_up(table, host.rows(ids, training=False))[:, 0], [-INITIAL[0, 0], -INITIAL[7, 0], 9])
    assert np.flatnonzero((read_rows(table, 0, NUM_ROWS) == 9).all(axis=1)).tolist() == [5, NUM_ROWS - 1]


def test_saving_between_a_lookup_and_its_update_loses_nothing() -> None:
    host = host_table()
    table = host._arrays[0].variable
    optimizer = Optimizer(Adagrad(), tables=[table], learning_rate=0.1)
    for _ in range(2):
        rows = host.rows(tf.constant([FIRST + 3], tf.int64), training=True)
        before = read_rows(table, 0, NUM_ROWS)
        optimizer.apply_gradients([(tf.IndexedSlices(tf.ones([1, DIM]), rows), table)])
        assert np.flatnonzero((read_rows(table, 0, NUM_ROWS) != before).any(axis=1)).tolist() == [3]


def test_too_many_rows_at_once_are_refused_with_both_numbers() -> None:
    host = host_table()
    ids = tf.range(FIRST, FIRST + CACHED + 1, dtype=tf.int64)
    expected = f"needs {CACHED + 1} different rows of table t at once, but its cache_rows are {CACHED}; set cache_rows"
    for look in (host.rows, tf.function(host.rows, autograph=False)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=expected):
            look(ids, training=True)


def test_an_update_of_rows_that_were_looked_up_without_training_is_refused() -> None:
    host = host_table()
    table = host._arrays[0].variable
    optimizer = Optimizer(Adagrad(), tables=[table], learning_rate=0.1)
    rows = host.rows(tf.constant([FIRST], tf.int64), training=False)
    with pytest.raises(tf.errors.InvalidArgumentError, match="look them up with training=True"):
        optimizer.apply_gradients([(tf.IndexedSlices(tf.ones([1, DIM]), rows), table)])
    assert np.array_equal(read_rows(table, 0, NUM_ROWS), INITIAL)


def test_optimizers_that_would_forget_rows_are_refused() -> None:
    host = host_table()
    table = host._arrays[0].variable
    for settings in (Adam(kind="exact"), Momentum(kind="dense")):
        with pytest.raises(OptimizerError, match=r'table .t. lies in host memory, .* take kind = "lazy"'):
            Optimizer(settings, tables=[table], learning_rate=0.1)
    with tf.GradientTape() as tape:
        rows = check_gradient(look_up(table, host.rows(tf.constant([FIRST], tf.int64), training=True)), [host])
    with pytest.raises(HostRowsError, match="before an optimizer was made that knows how to update it"):
        tape.gradient(rows, table)
    optimizer = Optimizer(Adagrad(), tables=[table], learning_rate=0.1)
    with pytest.raises(OptimizerError, match="gradient of table 't' is dense"):
        optimizer.apply_gradients([(tf.zeros([CACHED, DIM]), table)])


def test_a_folder_that_cannot_hold_a_table_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostRowsError, match=r"gone: cannot hold the 0\.1 MiB of table t"):
        make_array((1000, 32), np.float32, fill=0.0, folder=tmp_path / "gone", name="table t")
    with pytest.raises(HostRowsError, match=r"cannot hold the .* MiB of table t"):
        make_array((2**52, 32), np.float32, fill=0.0, folder=tmp_path, name="table t")
