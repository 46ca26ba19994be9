"""What the ensemble's benchmark hands to perf_analyzer, and reads of it."""

import base64
import json
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.ensemble import OURS, STEPS, WHOLE, Cell, sheets
from benchmarks.support.ensemble.perf_analyzer import Load, PerfAnalyzerError, read_report, write_data
from benchmarks.support.ensemble.wire import ensemble_tensors, whole_model_tensors
from rankhouse.embedding_cache.format.feature import DenseSteps, Feature
from rankhouse.embedding_cache.format.raw import RawBatch

FEATURES = (
    Feature("price", "continuous", "float64", steps=DenseSteps()),
    Feature("city", "categorical", "text", table="city", dim=4, combiner="sum"),
    Feature("home", "categorical", "text", table="city", dim=4, combiner="sum"),
)
ROWS = [{"price": 2.5, "city": "köln"}, {"home": "oslo"}]
REPORT = (
    "Concurrency,Inferences/Second,Client Send,p50 latency,p90 latency,p95 latency,p99 latency\n"
    "4,640.5,12,1500,1600,1700,2500\n"
)


def test_a_report_is_read_in_requests_and_milliseconds() -> None:
    assert read_report(REPORT, batch_size=1) == Load(640.5, 1.5, 2.5)
    assert read_report(REPORT, batch_size=64).requests_per_second == pytest.approx(640.5 / 64)


@pytest.mark.parametrize("text", ["", REPORT.splitlines()[0], REPORT.replace("p99 latency", "p999"), REPORT + "4,1\n"])
def test_a_report_without_figures_is_refused(text: str) -> None:
    with pytest.raises(PerfAnalyzerError, match=f"no line of figures: {re.escape(repr(text)[:20])}"):
        read_report(text, batch_size=1)


def test_requests_keep_every_bit_in_a_file(tmp_path: Path) -> None:
    tensors = ensemble_tensors(RawBatch.from_rows(FEATURES, ROWS))
    write_data(tmp_path / "data.json", [tensors])
    (entry,) = json.loads((tmp_path / "data.json").read_text())["data"]
    assert set(entry) == set(tensors)
    for name, array in tensors.items():
        assert entry[name]["shape"] == list(array.shape)
        if array.size:
            assert base64.b64decode(entry[name]["b64"]) == array.tobytes()
        else:
            assert entry[name]["content"] == []


def test_raw_columns_of_the_whole_model() -> None:
    tensors = whole_model_tensors(FEATURES, ROWS)
    np.testing.assert_array_equal(tensors["float_values"], [[2.5], [np.nan]])
    assert tensors["texts"].tolist() == [["köln".encode(), b""], [b"", b"oslo"]]


def test_the_report_says_how_many_cells_meet_the_aim() -> None:
    few, many = Cell(1, 64), Cell(16, 64)
    loads = {
        few: {OURS: [Load(300, 1, 2), Load(500, 3, 4)], STEPS: [Load(100, 1, 1)], WHOLE: [Load(250, 1, 1)]},
        many: {OURS: [Load(300, 1, 2)], STEPS: [Load(100, 1, 1)], WHOLE: [Load(50, 1, 1)]},
    }
    figures, aims = sheets(loads)
    assert figures.lines[0] == ["1", "64", OURS, "400", "25,600", "2.00", "3.00", "1.00x"]
    assert aims.lines == [
        ["2x Python steps", "2 of 2", "3.50", "3.00", "concurrency 16, 64 candidates"],
        ["2x TensorFlow", "1 of 2", "3.80", "1.60", "concurrency 1, 64 candidates"],
    ]
