"""A run that goes on from another one's checkpoint on the next day's dataset, whose tables have grown."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankhouse.embedding_cache.format.feature import DenseSteps, Feature
from rankhouse.embedding_cache.format.files import MANIFEST_NAME
from rankhouse.training.checkpoint.files import Checkpoint, complete_checkpoints
from rankhouse.training.continuation import newest_event_learnt
from rankhouse.training.errors import CheckpointError, ConfigError
from rankhouse.training.ranks import Ranks
from rankhouse.training.runs.folder import RunFolder
from rankhouse.training.runs.launch import launch
from rankhouse.training.runs.setup import new_run, resumed_run
from rankhouse.training.tables.initializers import table_key, uniform_rows
from rankhouse.training.trainer import Trainer
from tests.training.launching import ENVIRONMENT, ROOT
from tests.training.test_touched_rows import make_old
from tests.training.test_trainer import SETTINGS, AfterCalls, assert_same_bits, train
from tests.training.tiny_dataset import SPEC, TABLE_ROWS, write_tiny_dataset

# Shops are copied to every rank yesterday, and have an owner today.
GROWN = {"shop": 12, "item": 26, "user": 30}
FREED = {"shop": [4], "user": [5, 8, 29]}


@pytest.fixture(scope="module")
def yesterday(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_dataset(tmp_path_factory.mktemp("data") / "yesterday")


@pytest.fixture(scope="module")
def today(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_dataset(tmp_path_factory.mktemp("data") / "today", table_rows=GROWN, freed=[FREED])


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory, yesterday: Path) -> RunFolder:
    folder = tmp_path_factory.mktemp("runs") / "yesterday"
    run = new_run(folder, recipe="dlrm", data=yesterday, settings=[*SETTINGS, "training.epochs=2"])
    train(run)
    return run


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory, parent: RunFolder, today: Path) -> RunFolder:
    run = new_run(tmp_path_factory.mktemp("runs") / "today", data=today, source=parent.path)
    train(run)
    return run


def checkpoint_of(run: RunFolder) -> Checkpoint:
    return Checkpoint.open(run.latest_checkpoint)


def rows(checkpoint: Checkpoint, table: str, array: str) -> np.ndarray:
    return np.concatenate([block.rows for block in checkpoint.rows(table, array)])


def new_rows(table: str) -> list[int]:
    return sorted({*FREED.get(table, []), *range(TABLE_ROWS[table], GROWN[table])})


def initial_rows(table: str, num_rows: int = 40) -> np.ndarray:
    """Returns the initial values of a table that had its first day's rows when it was made."""
    bound = 1 / np.sqrt(TABLE_ROWS[table])
    return uniform_rows(table_key(1, table), bound=bound, dim=4, start=0, stop=num_rows)


def test_what_was_learnt_goes_on_and_new_rows_start_anew(tmp_path: Path, parent: RunFolder, today: Path) -> None:
    trainer = Trainer(new_run(tmp_path / "run", data=today, source=parent.path), ranks=Ranks(0, 1))
    before = checkpoint_of(parent)
    optimizer = trainer.model.optimizer
    assert (int(optimizer.iterations), trainer.position.step) == (10, 0)
    for shard in trainer.model.embedding.shards:
        table, new = shard.table, new_rows(shard.table)
        old = np.setdiff1d(np.arange(TABLE_ROWS[table]), new)
        weights, accumulator = shard.variable.numpy(), optimizer.slots(shard.variable)["accumulator"].numpy()
        stamps = optimizer.touched_steps(shard.variable).numpy()
        np.testing.assert_array_equal(weights[old], before.gather(table, old))
        np.testing.assert_array_equal(accumulator[old], rows(before, table, "accumulator")[old])
        np.testing.assert_array_equal(stamps[old], rows(before, table, "touched")[old])
        np.testing.assert_array_equal(weights[new], initial_rows(table)[new])
        assert (accumulator[new] == np.float32(1e-6)).all()
        assert (stamps[new] == 11).all()
    for name, variable in trainer.model.dense.named_variables().items():
        np.testing.assert_array_equal(variable, before.dense()[name])
        np.testing.assert_array_equal(optimizer.slots(variable)["accumulator"], before.dense("accumulator")[name])


