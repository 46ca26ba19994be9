"""The compiled transform over Arrow columns: raw rows to the Parquet files that preprocessing with NVTabular writes."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rankhouse.embedding_cache.format.transform import CompiledTransform, stepped
from rankhouse.embedding_cache.format.vocabulary import MISSING_ID, TextValues, Values
from rankhouse.training.data.feature_spec import CategoricalFeature, FeatureSpec
from rankhouse.training.data.new_folder import Progress
from rankhouse.training.data.prepared import Split, SplitFile
from rankhouse.training.data.raw_parts import RawStatistics

# Small enough for the loader to hold one of each lane, large enough to read fast.
ROW_GROUP_ROWS = 16_384


def write_split(
    folder: Path,
    name: str,
    parts: Iterable[pa.Table],
    spec: FeatureSpec,
    transform: CompiledTransform,
    progress: Progress,
) -> Split:
    """Transforms raw rows into files of `folder/name`, which is there.

    Args:
        folder: The dataset's folder.
        name: The split's name.
        parts: Raw rows as `read_parts` gives them; each part becomes a file.
        spec: What the columns are.
        transform: The compiled transform of that spec.
        progress: Whom to tell.
    """
    progress.on_stage(f"transforming the rows of {name}")
    statistics = RawStatistics(spec)
    files = []
    for index, table in enumerate(parts):
        statistics.add(table)
        files.append(SplitFile(f"{name}/part-{index:05d}.parquet", table.num_rows))
        pq.write_table(
            transformed(table, spec, transform),
            folder / files[-1].name,
            row_group_size=ROW_GROUP_ROWS,
            compression="none",
        )
        progress.on_rows(table.num_rows)
    return statistics.split(files)


def transformed(table: pa.Table, spec: FeatureSpec, transform: CompiledTransform) -> pa.Table:
    """Transforms a table of raw rows, as `read_raw` gives it.

    Returns:
        The label and all features in the order of the spec: float32 for continuous ones, int64 or lists of int64 for
        categorical ones, without nulls but for keys that are learnt in training.
    """
    columns = {spec.label: table[spec.label]}
    steps = {feature.name: feature.steps for feature in transform.features}
    for feature in spec.features:
        column = table[feature.name]
        if isinstance(feature, CategoricalFeature) and feature.is_learnt:
            columns[feature.name] = column
        elif isinstance(feature, CategoricalFeature):
            columns[feature.name] = _ids(column, feature, transform)
        else:
            values = column.cast(pa.float64(), safe=False).to_numpy()  # What is missing becomes NaN.
            step = steps[feature.name]
            assert step is not None
            columns[feature.name] = pa.array(stepped(values, step))
    return pa.table(columns)


def raw_values(column: pa.ChunkedArray, feature: CategoricalFeature) -> pa.Array:
    """All values of a raw column row by row, those of lists one by one; null where a single one is missing."""
    array = pa.concat_arrays(column.chunks)
    return pc.list_flatten(array) if feature.is_list else array


def known_values(values: pa.Array) -> Values:
    """Texts or integers without nulls, as the vocabularies take them."""
    if pa.types.is_integer(values.type):
        ints: npt.NDArray[np.int64] = values.to_numpy()
        return ints
    kind = np.int64 if pa.types.is_large_string(values.type) else np.int32
    offsets = np.frombuffer(values.buffers()[1], dtype=kind)[values.offset : values.offset + len(values) + 1]
    data = np.frombuffer(values.buffers()[2] or b"", dtype=np.uint8)[offsets[0] : offsets[-1]]
    return TextValues(data, (offsets - offsets[0]).astype(np.int64))


def _ids(column: pa.ChunkedArray, feature: CategoricalFeature, transform: CompiledTransform) -> pa.Array:
    # Values repeat: each is looked up once.
    encoded = raw_values(column, feature).dictionary_encode()
    known = transform.vocabularies.find(feature.table, known_values(encoded.dictionary))
    # A missing value's index is -1: the last.
    indices = pc.fill_null(encoded.indices, -1).to_numpy()
    ids = pa.array(np.append(known, MISSING_ID)[indices])
    if not feature.is_list:
        return ids
    lengths = np.concatenate([chunk.value_lengths().to_numpy() for chunk in column.chunks])
    return pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(lengths)), pa.int32()), ids)
