"""Staging: raw logs in the one form that NVTabular's CPU backend takes without loss, and their statistics.

Continuous features are float64, because an integer column changes its dtype wherever a value is missing; categorical
integers are text, because that same change would merge ids above 2**53.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rankhouse.training.data.feature_spec import AnyFeature, FeatureSpec
from rankhouse.training.data.readers import read_raw
from rankhouse.training.errors import PreprocessError

# A file is one partition of Dask's: what one worker has in memory at a time.
_FILE_ROWS = 131_072


@dataclass(frozen=True)
class StagedSplit:
    """Raw rows as NVTabular takes them.

    Attributes:
        files: Parquet files of one row group each, in the order of the rows.
        num_rows: All rows.
        positive_rate: The share of rows with label 1.
        missing_rates: For each feature the share of rows without a value.
    """

    files: tuple[Path, ...]
    num_rows: int
    positive_rate: float
    missing_rates: dict[str, float]


def stage(path: Path | str, spec: FeatureSpec, folder: Path, on_rows: Callable[[int], None]) -> StagedSplit:
    """Reads raw logs and writes them to `folder`.

    Args:
        path: A file, a folder of files, or a pattern.
        spec: What the columns are.
        folder: Where to write; it is made.
        on_rows: Called with the number of rows read since the last call.

    Raises:
        RawFileError: A file is missing or wrong.
        PreprocessError: There are no rows.
    """
    folder.mkdir(parents=True)
    files: list[Path] = []
    missing: Counter[str] = Counter()
    positives = num_rows = 0
    for table in _in_parts(read_raw(path, spec)):
        for feature in spec.features:
            missing[feature.name] += _num_missing(table[feature.name], feature)
        positives += int(pc.sum(table[spec.label]).as_py())
        num_rows += table.num_rows
        files.append(folder / f"part-{len(files):05d}.parquet")
        columns = {feature.name: _staged(table[feature.name], feature) for feature in spec.features}
        staged = pa.table({spec.label: table[spec.label], **columns})
        pq.write_table(staged, files[-1], row_group_size=_FILE_ROWS, compression="lz4")
        on_rows(table.num_rows)
    if not num_rows:
        raise PreprocessError(f"{path} has no rows")
    rates = {feature.name: missing[feature.name] / num_rows for feature in spec.features}
    return StagedSplit(tuple(files), num_rows, positives / num_rows, rates)


def _in_parts(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Cuts tables anew, so that each has `_FILE_ROWS` rows and only the last has less."""
    pending: list[pa.Table] = []
    num_rows = 0
    for table in tables:
        pending.append(table)
        num_rows += table.num_rows
        while num_rows >= _FILE_ROWS:
            joined = pa.concat_tables(pending)
            yield joined.slice(0, _FILE_ROWS)
            pending = [joined.slice(_FILE_ROWS)]
            num_rows -= _FILE_ROWS
    if num_rows:
        yield pa.concat_tables(pending)


def _num_missing(column: pa.ChunkedArray, feature: AnyFeature) -> int:
    missing = pc.equal(pc.list_value_length(column), 0) if feature.is_list else pc.is_null(column)
    return int(pc.sum(missing).as_py() or 0)


def _staged(column: pa.ChunkedArray, feature: AnyFeature) -> pa.ChunkedArray:
    if feature.kind == "continuous":
        return column.cast(pa.float64(), safe=False)
    return column.cast(pa.list_(pa.string()) if feature.is_list else pa.string())