def test_the_lineage_and_the_notes_go_on(parent: RunFolder, child: RunFolder) -> None:
    before, after = checkpoint_of(parent), checkpoint_of(child)
    assert after.lineage[: len(before.lineage)] == before.lineage
    assert [iterations for _, iterations in after.lineage] == [7, 10, 17, 20]
    assert (after.step, after.iterations) == (10, 20)
    assert after.fit is not None
    assert before.fit is not None
    assert len(after.fit.vocabularies) == 2
    assert after.fit.vocabularies[:1] == before.fit.vocabularies
    for table, num_rows in GROWN.items():
        touched = after.touched_since(table, before.iterations)
        both = np.arange(TABLE_ROWS[table])
        differ = (after.gather(table, both) != before.gather(table, both)).any(axis=1)
        assert set(new_rows(table)) <= set(touched.tolist()) <= set(range(num_rows))
        assert set(np.flatnonzero(differ)) <= set(touched.tolist())
        # A row that was freed before it was ever learnt starts where it was.
        assert set(touched.tolist()) - set(np.flatnonzero(differ)) <= set(new_rows(table))


def test_a_rows_initial_value_does_not_depend_on_how_its_table_grew(
    tmp_path: Path, parent: RunFolder, child: RunFolder
) -> None:
    tomorrow = write_tiny_dataset(tmp_path / "tomorrow", table_rows=GROWN | {"item": 35}, freed=[FREED, {"item": [3]}])
    by_day = Trainer(new_run(tmp_path / "by-day", data=tomorrow, source=child.path), ranks=Ranks(0, 1))
    at_once = Trainer(new_run(tmp_path / "at-once", data=tomorrow, source=parent.path), ranks=Ranks(0, 1))
    for trainer in (by_day, at_once):
        item = next(shard.variable.numpy() for shard in trainer.model.embedding.shards if shard.table == "item")
        np.testing.assert_array_equal(item[[3, *range(26, 35)]], initial_rows("item")[[3, *range(26, 35)]])
    # Of what was freed yesterday, the child has learnt something new since; the parent's rows have not.
    user = [next(s.variable.numpy() for s in t.model.embedding.shards if s.table == "user") for t in (by_day, at_once)]
    np.testing.assert_array_equal(user[0][FREED["user"]], checkpoint_of(child).gather("user", np.array(FREED["user"])))
    np.testing.assert_array_equal(user[1][FREED["user"]], initial_rows("user")[FREED["user"]])


@pytest.mark.parametrize("num_steps", [1, 8])
def test_a_stopped_run_that_continues_another_resumes(
    tmp_path: Path, parent: RunFolder, child: RunFolder, today: Path, num_steps: int
) -> None:
    run = new_run(tmp_path / "run", data=today, source=parent.path)
    assert train(run, AfterCalls(num_steps - 1)) is None
    assert checkpoint_of(run).iterations == 10 + num_steps
    train(resumed_run(run.path))
    assert_same_bits(child, run)
    assert checkpoint_of(run).lineage[:2] == checkpoint_of(parent).lineage


