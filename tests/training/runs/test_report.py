import base64
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rankhouse.training.config import Config
from rankhouse.training.errors import PlanError
from rankhouse.training.plan import TableSpec, make_plan
from rankhouse.training.runs.folder import Result, RunFolder
from rankhouse.training.runs.report import write_report
from rankhouse.training.runs.traffic import ExchangeTraffic, RunTraffic

METRICS = (
    {"step": 1, "epoch": 0.5, "loss": 0.7, "samples_per_second": 100.0, "seconds": 0.1},
    {"step": 2, "epoch": 1.0, "loss": 0.6, "samples_per_second": 200.0, "seconds": 0.2},
    {"step": 2, "auc": 0.71239, "valid_loss": 0.61, "evaluation_seconds": 0.1},
)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder.create(tmp_path / "a & b", Config())
    plan = make_plan([TableSpec("user", 90_000, 16), TableSpec("shop", 50, 16)], num_ranks=2)
    run.plan_json_file.write_text(json.dumps(plan.document()))
    return run


def write(run: RunFolder, *metrics: dict[str, object]) -> str:
    run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in metrics))
    write_report(run)
    return run.report_file.read_text()


def plots(page: str) -> list[str]:
    return [base64.b64decode(data).decode() for data in re.findall(r"data:image/svg\+xml;base64,([\w+/=]+)", page)]


def test_it_shows_the_figures_the_plan_and_the_configuration(run: RunFolder) -> None:
    run.write_result(Result(num_steps=2, num_samples=40, num_ranks=2, seconds=0.2, auc=0.71239, valid_loss=0.61))
    page = write(run, *METRICS)
    for text in ("a &amp; b", "Training run, finished. 2 ranks", "<b>0.7124</b>", "<b>200</b>", "0.2 s", "90,000"):
        assert text in page, text
    assert re.search(r"user</td>.*90,000.*5\.49.*rank 0", page)
    assert re.search(r"shop</td>.*every rank", page)
    assert "Decided by the tables&#x27; sizes" in page
    assert "to the least loaded rank, largest first" in page
    assert "learning_rate: 0.03" in page


def test_every_plot_is_an_image_with_its_units(run: RunFolder) -> None:
    found = plots(write(run, *METRICS))
    assert len(found) == 4
    for svg, label in zip(found, ("(nats)", "AUC", "samples/s", "MiB"), strict=True):
        ElementTree.fromstring(svg)
        assert label in svg


def test_what_travels_is_shown_for_each_exchange_and_together(run: RunFolder) -> None:
    assert "What travels" not in write(run, *METRICS)
    exchanges = (
        ExchangeTraffic(
            name="rows",
            bytes_sent=(2048.0, 4096.0),
            bytes_received=(4096.0, 2048.0),
            format="rows travel as float16: <fine>",
            max_relative_error=0.0004,
            num_saturated=1234,
        ),
        ExchangeTraffic(name="ids", bytes_sent=(1024.0, 0.0), bytes_received=(0.0, 1024.0)),
    )
    run.traffic_file.write_text(RunTraffic(10, exchanges).to_json())
    page = write(run, *METRICS)
    assert re.search(r"rows</td>.*3\.00.*4\.00.*0\.04%, 1,234 saturated.*float16: &lt;fine&gt;", page)
    assert re.search(r"ids</td>.*0\.50.*1\.00.*<td class=\"number\"></td><td></td>", page)
    assert re.search(r"together</td>.*3\.50.*4\.00", page)
    run.traffic_file.write_text(RunTraffic(10, exchanges[1:]).to_json())
    page = write(run, *METRICS)
    assert "Nothing is rounded on its way." in page
    assert re.search(r"<th[^>]*>most</th></tr>.*ids</td>", page)
    run.traffic_file.write_text(RunTraffic(10, ()).to_json())
    assert "What travels" not in write(run, *METRICS)


def test_the_page_needs_nothing_from_elsewhere(run: RunFolder) -> None:
    page = write(run, *METRICS)
    assert "<script" not in page
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)


def test_the_same_run_gives_the_same_page(run: RunFolder) -> None:
    assert write(run, *METRICS) == write(run, *METRICS)


@pytest.mark.parametrize("num_lines", [0, 1])
def test_an_unfinished_run_has_a_report_as_well(run: RunFolder, num_lines: int) -> None:
    page = write(run, *METRICS[:num_lines])
    assert "not finished" in page
    assert len(plots(page)) == 4


def test_an_undefined_auc_is_said_so(run: RunFolder) -> None:
    assert "<b>undefined</b>" in write(run, *METRICS[:2], {**METRICS[2], "auc": None})


def test_a_run_without_plan_has_no_report(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", Config())
    with pytest.raises(PlanError, match=r"cannot read a plan from .*plan\.json"):
        write_report(run)
