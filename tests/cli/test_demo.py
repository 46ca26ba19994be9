"""The demo, on fewer rows: the whole path in one test, and what it refuses."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankhouse.cli import demo
from rankhouse.cli.main import app
from rankhouse.training.errors import TrainingError


@pytest.mark.horovod
@pytest.mark.triton
@pytest.mark.timeout(1800)
def test_whole_path_and_parity(tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    result = CliRunner().invoke(app, ["demo", "--folder", str(folder), "--rows", "20000", "--replay", "200"])
    assert result.exit_code == 0, result.output
    assert "200 rows, at most" in result.output
    assert (folder / "dlrm" / "report.html").is_file()
    assert (folder / "store" / "versions").is_dir()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    precious = tmp_path / "precious.txt"
    precious.write_text("keep me")
    result = CliRunner().invoke(app, ["demo", "--folder", str(tmp_path)])
    assert isinstance(result.exception, TrainingError)
    assert "precious.txt" in str(result.exception)
    assert precious.read_text() == "keep me"


def test_scores_that_differ_end_the_demo() -> None:
    with pytest.raises(demo.ServingError, match="differ from the trainer"):
        demo.check_parity(demo.Replay(1000, 1e-3, 2.0, 3.0))


def test_scores_that_are_no_numbers_end_the_demo() -> None:
    with pytest.raises(demo.ServingError, match="differ"):
        demo.check_parity(demo.Replay(1000, float("nan"), 2.0, 3.0))
