"""`rankhouse bench` finds benchmarks and hands them what follows their name."""

import pytest
from typer.testing import CliRunner

from rankhouse.cli.main import app


def test_an_unknown_benchmark_is_an_error_that_names_the_known_ones() -> None:
    result = CliRunner().invoke(app, ["bench", "nonsense"])
    assert result.exit_code == 2
    assert "embedding_ops" in result.output


def test_options_after_the_name_are_the_benchmarks_own(capfd: pytest.CaptureFixture[str]) -> None:
    result = CliRunner().invoke(app, ["bench", "embedding_ops", "--filter", "nothing"])
    assert result.exit_code != 0
    assert "no cell has all the words of --filter 'nothing'" in capfd.readouterr().err
