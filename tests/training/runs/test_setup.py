import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from rankhouse.training.errors import ConfigError, DatasetError, LaunchError, PlanError, RunFolderError
from rankhouse.training.plan import TableSpec, make_plan
from rankhouse.training.planner.hardware import PROFILES
from rankhouse.training.runs.folder import Result
from rankhouse.training.runs.setup import StartRoom, new_run, resumed_run, steps_left
from tests.training.tiny_dataset import write_tiny_dataset


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_tiny_dataset(tmp_path / "tiny", num_rows=200)


def test_a_new_run_has_the_recipe_with_its_settings_and_data(tmp_path: Path, dataset: Path) -> None:
    run = new_run(tmp_path / "run", recipe="dlrm", data=dataset, settings=["training.batch_size=64"])
    assert (run.dataset, run.config.training.batch_size) == (dataset, 64)
    assert steps_left(run) == 4


def test_a_resumed_run_has_its_own_settings_and_the_new_ones(tmp_path: Path, dataset: Path) -> None:
    new_run(tmp_path / "run", recipe="dlrm", data=dataset, settings=["training.batch_size=64"])
    moved = dataset.rename(tmp_path / "moved")
    run = resumed_run(tmp_path / "run", data=moved, settings=["training.epochs=2"])
    assert (run.dataset, run.config.training.batch_size, run.config.training.epochs) == (moved, 64, 2)


def test_a_finished_run_has_no_steps_left_until_it_gets_more(tmp_path: Path, dataset: Path) -> None:
    run = new_run(tmp_path / "run", recipe="dlrm", data=dataset, settings=["training.batch_size=64"])
    run.write_result(Result(num_steps=4, num_samples=200, num_ranks=1, seconds=1.0, auc=0.5, valid_loss=0.7))
    assert steps_left(run) == 0
    assert steps_left(resumed_run(run.path, settings=["training.epochs=3"])) == 8


@pytest.mark.parametrize(
    "setting", ["training.batch_size=32", "optimizer.rule=sgd", "model.top_mlp=[4]", "data.shuffle=false"]
)
def test_what_the_saved_state_depends_on_cannot_change(tmp_path: Path, dataset: Path, setting: str) -> None:
    run = new_run(tmp_path / "run", recipe="dlrm", data=dataset)
    assert resumed_run(run.path, settings=["training.batch_size=64"]).config.training.batch_size == 64
    (run.checkpoints / "step-00000001").mkdir(parents=True)
    (run.checkpoints / "step-00000001" / "manifest.json").touch()
    config = run.config
    with pytest.raises(ConfigError, match=rf"{setting.split('=')[0]} is .* and cannot become"):
        resumed_run(run.path, settings=[setting])
    assert run.config == config


def test_more_ranks_than_can_read_the_data_are_refused_before_there_is_a_folder(tmp_path: Path, dataset: Path) -> None:
    with pytest.raises(LaunchError, match="cannot train on 17 ranks: the data is read in 16 lanes"):
        new_run(tmp_path / "run", data=dataset, room=StartRoom.of(17))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("settings", "room", "message"),
    [
        ([], StartRoom(2, 1000), "the plan does not fit: rank 0 needs .* of 1000 B that are free there"),
        (["parallel.plan=auto"], StartRoom(2, 1000), "do not fit 2 ranks of 450 B usable memory"),
        (["parallel.tables={usr: {}}"], StartRoom.of(2), "'usr' fits no table; did you mean 'user'"),
        (
            ["parallel.tables={user: {device: host}}", "optimizer.rule=adam", "optimizer.kind=exact"],
            StartRoom.of(2, "a:1,b:1"),
            "table 'user' lies on the host, .* this kind of 'adam' moves all",
        ),
    ],
)
def test_what_cannot_start_is_refused_before_it_does(
    tmp_path: Path, dataset: Path, settings: list[str], room: StartRoom, message: str
) -> None:
    with pytest.raises(PlanError, match=message.replace("1000", "1,000")):
        new_run(tmp_path / "run", data=dataset, settings=settings, room=room)
    assert not (tmp_path / "run").exists()


