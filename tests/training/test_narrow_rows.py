"""Tables whose rows are held in 16 bits: the same bits on 1, 2 and 3 ranks, in every mode, and through checkpoints."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from rankhouse.kernels.optimizer_settings import Adam
from rankhouse.training.checkpoint.checkpoint import load_checkpoint
from rankhouse.training.checkpoint.files import Checkpoint
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.errors import EmbeddingError
from rankhouse.training.optimizers.optimizers import Optimizer
from rankhouse.training.plan import Plan, TableSpec, place
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.specs import EmbeddingSpec
from tests.training.launching import run_on_ranks
from tests.training.narrow_rows import (
    LAST_STEP,
    SAVED_STEP,
    TABLES,
    build,
    checkpoint,
    make_step,
    tables_of,
    train,
    train_all,
)

ALONE = Ranks(0, 1)
NARROW = [name for name, (_, _, dtype, _, _) in TABLES.items() if dtype != "float32"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("narrow")


@pytest.fixture(scope="module")
def alone(directory: Path) -> dict[str, Any]:
    return train_all(ALONE, directory)


@pytest.fixture(scope="module")
def together(directory: Path, alone: dict[str, Any]) -> list[dict[str, Any]]:
    return run_on_ranks(train_all, directory, num_ranks=3)


@pytest.mark.horovod
def test_n_ranks_train_as_one_does_to_the_bit(together: list[dict[str, Any]], directory: Path) -> None:
    one = np.load(directory / "narrow-1-0.npz")
    for rank in range(len(together)):
        arrays = np.load(directory / f"narrow-{len(together)}-{rank}.npz")
        for name in one.files:
            assert np.array_equal(arrays[name], one[name]), name
    assert len({answer["copy"] for answer in together}) == 1
    assert all(answer["wired"] == [True, True] for answer in together)


@pytest.mark.horovod
def test_one_rank_goes_on_from_a_checkpoint_of_many(together: list[dict[str, Any]], directory: Path) -> None:
    after = np.load(directory / "narrow-1-0.npz")
    state = build(ALONE)
    load_checkpoint(checkpoint(directory, len(together)), state, ranks=ALONE)
    train(make_step(state), ALONE, SAVED_STEP, LAST_STEP)
    for name, rows in tables_of(state).items():
        assert np.array_equal(rows, after[f"after/{name}"]), name


def test_a_step_moves_rows_and_begins_with_the_nearest_of_float32(alone: dict[str, Any], directory: Path) -> None:
    found = np.load(directory / "narrow-1-0.npz")
    exact = tables_of(build(ALONE, dtypes=dict.fromkeys(TABLES, "float32")))
    for name in NARROW:
        held = tf.as_dtype(TABLES[name][2]).as_numpy_dtype
        before, saved = found[f"before/{name}"], found[f"saved/{name}"]
        assert np.array_equal(saved, saved.astype(held).astype(np.float32)), name
        assert np.array_equal(before, exact[name].astype(held).astype(np.float32)), name
        assert name == "keyed" or (before != saved).any(axis=1).sum() > 10


def test_a_checkpoint_has_rows_as_held_and_loads_into_other_dtypes(alone: dict[str, Any], directory: Path) -> None:
    opened, found = Checkpoint.open(checkpoint(directory, 1)), np.load(directory / "narrow-1-0.npz")
    types = {name: opened.array_type(name, "weights").dtype for name in TABLES}
    assert types == {name: dtype for name, (_, _, dtype, _, _) in TABLES.items()}
    assert opened.array_type("whole", "accumulator").dtype == "float32"
    assert np.array_equal(opened.gather("columns", np.array([7, 3])), found["saved/columns"][[7, 3]])
    streamed = np.concatenate([block.rows for block in opened.stream("columns", num_rows=8)])
    assert np.array_equal(streamed, found["saved/columns"])
    wide = build(ALONE, dtypes=dict.fromkeys(TABLES, "float32"))
    load_checkpoint(opened.path, wide, ranks=ALONE)
    for name, rows in tables_of(wide).items():
        assert np.array_equal(rows, found[f"saved/{name}"]), name
    other = build(ALONE, dtypes={"full": "bfloat16", "rows": "float16"})
    load_checkpoint(opened.path, other, ranks=ALONE)
    for name, dtype in (("full", tf.bfloat16), ("rows", tf.float16)):
        assert np.array_equal(tables_of(other)[name], found[f"saved/{name}"].astype(dtype.as_numpy_dtype)), name


def test_numbers_that_a_dtype_cannot_hold_are_refused(tmp_path: Path) -> None:
    state = build(ALONE)
    tables = state.embedding.get_weights()
    tables[list(TABLES).index("whole")][3, 1] = 1e5
    with pytest.raises(EmbeddingError, match="hold 100000, which float16 cannot; hold the table as bfloat16 or"):
        state.embedding.set_weights(tables)


def test_a_layer_and_its_plan_must_agree() -> None:
    table = TableSpec("a", 8, 2)
    plan = Plan((table,), (place(table, "table_wise", num_ranks=1),), 1)
    with pytest.raises(EmbeddingError, match=r"held as bfloat16, but the plan has 8 rows of width 2 held as float32"):
        DistributedEmbedding([EmbeddingSpec(8, 2, "a", dtype="bfloat16")], plan=plan)
    with pytest.raises(EmbeddingError, match="rows of dtype 'int8'; expected one of float32, bfloat16, float16"):
        EmbeddingSpec(8, 2, "a", dtype="int8")  # type: ignore[arg-type]


def test_keras_keeps_rows_in_its_files(tmp_path: Path) -> None:
    def make(seed: int) -> tf_keras.Model:
        tables = [EmbeddingSpec(8, 2, dtype, dtype=dtype) for dtype in ("bfloat16", "float16")]
        layer = DistributedEmbedding(tables, seed=seed, name="tables")
        ids = tf_keras.Input((), dtype="int64")
        return tf_keras.Model(ids, tf.concat(layer([ids, ids]), 1))

    first, ids = make(1), np.arange(8)
    for file in ("some.weights.h5", "checkpoint"):
        second = make(2)
        first.save_weights(tmp_path / file)
        second.load_weights(tmp_path / file)
        assert np.array_equal(first.predict(ids, verbose=0), second.predict(ids, verbose=0))
    layer = first.get_layer("tables")
    assert [spec.dtype for spec in DistributedEmbedding.from_config(layer.get_config()).specs] == [
        "bfloat16",
        "float16",
    ]


def test_copies_that_would_be_rounded_in_other_steps_are_refused() -> None:
    table = TableSpec("a", 8, 2, dtype="float16")
    plan = Plan((table,), (place(table, "data_parallel", num_ranks=2),), 2)
    layer = DistributedEmbedding([EmbeddingSpec(8, 2, "a", dtype="float16")], plan=plan, ranks=Ranks(0, 2))
    with pytest.raises(EmbeddingError, match="'a' of 16 bits lies on every rank, and an optimizer whose rows lag"):
        layer.before_lookup = Optimizer(Adam(kind="exact"), tables=layer.variables, learning_rate=0.1).catch_up