@pytest.mark.parametrize("step", [3, 9])
def test_a_killed_run_that_continues_another_resumes(
    tmp_path: Path, parent: RunFolder, child: RunFolder, today: Path, step: int
) -> None:
    """The process kills itself after a step, before or after its first checkpoint, which is waited for."""
    settings = ["training.checkpoint_memory_share=0"]
    run = new_run(tmp_path / "run", data=today, source=parent.path, settings=settings)
    code = f"""
import os, signal
from rankhouse.training.ranks import Ranks
from rankhouse.training.runs.folder import RunFolder
from rankhouse.training.trainer import Trainer

class Dying:
    def record_steps(self, metrics):
        if metrics.step == {step}:
            os.kill(os.getpid(), signal.SIGKILL)
    def record_evaluation(self, metrics):
        pass

Trainer(RunFolder.open({str(run.path)!r}), ranks=Ranks(0, 1)).train([Dying()], stop=False)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **ENVIRONMENT}, capture_output=True, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert [path.name for path in complete_checkpoints(run.checkpoints)] == ([] if step < 7 else ["step-00000007"])
    train(resumed_run(run.path))
    assert_same_bits(child, run)
    assert [iterations for _, iterations in checkpoint_of(run).lineage] == [7, 10, 17, 20]


def test_the_recipe_is_the_parents_unless_another_is_named(tmp_path: Path, parent: RunFolder, today: Path) -> None:
    run = new_run(tmp_path / "run", data=today, source=parent.latest_checkpoint, settings=["training.epochs=1"])
    assert run.config.model == parent.config.model
    assert run.config.training.continue_from == str(parent.latest_checkpoint.resolve())
    assert (run.config.training.epochs, run.dataset) == (1, today)
    with pytest.raises(CheckpointError, match="was trained with Adagrad, this run would use Sgd"):
        new_run(tmp_path / "other", data=today, source=parent.path, settings=["optimizer.rule=sgd"])
    other = new_run(tmp_path / "other", recipe="dlrm", data=today, source=parent.path)
    with pytest.raises(CheckpointError, match="in the checkpoint and"):
        Trainer(other, ranks=Ranks(0, 1))


def test_other_vocabularies_are_refused(tmp_path: Path, parent: RunFolder, child: RunFolder, yesterday: Path) -> None:
    other = write_tiny_dataset(tmp_path / "other", table_rows=GROWN, freed=[{}])
    with pytest.raises(CheckpointError, match=r"layer 1 of the vocabularies is \w{8}, was \w{8}.*--extend"):
        new_run(tmp_path / "run", data=other, source=child.path)
    with pytest.raises(CheckpointError, match=r"layer 1 of the vocabularies is missing, was \w{8}"):
        new_run(tmp_path / "run", data=yesterday, source=child.path)
    another = write_tiny_dataset(tmp_path / "another", table_rows=GROWN, freed=[FREED], base=5)
    with pytest.raises(CheckpointError, match=r"layer 0 of the vocabularies is \w{8}, was \w{8}"):
        new_run(tmp_path / "run", data=another, source=parent.path)
    assert not (tmp_path / "run").exists()


def normalized(mean: float, std: float = 2.0) -> Feature:
    return Feature("age", "continuous", "float64", steps=DenseSteps(mean=mean, std=std))


@pytest.mark.parametrize(
    ("refitted", "message"),
    [
        ({"features": [normalized(1.5)]}, "feature 'age' has mean 1.5, had 1.25"),
        ({"features": [normalized(1.25, std=3.0)]}, "feature 'age' has std 3.0, had 2.0"),
        ({"features": []}, "features are , were age"),
        ({"features": [normalized(1.25)], "base": 5}, r"layer 0 of the vocabularies is \w{8}, was \w{8}"),
        ({"features": [normalized(1.25)], "freed": [{}]}, "its vocabularies have 2 layers, had 1"),
    ],
)
def test_a_dataset_that_was_fitted_again_is_refused(tmp_path: Path, refitted: dict[str, Any], message: str) -> None:
    """Also where the vocabularies stayed the same: other statistics make other inputs of the same values."""
    data = write_tiny_dataset(tmp_path / "data", features=[normalized(1.25)])
    run = new_run(tmp_path / "run", recipe="dlrm", data=data, settings=[*SETTINGS, "training.max_steps=1"])
    train(run)
    assert new_run(tmp_path / "next", data=data, source=run.path).dataset == data
    shutil.rmtree(data)
    write_tiny_dataset(data, **refitted)
    with pytest.raises(CheckpointError, match=f"was trained on another fit than .* has now: {message}.*with --from"):
        Trainer(run, ranks=Ranks(0, 1))
    if "freed" not in refitted:
        with pytest.raises(CheckpointError, match=f"does not extend the dataset .*: {message}.*--extend"):
            new_run(tmp_path / "other", data=data, source=run.path)


def test_a_table_that_shrank_is_refused(tmp_path: Path, parent: RunFolder) -> None:
    smaller = write_tiny_dataset(tmp_path / "smaller", table_rows=GROWN | {"user": 29}, freed=[{}])
    run = new_run(tmp_path / "run", data=smaller, source=parent.path)
    with pytest.raises(
        CheckpointError, match=r"table 'user' is \(30, 4\) in the checkpoint and \(29, 4\) in the model"
    ):
        Trainer(run, ranks=Ranks(0, 1))


def test_a_checkpoint_that_did_not_note_its_vocabularies_is_refused(tmp_path: Path, yesterday: Path) -> None:
    old = new_run(tmp_path / "old", recipe="dlrm", data=yesterday, settings=[*SETTINGS, "training.max_steps=2"])
    train(old)
    make_old(old.latest_checkpoint)
    with pytest.raises(CheckpointError, match=r"saved by an older release.*--resume"):
        new_run(tmp_path / "run", data=yesterday, source=old.path)
    # As the message says: its own run goes on, and then its next checkpoint can be continued.
    train(resumed_run(old.path, settings=["training.max_steps=3"]))
    assert new_run(tmp_path / "run", data=yesterday, source=old.path).config.training.max_steps == 3


def test_a_run_does_not_go_on_from_itself(tmp_path: Path, parent: RunFolder, today: Path) -> None:
    with pytest.raises(ConfigError, match="cannot go on from its own checkpoint"):
        new_run(parent.path, data=today, source=parent.path, overwrite=True)
    assert parent.latest_checkpoint is not None
    with pytest.raises(CheckpointError, match="holds no complete checkpoint"):
        new_run(tmp_path / "run", data=today, source=tmp_path / "nothing")


def test_what_a_run_goes_on_from_cannot_change(tmp_path: Path, child: RunFolder) -> None:
    with pytest.raises(ConfigError, match=r"training\.continue_from is .* and cannot become ''"):
        resumed_run(child.path, settings=["training.continue_from=''"])


def test_a_manifest_says_how_large_tables_were(child: RunFolder) -> None:
    manifest = json.loads((child.latest_checkpoint / MANIFEST_NAME).read_text())
    assert {name: table["initial_rows"] for name, table in manifest["tables"].items()} == TABLE_ROWS
    assert {name: table["num_rows"] for name, table in manifest["tables"].items()} == GROWN
    assert set(GROWN) == {feature.table for feature in SPEC.categorical}


@pytest.mark.horovod
def test_two_ranks_go_on_as_one_does(tmp_path: Path, parent: RunFolder, today: Path) -> None:
    settings = ["training.epochs=1"]
    alone = new_run(tmp_path / "one", data=today, source=parent.path, settings=settings)
    together = new_run(tmp_path / "two", data=today, source=parent.path, settings=settings)
    train(alone)
    assert launch(together, num_ranks=2) == 0
    one, two = checkpoint_of(alone), checkpoint_of(together)
    assert two.lineage[:-1] == one.lineage[:-1]
    for table in GROWN:
        np.testing.assert_array_equal(rows(one, table, "touched"), rows(two, table, "touched"))
        np.testing.assert_allclose(rows(two, table, "weights"), rows(one, table, "weights"), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("newest", "before", "expected"),
    [(9.0, None, 9.0), (9.0, 5.0, 9.0), (5.0, 9.0, 9.0), (None, 9.0, None), (None, None, None), (0.0, 0.0, 0.0)],
)
def test_an_event_of_before_does_not_stand_for_an_unknown_one(
    newest: float | None, before: float | None, expected: float | None
) -> None:
    assert newest_event_learnt(newest, before=before) == expected


def test_a_checkpoint_of_logs_without_times_says_none(child: RunFolder) -> None:
    assert checkpoint_of(child).event_time is None
