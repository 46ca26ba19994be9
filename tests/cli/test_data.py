"""`rankhouse data`, from synthetic logs to a prepared dataset."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankhouse.cli.data import app
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.errors import FeatureSpecError, PreprocessError

CRITEO = str(Path(__file__).parents[2] / "training/data/specs/criteo.yaml")


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_from_nothing_to_a_prepared_dataset(tmp_path: Path) -> None:
    output = run("synth", tmp_path / "a.tsv", "--rows", "1500")
    assert "best reachable AUC 0." in output
    run("synth", tmp_path / "b.parquet", "--rows", "500", "--day", "1")
    run("synth", tmp_path / "c.tsv.gz", "--rows", "300", "--seed", "1")
    out = tmp_path / "prepared"
    run(
        *("preprocess", out, "--spec", CRITEO, "--frequency-threshold", "2", "--train", tmp_path / "a.tsv"),
        *("--valid", tmp_path / "c.tsv.gz", "--valid", f"tomorrow={tmp_path / 'b.parquet'}"),
    )
    run("transform", out, tmp_path / "a.tsv", "--split", "again")
    dataset = PreparedDataset.open(out)
    assert {name: split.num_rows for name, split in dataset.splits.items()} == {
        "train": 1500,
        "valid": 300,
        "tomorrow": 500,
        "again": 1500,
    }
    assert {feature.frequency_threshold for feature in dataset.spec.categorical} == {2}
    shown = run("show", out)
    assert "C26" in shown
    assert "tomorrow: 500 rows" in shown


def test_a_new_day_extends_a_prepared_dataset(tmp_path: Path) -> None:
    for day in (0, 1):
        run("synth", tmp_path / f"{day}.tsv", "--rows", "800", "--day", str(day))
    run("preprocess", tmp_path / "day0", "--frequency-threshold", "3", "--train", tmp_path / "0.tsv")
    output = run(
        *("preprocess", tmp_path / "day1", "--extend", tmp_path / "day0", "--train", tmp_path / "1.tsv"),
        *("--valid", tmp_path / "1.tsv"),
    )
    assert "0 values made way" in output
    before, dataset = PreparedDataset.open(tmp_path / "day0"), PreparedDataset.open(tmp_path / "day1")
    assert {name: split.num_rows for name, split in dataset.splits.items()} == {"train": 800, "valid": 800}
    grown = sum(table.num_rows - before.tables[name].num_rows for name, table in dataset.tables.items())
    assert f"{grown:,} rows more" in output
    assert grown > 0
    run("transform", tmp_path / "day1", tmp_path / "0.tsv", "--split", "again")
    arguments = ["preprocess", tmp_path / "day2", "--extend", tmp_path / "day1", "--train", tmp_path / "1.tsv"]
    assert "leave out --workers" in run(*arguments, "--workers", "2")
    # The threshold of 3 is the dataset's, not the spec's.
    with pytest.raises(PreprocessError, match="feature 'C1' has frequency_threshold"):
        run(*arguments, "--spec", CRITEO)


def test_the_same_split_twice_is_refused(tmp_path: Path) -> None:
    output = run("preprocess", tmp_path / "x", "--spec", CRITEO, "--train", "a", "--valid", "b", "--valid", "c")
    assert "two splits have the name 'valid'" in output


def test_errors_come_through(tmp_path: Path) -> None:
    with pytest.raises(FeatureSpecError, match=r"no\.yaml"):
        run("preprocess", tmp_path / "x", "--spec", tmp_path / "no.yaml", "--train", "a")
    (tmp_path / "y").mkdir()
    (tmp_path / "y" / "file").touch()
    with pytest.raises(PreprocessError, match="no prepared dataset"):
        run("preprocess", tmp_path / "y", "--spec", CRITEO, "--train", "a")
