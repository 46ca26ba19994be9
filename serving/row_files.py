"""Rows of a user's file as requests carry them: raw values, missing ones left out."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from rankhouse.serving.errors import ScoreFileError
from rankhouse.serving.gateway.served_model import FeatureDescription

_TYPES = {"int64": pa.int64(), "float64": pa.float64(), "text": pa.string()}
_COLUMN_NUMBER = re.compile(r"In CSV column #(\d+)")
_DELIMITERS = {".tsv": "\t", ".txt": "\t", ".csv": ","}
_LIST_SEPARATOR = "|"  # In text files, as in the logs that the model learnt from.


@dataclass(frozen=True)
class FileRows:
    """The first rows of a file.

    Attributes:
        rows: The features of each row that are not missing.
        labels: The label of each row; None where the file has none.
        ignored: The file's columns that are neither a feature nor the label.
    """

    rows: list[dict[str, Any]]
    labels: list[Any] | None
    ignored: list[str]


def read_rows(path: Path, features: Sequence[FeatureDescription], *, num_rows: int, label: str = "label") -> FileRows:
    """Reads the first rows of a TSV, CSV (plain or gz) or Parquet file.

    A text file without a header has a column for each feature in the model's order, after the label if there is one.
    A list is written `a|b|c` in text files.

    Args:
        path: The file.
        features: The features that the model takes; what else the file holds is left alone.
        num_rows: How many rows to read at most.
        label: The column of the label.

    Raises:
        ScoreFileError: The file cannot be read, has no column of the model's, or a value of the wrong type.
    """
    types = {feature.name: _arrow_type(feature) for feature in features}
    suffix = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if not path.is_file():
        raise ScoreFileError(f"{path}: is no file")
    try:
        if suffix == ".parquet":
            table = _first_rows(pq.ParquetFile(path).iter_batches(batch_size=max(num_rows, 1)), num_rows)
        elif suffix in _DELIMITERS:
            table = _read_text(path, _DELIMITERS[suffix], types, label, num_rows)
        else:
            raise ScoreFileError(f"{path}: is of no known kind; expected .tsv, .txt, .csv (also with .gz) or .parquet")
    except (OSError, pa.ArrowException) as exc:
        raise ScoreFileError(f"{path}: cannot be read: {exc}") from exc
    known = [name for name in table.column_names if name in types]
    if not known:
        raise ScoreFileError(
            f"{path}: has no column of the model's; it has {', '.join(table.column_names)}, "
            f"and the model takes {', '.join(types)}"
        )
    columns = {name: _values(path, table.column(name), types[name], name) for name in known}
    return FileRows(
        rows=[
            {name: column[row] for name, column in columns.items() if column[row] is not None}
            for row in range(table.num_rows)
        ],
        labels=table.column(label).to_pylist() if label in table.column_names else None,
        ignored=[name for name in table.column_names if name not in types and name != label],
    )


def _arrow_type(feature: FeatureDescription) -> pa.DataType:
    value = _TYPES[feature.dtype]
    return pa.list_(value) if feature.is_list else value


def _text_type(wanted: pa.DataType | None) -> pa.DataType:
    """What a column is read as from a text file: lists are split later."""
    return pa.string() if wanted is None or pa.types.is_list(wanted) else wanted


def _read_text(path: Path, delimiter: str, types: dict[str, pa.DataType], label: str, num_rows: int) -> pa.Table:
    names, is_header = _column_names(path, delimiter, list(types), label)
    try:
        reader = pyarrow.csv.open_csv(
            path,
            # The reader takes types from the first block, and all of them are given: text is what nobody uses. Only
            # without threads does it know the row of a wrong value.
            read_options=pyarrow.csv.ReadOptions(
                column_names=None if is_header else names, block_size=1 << 20, use_threads=False
            ),
            parse_options=pyarrow.csv.ParseOptions(delimiter=delimiter, quote_char='"' if delimiter == "," else False),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={name: _text_type(types.get(name)) for name in names} | {label: pa.float64()},
                strings_can_be_null=True,
                null_values=[""],
                quoted_strings_can_be_null=True,
            ),
        )
        table = _first_rows(iter(reader), num_rows)
    except pa.ArrowInvalid as exc:
        message = _COLUMN_NUMBER.sub(lambda match: f"column {names[int(match[1])]!r}", str(exc))
        raise pa.ArrowInvalid(message) from exc
    for number, name in enumerate(names):
        if name in types and pa.types.is_list(types[name]):
            table = table.set_column(number, name, pc.split_pattern(table.column(name), _LIST_SEPARATOR))
    return table


def _column_names(path: Path, delimiter: str, features: list[str], label: str) -> tuple[list[str], bool]:
    """The columns of a file, and whether its first line names them."""
    with pa.input_stream(path, compression="detect") as stream:
        line = stream.read(1 << 20).split(b"\n", 1)[0].decode(errors="replace").rstrip("\r")
    if not line:
        raise ScoreFileError(f"{path}: its first line is empty; expected a row, or a header")
    cells = [cell.strip('"') for cell in line.split(delimiter)]
    if set(cells) & set(features):
        return cells, True
    for names in ([label, *features], features):
        if len(cells) == len(names):
            return names, False
    raise ScoreFileError(
        f"{path}: its first line names no feature of the model, and has {len(cells)} columns; without a header, "
        f"expected {len(features)} (the features in the model's order) or {len(features) + 1} (the label first)"
    )


def _first_rows(batches: Iterator[pa.RecordBatch], num_rows: int) -> pa.Table:
    taken, num_taken = [], 0
    for batch in batches:
        taken.append(batch.slice(0, num_rows - num_taken))
        num_taken += len(taken[-1])
        if num_taken >= num_rows:
            break
    if not num_taken:
        raise pa.ArrowInvalid("it has no rows")
    return pa.Table.from_batches(taken)


def _values(path: Path, column: pa.ChunkedArray, wanted: pa.DataType, name: str) -> list[Any]:
    try:
        values = column.cast(wanted).to_pylist()
    except (pa.ArrowException, NotImplementedError) as exc:
        raise ScoreFileError(f"{path}: column {name!r} is {column.type}; expected {wanted}: {exc}") from exc
    # NaN is how Parquet files from pandas say that a number is missing.
    return [None if value != value else value for value in values]
