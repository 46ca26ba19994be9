import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from rankhouse.embedding_cache.format.files import MANIFEST_NAME
from rankhouse.kernels.optimizer_settings import Sgd
from rankhouse.kernels.vocabulary_layer import DynamicVocabulary
from rankhouse.training.checkpoint import part as checkpoint_part
from rankhouse.training.checkpoint.checkpoint import TrainingState, load_checkpoint, save_checkpoint
from rankhouse.training.checkpoint.files import (
    Checkpoint,
    complete_checkpoints,
    find_checkpoints,
    incomplete_checkpoints,
    latest_checkpoint,
    step_folder,
)
from rankhouse.training.data.fit import Fit
from rankhouse.training.errors import CheckpointError
from rankhouse.training.optimizers.optimizers import Optimizer
from rankhouse.training.ranks import Ranks
from tests.training.launching import ENVIRONMENT, ROOT
from tests.training.small_model import SPECS, arrays, build, train

ALONE = Ranks(0, 1)


@pytest.fixture
def state() -> TrainingState:
    return build(ALONE)


def save(root: Path, state: TrainingState, step: int, keep: int | None = None) -> Path:
    document = {"epoch": 2, "metrics": {"auc": 0.5}}
    return save_checkpoint(root, state, ranks=ALONE, step=step, document=document, keep=keep)


def test_loads_what_was_saved(tmp_path: Path, state: TrainingState) -> None:
    train(state, ALONE, 0, 3)
    path = save(tmp_path, state, 3)
    assert path == tmp_path / "step-00000003"
    saved = arrays(path)
    train(state, ALONE, 3, 5)
    other = build(ALONE, seed=8)
    loaded = load_checkpoint(path, other, ranks=ALONE)
    assert (loaded.step, loaded.document) == (3, {"epoch": 2, "metrics": {"auc": 0.5}})
    assert other.optimizer.iterations.numpy() == 3
    again = arrays(save(tmp_path / "again", other, 3))
    assert (
        saved.keys()
        == again.keys()
        == {f"{name}/{array}" for name in ("user", "shop", "item", "kernel") for array in ("weights", "accumulator")}
        | {f"{name}/touched" for name in ("user", "shop", "item")}
    )
    for name, values in saved.items():
        assert np.array_equal(values, again[name]), name


def test_vocabularies_go_with_the_state(tmp_path: Path, state: TrainingState) -> None:
    keys = tf.constant([7, 9, 7, 11], tf.int64)
    layers = [DynamicVocabulary(8, min_count=2) for _ in range(3)]
    layers[0](keys, training=True)
    kept = {"shop/keys": layers[0], "item": layers[1]}
    fit = Fit((), ("5" * 64,))  # Whose vocabularies are those of the data.
    path = save_checkpoint(tmp_path, replace(state, vocabularies=kept), ranks=ALONE, step=1, document={}, fit=fit)
    assert Checkpoint.open(path).fit == fit
    loaded = replace(build(ALONE, seed=8), vocabularies={"shop/keys": layers[2], "item": DynamicVocabulary(8)})
    load_checkpoint(path, loaded, ranks=ALONE)
    assert layers[2](keys).numpy().tolist() == layers[0](keys).numpy().tolist() == [1, 0, 1, 0]
    assert layers[2](keys[1:2], training=True).numpy().tolist() == [2]
    with pytest.raises(CheckpointError, match="vocabulary 'item' is there in the checkpoint and absent in the model"):
        load_checkpoint(path, state, ranks=ALONE)
    with pytest.raises(CheckpointError, match="vocabulary 'item' is absent in the checkpoint and there in the model"):
        load_checkpoint(save(tmp_path, state, 2), loaded, ranks=ALONE)


