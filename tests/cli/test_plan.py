from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankhouse.cli.main import app
from rankhouse.training.errors import TrainingError
from tests.training.tiny_dataset import write_tiny_dataset


def run(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["plan", *map(str, arguments)])
    if result.exception:
        raise result.exception
    return result.output


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_tiny_dataset(tmp_path / "dataset")


def test_shows_where_each_table_lies_and_why(dataset: Path) -> None:
    output = run(dataset, "--ranks", 2, "--threshold", 15)
    lines = {line.split()[0]: line for line in output.splitlines()}
    assert "on every rank: 7 rows are fewer than 15" in lines["shop"]
    assert "on rank 0" in lines["user"]
    assert "on rank 1" in lines["item"]
    assert "rank 1: 0.0 MiB of weights, 1 tables of its own" in output


def test_by_default_small_tables_lie_everywhere(dataset: Path) -> None:
    assert run(dataset).count("on every rank") == 3


def test_refuses_what_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"dataset\.json"):
        run(tmp_path)


@pytest.mark.parametrize("option", ["--ranks=0", "--threshold=-1", "--rank=2"])
def test_refuses_impossible_options(dataset: Path, option: str) -> None:
    with pytest.raises(SystemExit):
        run(dataset, option)
