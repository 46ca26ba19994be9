from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankhouse.cli.main import app
from rankhouse.training.checkpoint import save_checkpoint
from rankhouse.training.errors import CheckpointError
from rankhouse.training.ranks import Ranks
from tests.training.small_model import build


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    ranks = Ranks(0, 1)
    state = build(ranks)
    for step in (5, 10):
        save_checkpoint(tmp_path / "checkpoints", state, ranks=ranks, step=step, document={"epoch": 1})
    return tmp_path


def run(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["checkpoint", *map(str, arguments)])
    if result.exception:
        raise result.exception
    return result.output


def test_list_names_each_checkpoint(run_folder: Path) -> None:
    header, *lines = run("list", run_folder).splitlines()
    assert header.split() == ["step", "ranks", "tables", "MiB", "folder"]
    assert [line.split()[:3] for line in lines] == [["5", "1", "3"], ["10", "1", "3"]]
    assert run("list", run_folder / "checkpoints") == run("list", run_folder)


def test_inspect_shows_the_latest_or_the_one_named(run_folder: Path) -> None:
    output = run("inspect", run_folder)
    for text in (
        "step 10, 1 ranks, Adagrad",
        "0 steps over all runs, 1 checkpoints before",
        "epoch: 1",
        "weights, accumulator",
        "18 x 1",
    ):
        assert text in output
    assert "step 5," in run("inspect", run_folder / "checkpoints" / "step-00000005")


def test_verify_names_the_altered_file(run_folder: Path) -> None:
    assert run("verify", run_folder).count("sound") == 2
    file = run_folder / "checkpoints" / "step-00000005" / "tables" / "item.weights.0-60.safetensors"
    file.write_bytes(bytes(file.stat().st_size))
    with pytest.raises(CheckpointError, match=file.name):
        run("verify", run_folder)


@pytest.mark.parametrize("verb", ["list", "inspect", "verify"])
def test_refuses_a_folder_without_checkpoints(verb: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no complete checkpoint"):
        run(verb, tmp_path)
