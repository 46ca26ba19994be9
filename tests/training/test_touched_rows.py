"""Which rows each step wrote: against NumPy, against the weights themselves, and on several ranks."""

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from rankhouse.embedding_cache.format.files import MANIFEST_NAME
from rankhouse.kernels.optimizer_settings import (
    Adadelta,
    Adagrad,
    Adam,
    Ftrl,
    Momentum,
    OptimizerSettings,
    RowwiseAdagrad,
    Sgd,
)
from rankhouse.training.checkpoint.checkpoint import TrainingState, load_checkpoint, save_checkpoint
from rankhouse.training.checkpoint.files import TOUCHED, Checkpoint
from rankhouse.training.errors import CheckpointError, OptimizerError
from rankhouse.training.ranks import Ranks
from tests.training.launching import run_on_ranks
from tests.training.small_model import INPUTS, ROWS, batch, build, train

ALONE = Ranks(0, 1)
LAZY: list[OptimizerSettings] = [Sgd(), Adagrad(), RowwiseAdagrad(), Momentum(), Adam(), Ftrl(), Adadelta()]
# Momentum that fades within some steps, so that rows come to rest.
EXACT: list[OptimizerSettings] = [
    Momentum(momentum=0.2, kind="exact"),
    Momentum(momentum=0.2, nesterov=True, kind="exact"),
    Adam(beta_1=0.2, kind="exact"),
]


def name_of(settings: OptimizerSettings) -> str:
    return type(settings).__name__


def looked_up(step: int) -> dict[str, np.ndarray]:
    """Returns the rows of each table that a step looks up."""
    ids, lengths, _, _ = (tensor.numpy() for tensor in batch(step, ALONE))
    tables = np.repeat([item.table for item in INPUTS], lengths.sum(axis=1))
    return {table: np.unique(ids[tables == table]) for table in ROWS}


def truth(num_steps: int) -> dict[str, np.ndarray]:
    """Returns the last step, from 1, that looked each row up."""
    steps = {table: np.zeros(num_rows, np.int32) for table, num_rows in ROWS.items()}
    for step in range(num_steps):
        for table, ids in looked_up(step).items():
            steps[table][ids] = step + 1
    return steps


def stamps(state: TrainingState) -> dict[str, np.ndarray]:
    return {shard.table: state.optimizer.touched_steps(shard.variable).numpy() for shard in state.embedding.shards}


def saved_stamps(path: Path) -> dict[str, np.ndarray]:
    opened = Checkpoint.open(path)
    return {table: np.concatenate([block.rows for block in opened.rows(table, TOUCHED)]) for table in opened.tables}


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for table, values in expected.items():
        np.testing.assert_array_equal(found[table], values, err_msg=table)


def save(root: Path, state: TrainingState, step: int) -> Checkpoint:
    return Checkpoint.open(save_checkpoint(root, state, ranks=ALONE, step=step, document={}))


def changed(before: Checkpoint, after: Checkpoint, table: str) -> np.ndarray:
    """Returns the rows whose bits differ."""
    rows = [checkpoint.gather(table, np.arange(ROWS[table])).view(np.uint32) for checkpoint in (before, after)]
    return np.flatnonzero((rows[0] != rows[1]).any(axis=1))


@pytest.mark.parametrize("settings", [*LAZY, *EXACT], ids=name_of)
def test_rows_bear_the_last_step_that_wrote_them(settings: OptimizerSettings) -> None:
    state = build(ALONE, settings=settings)
    train(state, ALONE, 0, 7)
    assert_equal(stamps(state), truth(7))


@pytest.mark.parametrize("settings", [Momentum(kind="dense"), Adam(kind="dense")], ids=name_of)
def test_dense_kinds_write_all_rows_in_every_step(settings: OptimizerSettings) -> None:
    state = build(ALONE, settings=settings)
    train(state, ALONE, 0, 3)
    assert_equal(stamps(state), {table: np.full(num_rows, 3) for table, num_rows in ROWS.items()})


@pytest.mark.parametrize("settings", LAZY, ids=name_of)
def test_what_was_touched_since_a_checkpoint_is_what_differs_from_it(
    tmp_path: Path, settings: OptimizerSettings
) -> None:
    state = build(ALONE, settings=settings)
    saved = [save(tmp_path, state, 0)]
    for step in (2, 3, 9):
        train(state, ALONE, int(state.optimizer.iterations), step)
        saved.append(save(tmp_path, state, step))
    for number, before in enumerate(saved):
        for after in saved[number:]:
            for table in ROWS:
                touched = after.touched_since(table, before.iterations)
                assert touched.dtype == np.int64
                np.testing.assert_array_equal(touched, changed(before, after, table))


@pytest.mark.parametrize("settings", EXACT, ids=name_of)
def test_exact_kinds_count_rows_that_still_move_but_not_those_at_rest(
    tmp_path: Path, settings: OptimizerSettings
) -> None:
    state = build(ALONE, settings=settings)
    # Steps 50 and on look up what they do; those between move rows without a touch, as do the lookups of an evaluation.
    saved = []
    for first, last, evaluated in [(0, 4, ()), (4, 5, (90, 91)), (5, 6, ()), (6, 6, (92,)), (50, 51, ()), (51, 90, ())]:
        train(state, ALONE, first, last)
        for step in evaluated:
            state.embedding.lookup(*batch(step, ALONE)[:2])
        saved.append(save(tmp_path, state, len(saved)))
    at_rest = 0
    for number, before in enumerate(saved):
        for after in saved[number + 1 :]:
            for table in ROWS:
                differ = set(changed(before, after, table).tolist())
                touched = set(after.touched_since(table, before.iterations).tolist())
                assert differ <= touched
                ever = set(np.flatnonzero(saved_stamps(after.path)[table]).tolist())
                assert touched <= ever
                at_rest += len(ever - touched)
    assert at_rest > 0