def test_rows_are_cut_and_read_back_in_pieces(
    tmp_path: Path, state: TrainingState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_part, "_FILE_BYTES", 112)
    monkeypatch.setattr(checkpoint_part, "_BLOCK_BYTES", 48)
    opened = Checkpoint.open(save(tmp_path, state, 0))
    expected = next(shard for shard in state.embedding.shards if shard.table == "user").variable.numpy()
    ranges = [(item.start, item.stop) for item in opened.pieces if (item.table, item.array) == ("user", "weights")]
    assert ranges == [(start, min(start + 7, 40)) for start in range(0, 40, 7)]
    for start, stop in [(0, 40), (3, 5), (6, 29), (39, 40), (4, 4)]:
        blocks = list(opened.rows("user", start=start, stop=stop))
        assert [block.start for block in blocks] == sorted({start, *(cut for cut, _ in ranges if start < cut < stop)})[
            : len(blocks)
        ]
        rows = np.concatenate([np.empty((0, 4), np.float32), *(block.rows for block in blocks)])
        assert np.array_equal(rows, expected[start:stop])
    blocks = list(opened.stream("user", num_rows=4))
    assert [block.start for block in blocks] == [start + part for start, _ in ranges for part in (0, 4)]
    assert np.array_equal(np.concatenate([block.rows for block in blocks]), expected)
    other = build(ALONE, seed=8)
    load_checkpoint(opened.path, other, ranks=ALONE)
    assert np.array_equal(
        next(shard for shard in other.embedding.shards if shard.table == "user").variable.numpy(), expected
    )


def test_keeps_the_latest_and_clears_what_dead_saves_left(tmp_path: Path, state: TrainingState) -> None:
    for step in (1, 2, 3):
        save(tmp_path, state, step, keep=2)
    dead = step_folder(tmp_path, 4)
    (dead / "tables").mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    assert latest_checkpoint(tmp_path) == step_folder(tmp_path, 3)
    assert incomplete_checkpoints(tmp_path) == [dead]
    save(tmp_path, state, 10, keep=2)
    assert complete_checkpoints(tmp_path) == [step_folder(tmp_path, 3), step_folder(tmp_path, 10)]
    assert not dead.exists()
    assert (tmp_path / "notes").exists()


def test_a_saved_step_is_left_as_it_is(tmp_path: Path, state: TrainingState) -> None:
    manifest = save(tmp_path, state, 1) / MANIFEST_NAME
    before = manifest.stat().st_mtime_ns
    save(tmp_path, state, 1)
    assert manifest.stat().st_mtime_ns == before


def test_nowhere_is_no_checkpoint(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path / "nowhere") is None
    with pytest.raises(CheckpointError, match="holds no complete checkpoint"):
        find_checkpoints(tmp_path)
    with pytest.raises(CheckpointError, match=r"manifest\.json: not found"):
        Checkpoint.open(tmp_path)


