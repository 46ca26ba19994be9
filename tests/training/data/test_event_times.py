"""Times of events in raw logs, in every form that logs have them in, and what a prepared dataset keeps of them."""

from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankhouse.training.data.columns import ColumnError
from rankhouse.training.data.event_times import event_seconds
from rankhouse.training.data.extend import extend
from rankhouse.training.data.feature_spec import FeatureSpec
from rankhouse.training.data.prepared import DATASET_NAME, PreparedDataset
from rankhouse.training.data.preprocess import preprocess
from rankhouse.training.data.raw_sample import load_raw_sample
from rankhouse.training.data.readers import read_raw
from rankhouse.training.errors import PreprocessError, RawFileError

NOON = 1_769_860_800.0  # 2026-01-31 12:00 UTC
SPEC = FeatureSpec.from_document(
    {
        "name": "timed",
        "label": "y",
        "timestamp": "at",
        "features": [{"name": "n", "kind": "continuous"}, {"name": "c", "kind": "categorical"}],
    }
)


def column(values: list[Any], kind: pa.DataType | None = None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, kind)])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([NOON, None, float("nan")], [NOON, None, None]),
        ([int(NOON)], [NOON]),
        (["1769860800.25", "", None], [NOON + 0.25, None, None]),
        (["2026-01-31T12:00:00Z", "2026-01-31T14:00:00+02:00"], [NOON, NOON]),
        (["2026-01-31 12:00:00.25"], [NOON + 0.25]),
        (["2026-01-31"], [NOON - 43_200]),
        ([datetime(2026, 1, 31, 12)], [NOON]),
        ([datetime(2026, 1, 31, 14, tzinfo=timezone(timedelta(hours=2)))], [NOON]),
        ([date(2026, 1, 31)], [NOON - 43_200]),
        ([None], [None]),
    ],
)
def test_times_become_unix_seconds(values: list[Any], expected: list[float | None]) -> None:
    assert event_seconds(column(values)).to_pylist() == expected


def test_types_that_parquet_files_have() -> None:
    times = [datetime(2026, 1, 31, 12)]
    for unit in ("s", "ms", "us", "ns"):
        assert event_seconds(column(times, pa.timestamp(unit))).to_pylist() == [NOON]
    texts = column(["2026-01-31T12:00:00Z"] * 2)
    assert event_seconds(texts.dictionary_encode()).to_pylist() == [NOON] * 2
    assert event_seconds(texts.cast(pa.large_string())).to_pylist() == [NOON] * 2
    assert event_seconds(pa.chunked_array([], pa.string())).to_pylist() == []


@pytest.mark.parametrize(
    ("values", "row", "message"),
    [
        (["noon"], 0, "expected a time from 1970 on.*found 'noon'"),
        ([str(NOON), "2026-01-31"], 1, "written alike in all rows; found '2026-01-31'"),
        (["2026-01-31T12:00:00Z", "2026-01-31 12:00"], 1, "written alike"),
        ([NOON, 1000 * NOON], 1, "is it in milliseconds"),
        ([-1], 0, "found -1 seconds"),
        ([float("inf")], 0, "found inf seconds"),
        ([True], None, "a column of bool"),
        ([[NOON]], None, "a column of list"),
    ],
)
def test_what_is_no_time_is_refused(values: list[Any], row: int | None, message: str) -> None:
    with pytest.raises(ColumnError, match=message) as found:
        event_seconds(column(values))
    assert found.value.row == row


def test_files_without_a_header_have_it_last(tmp_path: Path) -> None:
    path = tmp_path / "day_0"
    path.write_text(f"1\t0.5\ta\t{NOON}\n0\t\t\t\n")
    assert pa.concat_tables(read_raw(path, SPEC)).to_pylist() == [
        {"y": 1.0, "n": 0.5, "c": "a", "at": NOON},
        {"y": 0.0, "n": None, "c": None, "at": None},
    ]
    path.write_text(f"1\t0.5\ta\t{NOON}\n0\t\t\tnoon\n")
    with pytest.raises(RawFileError, match=r"day_0, row 2, column 'at': expected a time"):
        list(read_raw(path, SPEC))
    path.write_text("1\t0.5\ta\n")
    with pytest.raises(RawFileError, match=r"expected 4 columns \(y to at\), found 3"):
        list(read_raw(path, SPEC))


def logs(path: Path, times: list[float | None]) -> Path:
    count = len(times)
    rows = {"y": [index % 2 for index in range(count)], "n": [0.5 * index for index in range(count)]}
    pq.write_table(pa.table({**rows, "c": ["a", "b"] * (count // 2), "at": pa.array(times, pa.float64())}), path)
    return path


def test_a_prepared_dataset_knows_its_newest_event(tmp_path: Path) -> None:
    train = logs(tmp_path / "train.parquet", [NOON, NOON + 60, None, NOON - 60])
    valid = logs(tmp_path / "valid.parquet", [NOON + 90, NOON + 100])
    dataset = preprocess(tmp_path / "first", SPEC, {"train": train, "valid": valid})
    assert {name: split.newest_event for name, split in dataset.splits.items()} == {
        "train": NOON + 60,
        "valid": NOON + 100,
    }
    # It is no input: neither rows nor golden requests have it.
    assert set(pq.read_schema(dataset.split_folder("train") / "part-00000.parquet").names) == {"y", "n", "c"}
    assert all("at" not in row for row in load_raw_sample(dataset.split_folder("train")))

    extended = extend(dataset.path, tmp_path / "second", {"train": valid})
    assert extended.split("train").newest_event == NOON + 100
    without = FeatureSpec(SPEC.name, SPEC.label, SPEC.features)
    untimed = extend(dataset.path, tmp_path / "third", {"train": valid}, spec=without)
    assert untimed.split("train").newest_event is None
    assert "newest_event" not in (untimed.path / DATASET_NAME).read_text()
    timed_again = extend(untimed.path, tmp_path / "fourth", {"train": train}, spec=SPEC)
    assert PreparedDataset.open(timed_again.path).split("train").newest_event == NOON + 60

    never = logs(tmp_path / "never.parquet", [None, None])
    with pytest.raises(PreprocessError, match="the timestamp 'at' has no value in any row; take it out"):
        extend(dataset.path, tmp_path / "fifth", {"train": never})
