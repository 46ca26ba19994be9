"""`rankhouse train` in processes of its own, as the shell starts it."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rankhouse.training.plan import TableSpec, make_plan
from rankhouse.training.runs.folder import RunFolder
from rankhouse.training.runs.stop import STOPPED
from tests.training.tiny_dataset import TABLE_ROWS, write_tiny_dataset

COMMAND = (str(Path(sys.executable).with_name("rankhouse")), "train")
SMALL = ("--set", "training.batch_size=64", "--set", "training.log_every_steps=1", "--set", "model.top_mlp=[4]")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_tiny_dataset(tmp_path / "tiny")
    return tmp_path


def rankhouse_train(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*COMMAND, *arguments], cwd=folder, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a finished run, and what it printed."""
    folder = tmp_path_factory.mktemp("first")
    write_tiny_dataset(folder / "tiny")
    trained = rankhouse_train(folder, "--data", "tiny", "--run", "first", *SMALL)
    assert trained.returncode == 0, trained.stderr
    return folder, trained.stdout


def test_a_run_is_trained_and_then_finished(first: tuple[Path, str]) -> None:
    folder, output = first
    assert "finished 5 steps: AUC 0." in output
    assert "look at runs/first/report.html" in output
    again = rankhouse_train(folder, "--resume", "--run", "first")
    assert again.returncode == 0
    assert "runs/first is finished already" in again.stdout
    plan = make_plan([TableSpec("user", 30, 4)], num_ranks=2)
    (folder / "runs" / "first" / "plan.json").write_text(json.dumps(plan.document()))
    as_before = rankhouse_train(folder, "--resume", "--run", "first", "--hosts", "a:1")
    assert "--hosts has 1 slots for 2 ranks" in as_before.stderr


def test_ctrl_c_saves_and_resume_goes_on(folder: Path) -> None:
    # A group of its own, as a shell gives a job: Ctrl-C goes to all processes of it.
    process = subprocess.Popen(
        [*COMMAND, "--data", "tiny", "--run", "long", *SMALL, "--set", "training.epochs=100000"],
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    run = RunFolder(folder / "runs" / "long")
    deadline = time.monotonic() + 600
    while len(run.metrics()) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == STOPPED
    assert "state saved; go on with --resume" in output
    assert run.latest_checkpoint is not None
    step = int(run.latest_checkpoint.name.removeprefix("step-"))
    resumed = rankhouse_train(folder, "--resume", "--run", "long", "--set", f"training.max_steps={step + 3}")
    assert resumed.returncode == 0, resumed.stderr
    assert f"going on from step {step}" in resumed.stdout
    assert f"finished {step + 3} steps" in resumed.stdout


def test_a_run_can_be_started_by_other_launchers(folder: Path) -> None:
    prepared = rankhouse_train(folder, "--data", "tiny", "--run", "mine", *SMALL, "--prepare-only")
    assert prepared.returncode == 0
    assert "python -m rankhouse.training.runs.worker runs/mine" in prepared.stdout
    worker = [sys.executable, "-m", "rankhouse.training.runs.worker", "runs/mine"]
    assert subprocess.run(worker, cwd=folder, timeout=600, check=False).returncode == 0
    assert RunFolder(folder / "runs" / "mine").result is not None


def test_a_run_cannot_be_resumed_and_overwritten(folder: Path) -> None:
    failed = rankhouse_train(folder, "--resume", "--overwrite")
    assert failed.returncode == 2
    assert "--resume goes on with the run" in failed.stderr


def test_a_run_goes_on_from_another_on_the_next_days_data(first: tuple[Path, str]) -> None:
    folder, _ = first
    write_tiny_dataset(folder / "next", table_rows=TABLE_ROWS | {"user": 40}, freed=[{"user": [4]}])
    trained = rankhouse_train(folder, "--data", "next", "--run", "second", "--from", "runs/first")
    assert trained.returncode == 0, trained.stderr
    assert "runs/first/checkpoints/step-00000005 has learnt: 5 steps" in trained.stdout
    both = rankhouse_train(folder, "--resume", "--run", "second", "--from", "runs/first")
    assert both.returncode == 2
    assert "--from starts another one" in both.stderr
    back = rankhouse_train(folder, "--data", "tiny", "--run", "third", "--from", "runs/second")
    assert back.returncode == 1
    assert "layer 1 of the vocabularies is missing, was " in back.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--data", "nothing"), "nothing is no file"),
        ((), "no data is given"),
        (("--data", "tiny", "--recipe", "dlmr"), "there is no recipe 'dlmr'"),
        (("--data", "tiny", "--set", "training.sed=1"), "did you mean training.seed?"),
        (("--resume", "--run", "nothing"), "runs/nothing is not the folder of a run"),
        (("--data", "tiny", "--hosts", "a:1", "--np", "2"), "has 1 slots for 2 ranks"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_1(folder: Path, arguments: tuple[str, ...], message: str) -> None:
    failed = rankhouse_train(folder, *arguments)
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: ")
    assert message in failed.stderr
    assert failed.stderr.count("\n") == 1
    assert not (folder / "runs").exists()
