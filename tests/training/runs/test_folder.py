import json
from pathlib import Path

import pytest

from rankhouse.embedding_cache.format.files import commit_manifest
from rankhouse.training.checkpoint.files import KIND
from rankhouse.training.config import Config, override
from rankhouse.training.errors import CheckpointError, RunFolderError
from rankhouse.training.plan import TableSpec, make_plan
from rankhouse.training.runs.folder import Result, RunFolder

RESULT = Result(num_steps=3, num_samples=30, num_ranks=2, seconds=1.5, auc=None, valid_loss=0.7)


def test_a_new_run_keeps_its_configuration(tmp_path: Path) -> None:
    config = override(Config(), ["training.seed=9", "data.path=logs"])
    run = RunFolder.create(tmp_path / "runs" / "demo", config)
    opened = RunFolder.open(run.path)
    assert (opened.name, opened.config, opened.dataset) == ("demo", config, Path("logs"))
    assert (opened.latest_checkpoint, opened.result, opened.metrics(), opened.num_ranks) == (None, None, [], 1)


def test_a_result_is_there_until_more_steps_are_to_come(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "demo", Config())
    run.write_result(RESULT)
    assert run.result == RESULT
    run.clear_result()
    assert run.result is None


def test_a_line_that_a_dying_process_cut_off_is_skipped(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "demo", Config())
    run.metrics_file.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert run.metrics() == [{"step": 1}, {"step": 2}]


def test_an_incomplete_checkpoint_does_not_exist(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "demo", Config())
    for step in (5, 10):
        (run.checkpoints / f"step-{step:08d}").mkdir(parents=True)
    (run.checkpoints / "step-00000005" / "manifest.json").touch()
    assert run.latest_checkpoint == run.checkpoints / "step-00000005"


def test_ranks_that_ended_before_they_had_a_new_plan_leave_the_number_of_those_that_saved(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "demo", Config())
    folder = run.checkpoints / "step-00000005"
    folder.mkdir(parents=True)
    saved = {"num_ranks": 3, "tables": {}, "row_ranges": [], "step": 5, "training": {}, "optimizer": {"iterations": 5}}
    commit_manifest(folder, kind=KIND, document=saved, files={})
    run.plan_json_file.write_text(json.dumps(make_plan([TableSpec("user", 30, 4)], num_ranks=2).document()))
    assert run.num_ranks == 2
    run.clear_plan()
    assert run.num_ranks == 3
    (folder / "manifest.json").write_text("{")
    with pytest.raises(CheckpointError, match="manifest"):
        assert run.num_ranks


def test_a_run_is_not_made_over_another(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "demo", Config())
    with pytest.raises(RunFolderError, match="already exists: continue that run with --resume"):
        RunFolder.create(tmp_path / "demo", Config())


def test_only_a_run_is_opened_or_removed(tmp_path: Path) -> None:
    (tmp_path / "letters").mkdir()
    with pytest.raises(RunFolderError, match="is not the folder of a run"):
        RunFolder(tmp_path / "letters").remove()
    assert (tmp_path / "letters").is_dir()
    run = RunFolder.create(tmp_path / "demo", Config())
    with pytest.raises(RunFolderError, match=r"it has no config\.yaml; runs beside it are demo$"):
        RunFolder.open(tmp_path / "omed")
    run.remove()
    assert not run.path.exists()
