"""Readers of raw logs: Criteo's TSV, CSV and Parquet, by path and feature spec, in bounded memory.

Whatever the file, what comes out are Arrow tables of one schema. A missing value is null in a single-valued column, and
nothing in a list: lists are never null and hold no nulls and no empty texts.
"""

import glob
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from rankhouse.training.data.columns import ColumnError, converted, label_values
from rankhouse.training.data.event_times import event_seconds
from rankhouse.training.data.feature_spec import FeatureSpec, nearest_hint
from rankhouse.training.errors import RawFileError

_CHUNK_ROWS = 65_536
_BLOCK_BYTES = 16 << 20
# Arrow counts columns from 0 and rows from 1.
_NO_UTF8 = re.compile(r"CSV column #(\d+): Row #(\d+): .*invalid UTF8")
_DELIMITED_SUFFIXES = (".tsv", ".txt", ".csv", ".gz", "")


def find_files(path: Path | str) -> list[Path]:
    """Finds the raw files that a path means: a file, a folder of files, or a pattern such as `logs/day_*.tsv.gz`.

    Returns:
        The files in the order of their names.

    Raises:
        RawFileError: There are none.
    """
    path = Path(path)
    if path.is_file():
        return [path]
    found = path.iterdir() if path.is_dir() else map(Path, glob.glob(str(path)))
    files = [
        file
        for file in sorted(found)
        if file.is_file() and not file.name.startswith((".", "_")) and file.suffix in (".parquet", *_DELIMITED_SUFFIXES)
    ]
    if not files:
        what = "has no raw files (.tsv, .csv, .parquet, or these with .gz)" if path.is_dir() else "is no file"
        raise RawFileError(f"{path} {what}; expected a file, a folder of files, or a pattern that matches files")
    return files


def read_raw(path: Path | str, spec: FeatureSpec) -> Iterator[pa.Table]:
    """Reads raw files chunk by chunk.

    A name with .parquet is read as Parquet, one with .csv as comma-separated with a header. Anything else is
    tab-separated as Criteo's: label, features in the order of the spec and the timestamp, if there is one, without a
    header, or with one that names them. A list is written `a|b|c`, and .gz is unpacked.

    Args:
        path: A file, a folder of files, or a pattern.
        spec: What the columns are; other columns are left out.

    Yields:
        Tables of the label (float32), all features in the order of the spec (int64, float64, string, or lists of
        these), and the timestamp, if the spec has one (float64: unix seconds).

    Raises:
        RawFileError: A file is missing or wrong; the message names file, row (from 1, without the header) and column.
    """
    for file in find_files(path):
        rows = 0
        for table in _read_file(file, spec):
            yield _converted_table(file, spec, table, rows)
            rows += table.num_rows


def read_rows(path: Path | str, spec: FeatureSpec, num_rows: int) -> list[dict[str, Any]]:
    """Reads the first rows as a request would carry them: values by feature name, but for those that are missing.

    Raises:
        RawFileError: As `read_raw`.
    """
    rows: list[dict[str, Any]] = []
    for table in read_raw(path, spec):
        part = table.select([feature.name for feature in spec.features]).slice(0, num_rows - len(rows))
        rows += [{name: value for name, value in row.items() if value not in (None, [])} for row in part.to_pylist()]
        if len(rows) >= num_rows:
            break
    return rows


def _read_file(file: Path, spec: FeatureSpec) -> Iterator[pa.Table]:
    try:
        if file.suffix == ".parquet":
            yield from _read_parquet(file, spec)
        else:
            yield from _read_delimited(file, spec)
    except (OSError, EOFError, pa.ArrowException) as exc:
        raise RawFileError(f"{file} cannot be read: {exc}") from exc


def _read_parquet(file: Path, spec: FeatureSpec) -> Iterator[pa.Table]:
    with pq.ParquetFile(file) as source:
        _require_columns(file, spec, source.schema_arrow.names)
        for batch in source.iter_batches(batch_size=_CHUNK_ROWS, columns=list(spec.raw_columns)):
            yield pa.Table.from_batches([batch])


def _read_delimited(file: Path, spec: FeatureSpec) -> Iterator[pa.Table]:
    is_csv = ".csv" in file.suffixes
    delimiter = "," if is_csv else "\t"
    header = _header(file, spec, delimiter, required=is_csv)
    names = header or list(spec.raw_columns)
    wrong: list[pyarrow.csv.InvalidRow] = []

    def refuse(row: pyarrow.csv.InvalidRow) -> str:
        wrong.append(row)
        return "error"

    try:
        # Everything is read as text first: a conversion of our own can say which row is wrong.
        with pyarrow.csv.open_csv(
            file,
            read_options=pyarrow.csv.ReadOptions(
                column_names=names, skip_rows=1 if header else 0, block_size=_BLOCK_BYTES, use_threads=False
            ),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=delimiter, quote_char='"' if is_csv else False, invalid_row_handler=refuse
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={name: pa.string() for name in names},
                include_columns=list(spec.raw_columns),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=True,
            ),
        ) as reader:
            for batch in reader:
                yield pa.Table.from_batches([batch])
    except pa.ArrowInvalid as exc:
        if (found := _NO_UTF8.search(str(exc))) is not None:
            column, number = (int(group) for group in found.groups())
            place = f"row {number - (1 if header else 0)}, column {names[column]!r}"
            raise RawFileError(f"{file}, {place}: expected UTF-8, found other bytes; convert the file") from exc
        if not wrong:
            raise
        row = wrong[0]
        place = f", row {row.number - (1 if header else 0)}" if row.number is not None else ""
        raise RawFileError(
            f"{file}{place}: expected {row.expected_columns} columns ({names[0]} to {names[-1]}), found "
            f"{row.actual_columns}: {row.text[:80]!r}"
        ) from exc


def _header(file: Path, spec: FeatureSpec, delimiter: str, *, required: bool) -> list[str] | None:
    """The names in the first line, where it is a header."""
    with pa.input_stream(file, compression="detect") as stream:
        begin = bytes(stream.read(1 << 16))
    if not begin:
        raise RawFileError(f"{file} is empty")
    # Spreadsheets begin their files with a byte order mark, which "utf-8-sig" leaves out.
    first_line = begin.split(b"\n", 1)[0].decode("utf-8-sig", errors="replace").rstrip("\r")
    names = [name.strip('"') for name in first_line.split(delimiter)]
    if required or spec.label in names:
        _require_columns(file, spec, names)
        return names
    return None


def _require_columns(file: Path, spec: FeatureSpec, names: Sequence[str]) -> None:
    for name in spec.raw_columns:
        if name not in names:
            raise RawFileError(
                f"{file} has no column {name!r} of the feature spec {spec.name!r} "
                f"(another layout needs another --spec); {nearest_hint(name, names)}"
            )


def _converted_table(file: Path, spec: FeatureSpec, table: pa.Table, rows_before: int) -> pa.Table:
    columns: dict[str, pa.ChunkedArray] = {}
    name = spec.label
    try:
        columns[name] = label_values(table[name])
        for feature in spec.features:
            name = feature.name
            columns[name] = converted(table[name], feature)
        if name := spec.timestamp:
            columns[name] = event_seconds(table[name])
    except ColumnError as exc:
        place = "" if exc.row is None else f", row {rows_before + exc.row + 1}"
        raise RawFileError(f"{file}{place}, column {name!r}: {exc}") from exc
    return pa.table(columns)
