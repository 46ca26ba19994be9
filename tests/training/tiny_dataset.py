"""Small prepared datasets with something to learn, written as preprocessing writes them."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rankhouse.embedding_cache.format.feature import Feature
from rankhouse.embedding_cache.format.tensors import write_tensors
from rankhouse.training.data.feature_spec import CategoricalFeature, ContinuousFeature, FeatureSpec
from rankhouse.training.data.prepared import SPEC_NAME, PreparedDataset, Split, SplitFile, TableInfo

SPEC = FeatureSpec(
    name="tiny",
    label="label",
    features=(
        ContinuousFeature("age"),
        ContinuousFeature("price"),
        CategoricalFeature("shop", dim=4),
        CategoricalFeature("item", dim=4),
        CategoricalFeature("clicked", is_list=True, table="item", dim=4),
        CategoricalFeature("user", dim=4),
    ),
)
TABLE_ROWS = {"shop": 7, "item": 20, "user": 30}


def write_tiny_dataset(
    directory: Path,
    *,
    num_rows: int = 300,
    num_valid: int = 120,
    spec: FeatureSpec = SPEC,
    table_rows: Mapping[str, int] = TABLE_ROWS,
    freed: Sequence[Mapping[str, Sequence[int]]] = (),
    features: Sequence[Feature] = (),
    base: int = 0,
) -> Path:
    """Writes a dataset with the splits "train" and "valid"; a user's, a shop's and an item's taste decide the label.

    Its vocabularies have a layer more for each item of `freed`: the ids by table that lose their value there. The base
    is the same in all that have the same number for it.
    """
    rng = np.random.default_rng([7, len(freed)])
    tastes = {table: rng.normal(size=size) for table, size in table_rows.items()}
    directory.mkdir(parents=True)
    splits = {}
    for name, size in (("train", num_rows), ("valid", num_valid)):
        columns = _columns(rng, spec, tastes, size)
        file = f"{name}/part-0.parquet"
        (directory / name).mkdir()
        pq.write_table(pa.table(columns), directory / file, row_group_size=50)
        splits[name] = Split((SplitFile(file, size),), positive_rate=0.5, missing_rates={})
    tables = {feature.table: TableInfo(table_rows[feature.table], feature.dim) for feature in spec.categorical}
    dataset = PreparedDataset(directory, spec, splits, tables)
    # Training reads nothing of the transform but its fit and which ids were freed.
    layers = ["transform.safetensors", *(f"transform.{number}.safetensors" for number in range(1, len(freed) + 1))]
    document: dict[str, Any] = {"format": "rankhouse.transform", "format_version": 1, "vocabularies": {}}
    document["features"] = [asdict(feature) for feature in features]
    (directory / "transform.json").write_text(json.dumps({**document, "layers": layers}))
    for number, (layer, ids) in enumerate(zip(layers, [{}, *freed], strict=True)):
        tensors = {f"freed.{table}": np.array(values, np.int64) for table, values in ids.items()}
        write_tensors(directory / layer, {"number": np.array([number or base]), **tensors})
    spec.save(directory / SPEC_NAME)
    dataset.commit()
    return directory


def _columns(
    rng: np.random.Generator, spec: FeatureSpec, tastes: dict[str, np.ndarray], size: int
) -> dict[str, pa.Array]:
    score = np.zeros(size)
    columns = {}
    for feature in spec.continuous:
        values = rng.normal(size=size).astype(np.float32)
        columns[feature.name] = pa.array(values)
        score += 0.3 * values
    for categorical in spec.categorical:
        taste = tastes[categorical.table]
        if categorical.is_list:
            bags = [rng.integers(1, len(taste), length) for length in rng.integers(0, 4, size)]
            columns[categorical.name] = pa.array(bags, pa.list_(pa.int64()))
            score += [taste[bag].mean() if len(bag) else 0.0 for bag in bags]
        else:
            ids = rng.integers(1, len(taste), size)
            columns[categorical.name] = pa.array(ids)
            score += taste[ids]
    labels = (rng.random(size) < 1 / (1 + np.exp(-2 * score))).astype(np.float32)
    return {spec.label: pa.array(labels), **columns}
