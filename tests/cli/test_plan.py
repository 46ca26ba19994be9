from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankhouse.cli.main import app
from rankhouse.training.errors import NoRoomError, PlanError, TrainingError
from rankhouse.training.plan import Plan
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
    assert output.startswith("Tables with fewer than 15 rows lie on every rank")
    holders = [tuple(line.split(maxsplit=5)) for line in output.splitlines()[3:6]]
    assert [(table, rows, dtype, holder.strip()) for table, rows, _, dtype, _, holder in holders] == [
        ("user", "30", "float32", "rank 0"),
        ("item", "20", "float32", "rank 1"),
        ("shop", "7", "float32", "every rank"),
    ]
    assert "rank 1: 0.00 MiB of weights; owns item" in output


def test_by_default_small_tables_lie_everywhere(dataset: Path) -> None:
    output = run(dataset)
    assert output.count("  every rank") == 3
    assert output.count("owns no table of its own") == 2


def test_plans_by_cost_for_other_hardware(dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "tables.yaml").write_text("item: {mode: row_wise}\n")
    output = run(dataset, "--hardware", "a100", "--constraints", tmp_path / "tables.yaml", "--optimizer", "adam")
    assert output.startswith("3 tables on 2 ranks of a100: ")
    assert "item by rows over 2 ranks, unique ids travel and rows come back: as its constraint says" in output


def test_plans_a_recipe_and_writes_what_training_takes(dataset: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("training: {batch_size: 512}\nparallel:\n  tables: {user: {mode: row_wise}}\n")
    by_size = run(dataset, "--recipe", recipe, "--output", tmp_path / "by_size.json")
    assert f"train with it by --set parallel.plan={tmp_path / 'by_size.json'}" in by_size
    assert [item.mode for item in Plan.read(tmp_path / "by_size.json").placements] == [
        *("data_parallel", "data_parallel", "row_wise")
    ]
    by_cost = run(dataset, "--recipe", recipe, "--hardware", "2-cores", "--output", tmp_path / "by_cost.json")
    assert "a step of 512 samples" in by_cost
    written = Plan.read(tmp_path / "by_cost.json")
    assert written.placement("user").mode == "row_wise"
    again = run(dataset, "--set", f"parallel.plan={tmp_path / 'by_cost.json'}")
    assert all(written.explain_rank(rank) in again for rank in range(2))


def test_refuses_a_plan_that_is_not_there(dataset: Path) -> None:
    with pytest.raises(PlanError, match=r"cannot read a plan from nothing\.json"):
        run(dataset, "--set", "parallel.plan=nothing.json")


def test_refuses_memory_that_nothing_would_be_held_against(dataset: Path) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["plan", str(dataset), "--memory", "1"])
    assert result.exit_code == 2
    assert "--memory limits a plan by cost; give --hardware too" in result.output


def test_plans_a_synthetic_model_and_draws_it(tmp_path: Path) -> None:
    output = run("--model", "tiny", "--ranks", 8, "--hardware", "h100", "--picture", tmp_path / "plan.svg")
    assert output.startswith("55 tables on 8 ranks of h100: ")
    assert (tmp_path / "plan.svg").exists()


def test_refuses_what_does_not_fit() -> None:
    with pytest.raises(NoRoomError, match=r"do not fit 1 rank of 67\.06 GiB usable memory"):
        run("--model", "medium", "--ranks", 1)


def test_refuses_what_is_no_dataset(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match=r"dataset\.json"):
        run(tmp_path)


@pytest.mark.parametrize(
    "option", ["--ranks=0", "--threshold=-1", "--rank=2", "--model=tiny", "--output=/nothing/plan.json"]
)
def test_refuses_impossible_options(dataset: Path, option: str) -> None:
    with pytest.raises(SystemExit):
        run(dataset, option)
