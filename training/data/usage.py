"""How often each id of a table was seen, and when last: what decides which values make way for new ones."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rankhouse.embedding_cache.format.tensors import read_tensors, write_tensors
from rankhouse.embedding_cache.format.vocabulary import FIRST_KNOWN_ID
from rankhouse.training.data.new_folder import TRAIN_SPLIT
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.errors import DatasetError

USAGE_NAME = "usage.safetensors"


@dataclass(frozen=True)
class Usage:
    """What is known of the ids of one table; R is its rows.

    Attributes:
        counts: int64 [R], how often each id's value was seen in the "train" splits since it has the id.
        last_seen: int32 [R], the generation of the last dataset whose "train" split had it. The generation of a dataset
            is the number of its layers less one: 0 for a fitted one.
    """

    counts: npt.NDArray[np.int64]
    last_seen: npt.NDArray[np.int32]


def usage_of(dataset: PreparedDataset) -> dict[str, Usage]:
    """Returns the usage of all tables of a prepared dataset.

    An extended one holds it; of a fitted one it is counted from the ids of its "train" split.

    Raises:
        DatasetError: The dataset has no such split, or the usage is not of its tables.
        CorruptFileError: The usage is missing or damaged.
    """
    if not dataset.is_extension:
        return _counted(dataset)
    path = dataset.path / USAGE_NAME
    tensors = read_tensors(path)
    try:
        usage = {name: Usage(tensors[f"counts.{name}"], tensors[f"last_seen.{name}"]) for name in dataset.tables}
    except KeyError as exc:
        raise DatasetError(f"{path} lacks {exc}; make the dataset again") from exc
    for name, table in dataset.tables.items():
        shapes = {array.shape for array in (usage[name].counts, usage[name].last_seen)}
        if shapes != {(table.num_rows,)}:
            raise DatasetError(f"{path}: table {name!r} has {table.num_rows} rows, found {shapes}; make it again")
    return usage


def save_usage(folder: Path, usage: Mapping[str, Usage]) -> None:
    """Writes the usage of all tables into a dataset's folder."""
    tensors = {f"counts.{name}": each.counts for name, each in usage.items()}
    write_tensors(folder / USAGE_NAME, tensors | {f"last_seen.{name}": each.last_seen for name, each in usage.items()})


def _counted(dataset: PreparedDataset) -> dict[str, Usage]:
    counts = {name: np.zeros(table.num_rows, dtype=np.int64) for name, table in dataset.tables.items()}
    fitted = [feature for features in dataset.spec.fitted_tables.values() for feature in features]
    for file in dataset.split(TRAIN_SPLIT).files:
        with pq.ParquetFile(dataset.path / file.name) as source:
            for group in range(source.num_row_groups):
                rows = source.read_row_group(group, columns=[feature.name for feature in fitted])
                for feature in fitted:
                    column = rows[feature.name]
                    found = (pc.list_flatten(column) if feature.is_list else column).value_counts()
                    counts[feature.table][found.field("values").to_numpy()] += found.field("counts").to_numpy()
    for table in counts.values():
        table[:FIRST_KNOWN_ID] = 0
    return {name: Usage(table, np.zeros(len(table), dtype=np.int32)) for name, table in counts.items()}
