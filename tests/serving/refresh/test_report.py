from pathlib import Path

import pytest

from rankhouse.serving.golden import GoldenReport
from rankhouse.serving.refresh.report import AgentReport, read_report, write_report

REPORTS = [
    AgentReport(),
    AgentReport(
        is_ready=True,
        served="000001-aaaaaaaa",
        golden=GoldenReport(1, 2, 3e-7),
        loaded=("000001-aaaaaaaa",),
        failed={"000002-bbbbbbbb": "disk full"},
        alone_bytes={"000001-aaaaaaaa": 12},
    ),
]


@pytest.mark.parametrize("report", REPORTS)
def test_a_report_is_read_as_it_was_written(tmp_path: Path, report: AgentReport) -> None:
    write_report(tmp_path / "refresh.json", report)
    assert read_report(tmp_path / "refresh.json") == report


def test_there_may_be_none_yet(tmp_path: Path) -> None:
    assert read_report(tmp_path / "refresh.json") is None


def test_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "refresh.json").write_text("{")
    with pytest.raises(ValueError, match="Expecting"):
        read_report(tmp_path / "refresh.json")
