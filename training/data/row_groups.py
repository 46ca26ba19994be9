"""The row groups of a prepared split: the unit in which Parquet is read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rankhouse.training.data.lanes import Block
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.data.rows import Rows
from rankhouse.training.errors import DatasetError


@dataclass(frozen=True)
class _RowGroup:
    path: Path
    metadata: pq.FileMetaData
    index: int


class RowGroups:
    """Reads blocks of a split's rows. The files are opened anew for each block, so any thread may read.

    Raises:
        DatasetError: There is no such split, or a file is damaged.
    """

    def __init__(self, dataset: PreparedDataset, split: str) -> None:
        self._spec = dataset.spec
        self._tables = dataset.tables
        self._row_groups: list[_RowGroup] = []
        self.num_rows: list[int] = []
        for file in dataset.split(split).files:
            path = dataset.path / file.name
            try:
                metadata = pq.read_metadata(path)
            except (OSError, pa.ArrowException) as exc:
                raise DatasetError(f"{path} cannot be read ({exc}); preprocess again or restore it") from exc
            if metadata.num_rows != file.num_rows:
                raise DatasetError(
                    f"{path} has {metadata.num_rows} rows, dataset.json says {file.num_rows}; preprocess again"
                )
            for index in range(metadata.num_row_groups):
                self._row_groups.append(_RowGroup(path, metadata, index))
                self.num_rows.append(metadata.row_group(index).num_rows)

    def read(self, blocks: Sequence[Block]) -> Rows:
        """Reads blocks, one after the other.

        Raises:
            DatasetError: A file is damaged, lacks a column of the feature spec, or has an id that its table has not.
        """
        return Rows.from_arrow(self._spec, pa.concat_tables([self._block(block) for block in blocks]))

    def _block(self, block: Block) -> pa.Table:
        group = self._row_groups[block.row_group]
        try:
            with pq.ParquetFile(group.path, metadata=group.metadata) as file:
                table = file.read_row_group(group.index, columns=list(self._spec.columns), use_threads=False)
        except (OSError, pa.ArrowException) as exc:
            raise DatasetError(f"{group.path} cannot be read ({exc}); preprocess again or restore it") from exc
        found = set(table.column_names)
        missing = [name for name in self._spec.columns if name not in found]
        if missing:
            raise DatasetError(f"{group.path} has no column {missing[0]!r}; preprocess again")
        table = table.slice(block.begin, block.num_rows)
        self._check_ids(group.path, table)
        return table

    def _check_ids(self, path: Path, table: pa.Table) -> None:
        """Finds ids that a lookup would fail on, while it is still known which feature and file they are of."""
        for feature in (each for features in self._spec.fitted_tables.values() for each in features):
            column = table[feature.name]
            extremes = pc.min_max(pc.list_flatten(column) if feature.is_list else column).as_py()
            num_rows = self._tables[feature.table].num_rows
            for value in extremes.values():
                if value is not None and not 0 <= value < num_rows:
                    raise DatasetError(
                        f"{path}: feature {feature.name!r} has the id {value}, but its table {feature.table!r} has "
                        f"{num_rows:,} rows; preprocess again"
                    )
