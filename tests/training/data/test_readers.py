import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankhouse.training.data import readers
from rankhouse.training.data.feature_spec import FeatureSpec
from rankhouse.training.data.readers import find_files, read_raw, read_rows
from rankhouse.training.errors import RawFileError

SPEC = FeatureSpec.from_document(
    {
        "name": "small",
        "label": "y",
        "features": [
            {"name": "n", "kind": "continuous", "dtype": "int64"},
            {"name": "f", "kind": "continuous"},
            {"name": "t", "kind": "categorical"},
            {"name": "i", "kind": "categorical", "dtype": "int64"},
            {"name": "tl", "kind": "categorical", "list": True},
            {"name": "il", "kind": "categorical", "dtype": "int64", "list": True},
        ],
    }
)
ROWS = [
    {"y": 1.0, "n": 3, "f": 0.5, "t": "a", "i": 2**62 + 1, "tl": ["x", "y"], "il": [1, -2]},
    {"y": 0.0, "n": None, "f": None, "t": None, "i": None, "tl": [], "il": []},
    {"y": 1.0, "n": -4, "f": 1e300, "t": "NA", "i": 0, "tl": ["é"], "il": [7]},
]
LINES = [
    f"1{{0}}3{{0}}0.5{{0}}a{{0}}{2**62 + 1}{{0}}x|y{{0}}1|-2",
    "0" + "{0}" * 6,
    "1{0}-4{0}1e300{0}NA{0}0{0}|é|{0}7",
]
TYPES = {
    "y": pa.int8(),
    "n": pa.int64(),
    "f": pa.float64(),
    "t": pa.string(),
    "i": pa.int64(),
    "tl": pa.list_(pa.string()),
    "il": pa.list_(pa.int64()),
}


def lines(separator: str) -> list[str]:
    return [line.format(separator) for line in LINES]


def read(path: Path) -> list[dict[str, Any]]:
    return pa.concat_tables(read_raw(path, SPEC)).to_pylist()


def write_parquet(path: Path, **columns: pa.Array) -> Path:
    whole = {name: pa.array([row[name] for row in ROWS], kind) for name, kind in TYPES.items()}
    pq.write_table(pa.table(whole | columns), path)
    return path


def test_tab_separated_without_header(tmp_path: Path) -> None:
    (tmp_path / "day_0").write_text("\n".join(lines("\t")))
    assert read(tmp_path / "day_0") == ROWS


def test_tab_separated_with_header_in_another_order(tmp_path: Path) -> None:
    header = "extra\t" + "\t".join(SPEC.columns)
    (tmp_path / "x.tsv").write_text("\n".join([header, *("?\t" + line for line in lines("\t"))]))
    assert read(tmp_path / "x.tsv") == ROWS


def test_comma_separated_and_quoted(tmp_path: Path) -> None:
    text = "\r\n".join([",".join(SPEC.columns), *lines(",")]).replace("NA", '"NA"').replace(",a,", ',"a",')
    (tmp_path / "x.csv").write_bytes(text.encode())
    assert read(tmp_path / "x.csv") == ROWS


def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("\n".join([",".join(SPEC.columns), *lines(",")]), encoding="utf-8-sig")
    assert read(tmp_path / "x.csv") == ROWS


@pytest.mark.parametrize("header", [True, False])
def test_a_text_that_is_no_utf8_is_named(tmp_path: Path, header: bool) -> None:
    names = ["\t".join(SPEC.columns)] if header else []
    (tmp_path / "x.tsv").write_bytes("\n".join([*names, *lines("\t")]).encode("latin-1"))
    with pytest.raises(RawFileError, match=r"x\.tsv, row 3, column 'tl': expected UTF-8"):
        read(tmp_path / "x.tsv")


@pytest.mark.parametrize(("name", "separator"), [("x.tsv.gz", "\t"), ("x.csv.gz", ","), ("day_0.gz", "\t")])
def test_compressed(tmp_path: Path, name: str, separator: str) -> None:
    header = [separator.join(SPEC.columns)] if "csv" in name else []
    (tmp_path / name).write_bytes(gzip.compress("\n".join([*header, *lines(separator)]).encode()))
    assert read(tmp_path / name) == ROWS


def test_parquet(tmp_path: Path) -> None:
    assert read(write_parquet(tmp_path / "x.parquet")) == ROWS


def test_parquet_as_pandas_and_spark_write_it(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path / "x.parquet",
        n=pa.array([3.0, float("nan"), -4.0]),
        f=pa.array([0.5, float("nan"), 1e300]),
        t=pa.array(["a", "", "NA"]).dictionary_encode(),
        tl=pa.array([["x", None, "y"], None, ["", "é"]], pa.large_list(pa.large_string())),
        il=pa.array([[1, -2], None, [7]], pa.list_(pa.int32())),
        y=pa.array([True, False, True]),
    )
    assert read(path) == ROWS