def test_killed_before_the_commit_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    """The process kills itself, as SIGKILL would from outside; test_checkpoint_saver.py goes through all points."""
    code = f"""
import os, signal
from pathlib import Path
from rankhouse.training.checkpoint import checkpoint
from rankhouse.training.ranks import Ranks
from tests.training.small_model import build

state, ranks, root = build(Ranks(0, 1)), Ranks(0, 1), Path({str(tmp_path)!r})
checkpoint.save_checkpoint(root, state, ranks=ranks, step=1, document={{}}, keep=1)
def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)
checkpoint.commit_manifest = die
checkpoint.save_checkpoint(root, state, ranks=ranks, step=2, document={{}}, keep=1)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, **ENVIRONMENT}, capture_output=True, check=False
    )
    assert done.returncode == -9, done.stderr.decode()
    half = step_folder(tmp_path, 2)
    assert incomplete_checkpoints(tmp_path) == [half]
    assert len(list((half / "tables").iterdir())) == 9
    assert latest_checkpoint(tmp_path) == step_folder(tmp_path, 1)
    Checkpoint.open(step_folder(tmp_path, 1)).verify()


@pytest.mark.parametrize(
    "file", ["tables/user.weights.0-40.safetensors", "tables/shop.accumulator.0-5.safetensors", "dense.safetensors"]
)
def test_one_flipped_bit_is_refused_by_the_files_name(tmp_path: Path, state: TrainingState, file: str) -> None:
    path = save(tmp_path, state, 1)
    content = bytearray((path / file).read_bytes())
    content[-3] ^= 4
    (path / file).write_bytes(content)
    opened = Checkpoint.open(path)
    with pytest.raises(CheckpointError, match=f"{file}: its content was altered"):
        opened.verify()
    with pytest.raises(CheckpointError, match=f"{file}: its content was altered"):
        load_checkpoint(path, state, ranks=ALONE)


def test_a_stream_verifies_the_files_that_it_reads(tmp_path: Path, state: TrainingState) -> None:
    path = save(tmp_path, state, 1)
    file = path / "tables/user.weights.0-40.safetensors"
    content = bytearray(file.read_bytes())
    for place in (-3, -4 * 160):  # In the last row, and the first byte of the first one.
        altered = content.copy()
        altered[place] ^= 4
        file.write_bytes(altered)
        with pytest.raises(CheckpointError, match=f"{file.name}: its content was altered"):
            list(Checkpoint.open(path).stream("user", num_rows=7))
    file.write_bytes(content)
    assert sum(len(block.rows) for block in Checkpoint.open(path).stream("user", num_rows=7)) == 40


def test_truncated_and_missing_files_are_refused(tmp_path: Path, state: TrainingState) -> None:
    path = save(tmp_path, state, 1)
    file = path / "tables/user.weights.0-40.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"user\.weights\.0-40\.safetensors: was truncated"):
        Checkpoint.open(path)
    file.unlink()
    with pytest.raises(CheckpointError, match=r"user\.weights\.0-40\.safetensors: is missing"):
        Checkpoint.open(path)


def test_rows_that_no_file_holds_are_refused(tmp_path: Path, state: TrainingState) -> None:
    path = save(tmp_path, state, 1)
    manifest = json.loads((path / MANIFEST_NAME).read_text())
    manifest["row_ranges"] = [item for item in manifest["row_ranges"] if item["table"] != "user"]
    (path / MANIFEST_NAME).write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=r"rows 0 to 40 of table 'user' \(weights\) are in none of its files"):
        load_checkpoint(path, state, ranks=ALONE)
    with pytest.raises(CheckpointError, match=r"rows 0 to 40 of table 'user' \(weights\) are in none of its files"):
        list(Checkpoint.open(path).stream("user", num_rows=7))


def test_a_mangled_manifest_is_refused(tmp_path: Path, state: TrainingState) -> None:
    path = save(tmp_path, state, 1)
    manifest = json.loads((path / MANIFEST_NAME).read_text())
    file = "tables/user.weights.0-40.safetensors"
    for lost, key in ((manifest["files"], file), (manifest, "tables")):
        del lost[key]
        (path / MANIFEST_NAME).write_text(json.dumps(manifest))
        with pytest.raises(CheckpointError, match=f"lacks or mangles '{key}'"):
            Checkpoint.open(path)


def test_another_model_or_optimizer_is_refused_before_anything_changes(tmp_path: Path, state: TrainingState) -> None:
    path = save(tmp_path, state, 1)
    other = build(ALONE, seed=8)
    before = other.embedding.shards[0].variable.numpy()
    sgd = TrainingState(
        other.embedding, other.dense, Optimizer(Sgd(), dense=other.optimizer.variables, learning_rate=1)
    )
    with pytest.raises(CheckpointError, match="was trained with Adagrad, this run uses Sgd"):
        load_checkpoint(path, sgd, ranks=ALONE)
    renamed = TrainingState(other.embedding, {"bias": other.dense["kernel"]}, other.optimizer)
    with pytest.raises(CheckpointError, match=r"variable 'bias' is absent in the checkpoint and \(18, 1\)"):
        load_checkpoint(path, renamed, ranks=ALONE)
    assert np.array_equal(other.embedding.shards[0].variable.numpy(), before)


def test_unknown_tables_and_settings_are_refused(tmp_path: Path, state: TrainingState) -> None:
    opened = Checkpoint.open(save(tmp_path, state, 1))
    assert list(opened.tables) == [spec.name for spec in SPECS]
    with pytest.raises(
        CheckpointError, match=r"no 'weights' of a table 'users'; it has user \(weights, accumulator, touched\)"
    ):
        list(opened.rows("users"))
    with pytest.raises(CheckpointError, match="no 'momentum' of a table 'user'"):
        list(opened.rows("user", "momentum"))
    with pytest.raises(CheckpointError, match="keep is 0"):
        save(tmp_path, state, 2, keep=0)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, state: TrainingState) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match="Not a directory"):
        save(tmp_path / "file", state, 2)
