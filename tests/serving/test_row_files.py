import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankhouse.serving.errors import ScoreFileError
from rankhouse.serving.gateway.served_model import FeatureDescription
from rankhouse.serving.row_files import FileRows, read_rows

FEATURES = [
    FeatureDescription("I1", "continuous", "int64", False),
    FeatureDescription("price", "continuous", "float64", False),
    FeatureDescription("C1", "categorical", "text", False),
    FeatureDescription("tags", "categorical", "text", True),
]
PLAIN = FEATURES[:3]
ROWS = [{"I1": 3, "price": 0.5, "C1": "68fd1e64"}, {"C1": "05db9164"}, {"I1": -1, "price": 2.0}]


def read(path: Path, features: list[FeatureDescription] = PLAIN, **more: Any) -> FileRows:
    return read_rows(path, features, **{"num_rows": 10, **more})


def test_a_tsv_without_a_header_has_the_models_order(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("1\t3\t0.5\t68fd1e64\n0\t\t\t05db9164\n0\t-1\t2\t\n")
    assert read(path) == FileRows(ROWS, [1.0, 0.0, 0.0], [])


def test_without_a_label_there_is_none(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("3\t0.5\t68fd1e64\n")
    assert read(path) == FileRows(ROWS[:1], None, [])


def test_a_compressed_csv_with_a_header_may_have_more_columns(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv.gz"
    path.write_bytes(gzip.compress(b'C1,day,clicked,I1\n"68fd1e64",monday,1,3\n,tuesday,0,\n'))
    assert read(path, label="clicked") == FileRows([{"I1": 3, "C1": "68fd1e64"}, {}], [1.0, 0.0], ["day"])


def test_lists_in_a_text_file_are_split(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("tags,clicks,I1\na|b,7|-8,3\n,,\nc,9,\n")
    features = [*FEATURES, FeatureDescription("clicks", "categorical", "int64", True)]
    assert read(path, features).rows == [
        {"tags": ["a", "b"], "clicks": [7, -8], "I1": 3},
        {},
        {"tags": ["c"], "clicks": [9]},
    ]
    path.write_text("clicks,I1\n7|x,3\n")
    with pytest.raises(ScoreFileError, match="column 'clicks' is list"):
        read(path, features)


def test_quotes_in_a_tsv_are_part_of_a_text(tmp_path: Path) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text('3\t0.5\t"a\n')
    assert read(path).rows[0]["C1"] == '"a'


def test_parquet_has_lists_and_nan_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    columns = {"I1": pa.array([3, None], pa.int8()), "price": [float("nan"), 0.25], "tags": [["a", "b"], []]}
    pq.write_table(pa.table(columns), path)
    assert read(path, FEATURES).rows == [{"I1": 3, "tags": ["a", "b"]}, {"price": 0.25, "tags": []}]


@pytest.mark.parametrize("num_rows", [1, 2, 3])
def test_only_the_first_rows_are_read(tmp_path: Path, num_rows: int) -> None:
    path = tmp_path / "rows.tsv"
    path.write_text("3\t0.5\t68fd1e64\n\t\t05db9164\n-1\t2\t\n")
    assert read(path, num_rows=num_rows).rows == ROWS[:num_rows]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.tsv", "1\t2\n", "names no feature of the model, and has 2 columns; .* expected 3 .* or 4"),
        ("rows.tsv", "3\t0.5\tx\n3.5\t1\ty\n", "cannot be read: column 'I1': Row #2: .*'3.5'"),
        ("rows.csv", "C1,price\nx,2\ny,dear\n", "cannot be read: column 'price': Row #3: .*'dear'"),
        ("rows.csv", "", "its first line is empty"),
        ("rows.tsv", "I1\tC1\n", "cannot be read: it has no rows"),
        ("rows.xls", "1\t2\n", "is of no known kind; expected .tsv"),
        ("rows.parquet", "no", "cannot be read: "),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ScoreFileError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScoreFileError, match=r"none\.tsv: is no file"):
        read(tmp_path / "none.tsv")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [1], "y": [2]}, "has no column of the model's; it has x, y, and the model takes I1, price, C1, tags"),
        ({"I1": [1.5]}, "column 'I1' is double; expected int64"),
        ({"tags": ["a"]}, "column 'tags' is string; expected list"),
    ],
)
def test_a_parquet_file_of_other_columns_is_refused(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(ScoreFileError, match=message):
        read(path, FEATURES)