def test_chunks_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_BLOCK_BYTES", 1 << 10)
    monkeypatch.setattr(readers, "_CHUNK_ROWS", 7)
    (tmp_path / "x.tsv").write_text("\n".join(lines("\t") * 100))
    assert read(tmp_path / "x.tsv") == ROWS * 100
    assert len(list(read_raw(tmp_path / "x.tsv", SPEC))) > 1


def test_a_folder_and_a_pattern(tmp_path: Path) -> None:
    for name in ("b.tsv", "a.tsv", "_SUCCESS", ".hidden.tsv", "notes.json"):
        (tmp_path / name).write_text(lines("\t")[0])
    assert [path.name for path in find_files(tmp_path)] == ["a.tsv", "b.tsv"]
    assert [path.name for path in find_files(tmp_path / "b*.tsv")] == ["b.tsv"]
    assert len(read(tmp_path)) == 2


def test_rows_are_as_a_request_carries_them(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("\n".join(lines("\t")))
    first, empty = read_rows(tmp_path / "x.tsv", SPEC, 2)
    assert first == {name: value for name, value in ROWS[0].items() if name != "y"}
    assert empty == {}


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("y", "2", "row 302, column 'y': a label is 0 or 1, found '2'|found 2.0"),
        ("y", "", "row 302, column 'y': a label is 0 or 1, found nothing"),
        ("n", "3.5", "row 302, column 'n': expected a 64-bit integer, found '3.5'"),
        ("n", "9223372036854775808", "column 'n': expected a 64-bit integer, found '9223372036854775808'"),
        ("f", "1,5", "row 302, column 'f': expected a finite number, found '1,5'"),
        ("f", "-inf", "row 302, column 'f': expected a finite number, found '-inf'"),
        ("i", "x", "row 302, column 'i': expected a 64-bit integer, found 'x'"),
        ("il", "1|two|3", "row 302, column 'il': expected a 64-bit integer, found 'two'"),
    ],
)
def test_a_wrong_value_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str, value: str, message: str
) -> None:
    monkeypatch.setattr(readers, "_BLOCK_BYTES", 1 << 10)
    wrong = lines("\t")[0].split("\t")
    wrong[SPEC.columns.index(column)] = value
    (tmp_path / "x.tsv").write_text("\n".join([*lines("\t") * 100, lines("\t")[2], "\t".join(wrong)]))
    with pytest.raises(RawFileError, match=message) as error:
        read(tmp_path / "x.tsv")
    assert str(tmp_path / "x.tsv") in str(error.value)


def test_a_short_row_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("\n".join([*lines("\t"), "1\t2"]))
    with pytest.raises(RawFileError, match=r"x\.tsv, row 4: expected 7 columns \(y to il\), found 2: '1\\t2'"):
        read(tmp_path / "x.tsv")


def test_a_short_row_after_a_header_is_counted_without_it(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("\n".join([",".join(SPEC.columns), *lines(","), "1,2"]))
    with pytest.raises(RawFileError, match=r"x\.csv, row 4: expected 7 columns"):
        read(tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("column", "array", "message"),
    [
        ("n", pa.array([1.0, 2.5, 3.0]), "row 2, column 'n': expected a 64-bit integer, found 2.5"),
        ("f", pa.array([1.0, 2.5, float("inf")]), "row 3, column 'f': expected a finite number, found an infinite one"),
        ("t", pa.array([1, 2, 3]), "column 't': expected a text in each row, found a column of int64"),
        ("f", pa.array(np.ones(3, np.float16)), "'f': expected a finite number in each row, found a column of half"),
        ("tl", pa.array([1, 2, 3]), "column 'tl': expected lists, found int64"),
        ("t", pa.array([["a"]] * 3), r"column 't': holds lists .*say `list: true`"),
        ("il", pa.array([[1], [2], [2.5]]), "row 3, column 'il': expected a 64-bit integer, found 2.5"),
    ],
)
def test_a_wrong_parquet_column_is_named(tmp_path: Path, column: str, array: pa.Array, message: str) -> None:
    with pytest.raises(RawFileError, match=message):
        read(write_parquet(tmp_path / "x.parquet", **{column: array}))


def test_a_missing_column_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("y,n,f,T2,i,tl,il\n")
    with pytest.raises(RawFileError, match="has no column 't' of the feature spec"):
        read(tmp_path / "x.csv")


@pytest.mark.parametrize("name", ["nothing.tsv", "nothing*.tsv"])
def test_a_path_that_is_nothing(tmp_path: Path, name: str) -> None:
    with pytest.raises(RawFileError, match="is no file"):
        read(tmp_path / name)


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(RawFileError, match="has no raw files"):
        read(tmp_path)


@pytest.mark.parametrize(("name", "content"), [("x.tsv", b""), ("x.parquet", b"PAR1 no"), ("x.tsv.gz", b"\x1f\x8b no")])
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RawFileError, match=name):
        read(tmp_path / name)


def test_text_that_is_not_utf_8(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_bytes(lines("\t")[0].encode().replace(b"\ta\t", b"\t\xff\t"))
    with pytest.raises(RawFileError, match=r"x\.tsv"):
        read(tmp_path / "x.tsv")
