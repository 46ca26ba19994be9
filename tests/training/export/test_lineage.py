"""What a checkpoint knows of those before it, and rows read from it."""

import json
from pathlib import Path

import numpy as np
import pytest

from rankhouse.embedding_cache.format.feature import DenseSteps, Feature
from rankhouse.embedding_cache.format.files import MANIFEST_NAME
from rankhouse.training.checkpoint.checkpoint import TrainingState, load_checkpoint, save_checkpoint
from rankhouse.training.checkpoint.files import Checkpoint
from rankhouse.training.data.fit import Fit
from rankhouse.training.errors import CheckpointError
from rankhouse.training.ranks import Ranks
from tests.training.small_model import ROWS, build, train

ALONE = Ranks(0, 1)
FIT = Fit((Feature("age", "continuous", "float64", steps=DenseSteps(mean=0.1, std=1 / 3)),), ("ab", "cd"))


@pytest.fixture
def state() -> TrainingState:
    return build(ALONE)


def save(root: Path, state: TrainingState, step: int) -> Checkpoint:
    document = {"epoch": 1}
    path = save_checkpoint(root, state, ranks=ALONE, step=step, document=document, fit=FIT)
    return Checkpoint.open(path)


def test_each_checkpoint_names_those_before_it(tmp_path: Path, state: TrainingState) -> None:
    saved = []
    for step in (1, 2, 4):
        train(state, ALONE, int(state.optimizer.iterations), step)
        saved.append(save(tmp_path, state, step))
    ids = [checkpoint.id for checkpoint in saved]
    assert len(set(ids)) == 3
    assert all(len(bytes.fromhex(identifier)) == 16 for identifier in ids)
    assert saved[2].lineage == tuple(zip(ids, (1, 2, 4), strict=True))
    assert saved[0].lineage == ((ids[0], 1),)
    assert saved[2].iterations == 4
    assert saved[2].fit == FIT


def test_what_came_after_an_older_checkpoint_is_dropped(tmp_path: Path, state: TrainingState) -> None:
    first, second = save(tmp_path, state, 0), save(tmp_path, state, 1)
    load_checkpoint(first.path, state, ranks=ALONE)
    again = save(tmp_path / "again", state, 2)
    assert [identifier for identifier, _ in again.lineage] == [first.id, again.id]
    assert second.id not in dict(again.lineage)


def test_a_step_saved_twice_is_one_checkpoint(tmp_path: Path, state: TrainingState) -> None:
    first = save(tmp_path, state, 0)
    assert save(tmp_path, state, 0).id == first.id
    assert save(tmp_path, state, 1).lineage[:-1] == first.lineage


def test_a_failed_save_leaves_no_trace(tmp_path: Path, state: TrainingState) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError):
        save(tmp_path / "file", state, 1)
    assert len(save(tmp_path / "folder", state, 2).lineage) == 1


@pytest.mark.parametrize("lineage", [[], [["ab"]], "ab", [["ab", "cd"]], 3])
def test_a_mangled_lineage_is_refused(tmp_path: Path, state: TrainingState, lineage: object) -> None:
    path = save(tmp_path, state, 0).path
    manifest = json.loads((path / MANIFEST_NAME).read_text())
    (path / MANIFEST_NAME).write_text(json.dumps({**manifest, "lineage": lineage}))
    with pytest.raises(CheckpointError, match="lacks or mangles"):
        Checkpoint.open(path)


def test_rows_are_gathered_in_the_order_asked_for(
    tmp_path: Path, state: TrainingState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankhouse.training.checkpoint.part._FILE_BYTES", 112)
    opened = save(tmp_path, state, 0)
    whole = np.concatenate([block.rows for block in opened.rows("user")])
    ids = np.random.default_rng(0).integers(0, ROWS["user"], 100)
    gathered = opened.gather("user", ids)
    assert gathered.dtype == np.float32
    np.testing.assert_array_equal(gathered, whole[ids])
    assert opened.gather("user", np.empty(0, np.int64)).shape == (0, 4)


@pytest.mark.parametrize("ids", [[40], [-1, 3]])
def test_ids_that_are_no_rows_are_refused(tmp_path: Path, state: TrainingState, ids: list[int]) -> None:
    opened = save(tmp_path, state, 0)
    with pytest.raises(CheckpointError, match="1 of the ids asked for are no rows of table 'user', which has 40"):
        opened.gather("user", np.array(ids))


def test_unknown_tables_are_refused(tmp_path: Path, state: TrainingState) -> None:
    opened = save(tmp_path, state, 0)
    for ask in (lambda: opened.gather("users", np.array([0])), lambda: opened.touched_since("users", 0)):
        with pytest.raises(CheckpointError, match="no 'weights' of a table 'users'; it has user"):
            ask()