def test_momentum_at_rest_is_no_touch(tmp_path: Path) -> None:
    """Rows that only the first step touched have moved by the second checkpoint, and no more by the third."""
    state = build(ALONE, settings=Momentum(momentum=0.1, kind="exact"))
    table = state.embedding.shards[0].variable
    slots = state.optimizer.touched_steps(table)

    def step(row: int) -> None:
        gradient = tf.IndexedSlices(tf.ones([1, table.shape[1]]), tf.constant([row], tf.int64))
        state.optimizer.apply_gradients([(gradient, table)])

    step(3)
    first = save(tmp_path, state, 1)
    for _ in range(60):
        step(5)
    second = save(tmp_path, state, 2)
    for _ in range(2):
        step(5)
    third = save(tmp_path, state, 3)
    name = state.embedding.shards[0].table
    assert second.touched_since(name, first.iterations).tolist() == [3, 5]
    assert third.touched_since(name, second.iterations).tolist() == [5]
    assert slots.numpy()[[3, 5]].tolist() == [61, 63]


def save_on_ranks(ranks: Ranks, directory: Path) -> None:
    state = build(ranks)
    train(state, ranks, 0, 4)
    save_checkpoint(directory / "saved", state, ranks=ranks, step=4, document={})
    train(state, ranks, 4, 9)
    save_checkpoint(directory / "saved", state, ranks=ranks, step=9, document={})


def go_on_on_ranks(ranks: Ranks, directory: Path) -> list[list[str | int]]:
    state = build(ranks)
    load_checkpoint(directory / "saved" / "step-00000004", state, ranks=ranks)
    train(state, ranks, 4, 9)
    save_checkpoint(directory / f"from-{ranks.size}", state, ranks=ranks, step=9, document={})
    return [list(pair) for pair in state.lineage]


def save_and_go_on_on_ranks(ranks: Ranks, directory: Path) -> list[list[str | int]]:
    save_on_ranks(ranks, directory)
    return go_on_on_ranks(ranks, directory / "other")


@pytest.mark.horovod
def test_any_number_of_ranks_writes_and_reads_the_same_notes(tmp_path: Path) -> None:
    other = tmp_path / "other"
    save_on_ranks(ALONE, other)
    first_lineage, second_lineage = run_on_ranks(save_and_go_on_on_ranks, tmp_path, num_ranks=2)
    assert first_lineage == second_lineage
    assert_equal(saved_stamps(other / "from-2" / "step-00000009"), truth(9))
    assert_equal(saved_stamps(tmp_path / "saved" / "step-00000004"), truth(4))
    assert_equal(saved_stamps(tmp_path / "saved" / "step-00000009"), truth(9))
    # What one rank reads, two did write, and the other way round.
    lineage = go_on_on_ranks(ALONE, tmp_path)
    assert_equal(saved_stamps(tmp_path / "from-1" / "step-00000009"), truth(9))
    first = Checkpoint.open(tmp_path / "saved" / "step-00000004")
    assert [tuple(pair) for pair in lineage[:-1]] == list(first.lineage)


def make_old(path: Path) -> None:
    """Makes of a checkpoint what older releases wrote."""
    manifest = json.loads((path / MANIFEST_NAME).read_text())
    for key in ("lineage", "features", "vocabularies"):
        manifest.pop(key, None)
    for table in manifest["tables"].values():
        table["arrays"].remove(TOUCHED)
        del table["initial_rows"]
    manifest["row_ranges"] = [item for item in manifest["row_ranges"] if item["array"] != TOUCHED]
    manifest["files"] = {name: record for name, record in manifest["files"].items() if f".{TOUCHED}." not in name}
    (path / MANIFEST_NAME).write_text(json.dumps(manifest))


def test_a_checkpoint_of_an_older_release(tmp_path: Path) -> None:
    state = build(ALONE)
    train(state, ALONE, 0, 3)
    path = save(tmp_path, state, 3).path
    make_old(path)
    opened = Checkpoint.open(path)
    assert opened.lineage == ((opened.id, 3),)
    assert Checkpoint.open(path).id == opened.id
    with pytest.raises(CheckpointError, match=r"older release.*without --delta"):
        opened.touched_since("shop", 2)
    assert opened.touched_since("shop", 3).tolist() == []
    other = build(ALONE, seed=8)
    load_checkpoint(path, other, ranks=ALONE)
    train(other, ALONE, 3, 5)
    after = save(tmp_path / "after", other, 5)
    assert [iterations for _, iterations in after.lineage] == [3, 5]
    for table, num_rows in ROWS.items():
        assert after.touched_since(table, 2).tolist() == list(range(num_rows))
        np.testing.assert_array_equal(after.touched_since(table, 3), changed(opened, after, table))


def test_only_tables_have_notes() -> None:
    state = build(ALONE)
    with pytest.raises(OptimizerError, match="not among this optimizer's tables"):
        state.optimizer.touched_steps(state.dense["kernel"])