def test_where_nobody_knows_the_memory_nothing_is_refused_for_want_of_it(tmp_path: Path, dataset: Path) -> None:
    replace(PROFILES["2-cores"], memory_bytes=1000.0).save(tmp_path / "tiny.json")
    settings = ["parallel.plan=auto", f"parallel.hardware={tmp_path}/tiny.json"]
    assert new_run(tmp_path / "run", data=dataset, settings=settings, room=StartRoom.of(2, "a:1,b:1")).path.is_dir()


def test_a_folder_of_tables_is_the_same_wherever_a_run_goes_on(
    tmp_path: Path, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["parallel.tables={user: {device: host, cache_rows: 9, host_folder: scratch}}"]
    run = new_run(Path("run"), recipe="dlrm", data=dataset, settings=settings)
    assert run.config.parallel.tables["user"].host_folder == str(tmp_path / "scratch")


def test_a_run_keeps_its_plan_until_other_settings_ask_for_another(tmp_path: Path, dataset: Path) -> None:
    plan = make_plan([TableSpec("user", 30, 4)], num_ranks=2)
    run = new_run(tmp_path / "run", data=dataset, settings=[f"parallel.plan={os.path.relpath(tmp_path)}/plan.json"])
    assert run.config.parallel.plan == str(tmp_path / "plan.json")
    assert run.plan is None
    run.plan_json_file.write_text(json.dumps(plan.document()))
    assert resumed_run(run.path, settings=["training.epochs=2"]).plan == plan
    assert resumed_run(run.path, settings=["parallel.plan=auto"]).plan is None


def test_a_run_is_replaced_only_if_told_so(tmp_path: Path, dataset: Path) -> None:
    run = new_run(tmp_path / "run", recipe="dlrm", data=dataset)
    run.metrics_file.touch()
    with pytest.raises(RunFolderError, match="already exists"):
        new_run(run.path, recipe="dlrm", data=dataset)
    assert not new_run(run.path, recipe="dlrm", data=dataset, overwrite=True).metrics_file.exists()


def test_a_wrong_recipe_leaves_the_old_run_alone(tmp_path: Path, dataset: Path) -> None:
    run = new_run(tmp_path / "run", recipe="dlrm", data=dataset)
    with pytest.raises(ConfigError, match="unknown key"):
        new_run(run.path, recipe="dlrm", data=dataset, settings=["training.epoch=1"], overwrite=True)
    assert run.config_file.is_file()


def test_a_folder_that_is_no_run_is_not_deleted(tmp_path: Path, dataset: Path) -> None:
    with pytest.raises(RunFolderError, match="is not the folder of a run"):
        new_run(dataset, recipe="dlrm", data=dataset, overwrite=True)


def test_data_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no data is given.*--data"):
        new_run(tmp_path / "run", recipe="dlrm", data=None)


def test_a_missing_split_is_noticed_before_training(tmp_path: Path, dataset: Path) -> None:
    with pytest.raises(DatasetError, match="has no split 'tomorrow'; it has train, valid"):
        new_run(tmp_path / "run", recipe="dlrm", data=dataset, settings=["data.valid_split=tomorrow"])
    assert not (tmp_path / "run").exists()


def test_only_a_run_is_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="is not the folder of a run"):
        resumed_run(tmp_path / "nothing")


def test_a_feature_that_the_auc_is_asked_within_is_looked_for_before_training(tmp_path: Path, dataset: Path) -> None:
    with pytest.raises(ConfigError, match=r"training\.auc_by is 'usr': .* there are .*; did you mean 'user'\?"):
        new_run(tmp_path / "run", data=dataset, settings=["training.auc_by=usr"])
    run = new_run(tmp_path / "run", data=dataset, settings=["training.auc_by=user"])
    with pytest.raises(ConfigError, match=r"training\.auc_by is 'visitor'"):
        resumed_run(run.path, settings=["training.auc_by=visitor"])
