"""Staging: raw logs in the one form that NVTabular's CPU backend takes without loss.

Continuous features are float64, because an integer column changes its dtype wherever a value is missing; categorical
integers are text, because that same change would merge ids above 2**53. Columns of keys that are learnt in training
stay as they are: NVTabular never sees them.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from rankhouse.training.data.feature_spec import AnyFeature, FeatureSpec
from rankhouse.training.data.raw_parts import RawStatistics, read_parts


@dataclass(frozen=True)
class StagedSplit:
    """Raw rows as NVTabular takes them.

    Attributes:
        spec: What the columns are.
        files: Parquet files of one row group each, in the order of the rows.
        statistics: What was counted of the rows.
    """

    spec: FeatureSpec
    files: tuple[Path, ...]
    statistics: RawStatistics

    @property
    def num_rows(self) -> int:
        """The number of rows of all files."""
        return self.statistics.num_rows


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
    statistics = RawStatistics(spec)
    for table in read_parts(path, spec):
        statistics.add(table)
        files.append(folder / f"part-{len(files):05d}.parquet")
        columns = {feature.name: _staged(table[feature.name], feature) for feature in spec.features}
        staged = pa.table({spec.label: table[spec.label], **columns})
        # A file is one partition of Dask's.
        pq.write_table(staged, files[-1], row_group_size=table.num_rows, compression="lz4")
        on_rows(table.num_rows)
    return StagedSplit(spec, tuple(files), statistics)


def hand_through(staged: Path, transformed: Path, spec: FeatureSpec, *, row_group_rows: int) -> None:
    """Puts the columns of keys that are learnt in training from a staged file into the transformed one, row by row.

    Args:
        staged: The staged file.
        transformed: What became of all its other columns; it is written anew.
        spec: What the columns are.
        row_group_rows: How many rows a row group of it has.
    """
    learnt = [feature.name for feature in spec.categorical if feature.is_learnt]
    if not learnt:
        return
    table = pq.read_table(transformed)
    for name, column in zip(learnt, pq.read_table(staged, columns=learnt).itercolumns(), strict=True):
        table = table.append_column(name, column)
    pq.write_table(table.select(spec.columns), transformed, row_group_size=row_group_rows)


def _staged(column: pa.ChunkedArray, feature: AnyFeature) -> pa.ChunkedArray:
    if feature.kind == "continuous":
        return column.cast(pa.float64(), safe=False)
    if feature.is_learnt:
        return column
    return column.cast(pa.list_(pa.string()) if feature.is_list else pa.string())
