"""Prepared datasets of a few raw rows, written as preprocessing and extending write them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rankhouse.embedding_cache.format.feature import DenseSteps, Feature
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.transform import CompiledTransform, layer_files
from rankhouse.embedding_cache.format.vocabulary import REMOVED, TableChange, TextValues, Vocabularies
from rankhouse.training.data.feature_spec import FeatureSpec
from rankhouse.training.data.prepared import SPEC_NAME, PreparedDataset, Split, SplitFile, TableInfo
from rankhouse.training.data.raw_sample import save_raw_sample

SPEC = FeatureSpec.from_document(
    {
        "name": "small",
        "label": "label",
        "features": [
            {"name": "age", "kind": "continuous", "dtype": "int64", "clip_min": 0, "log": True, "normalize": False},
            {"name": "city", "kind": "categorical", "dtype": "text", "dim": 4},
            {"name": "price", "kind": "continuous", "normalize": False},
            {"name": "home", "kind": "categorical", "dtype": "text", "table": "city", "combiner": "sum"},
            {"name": "items", "kind": "categorical", "dtype": "int64", "list": True, "dim": 4},
        ],
    }
)
CITIES = ["rome", "oslo", "köln", "lima"]
ITEMS = [7, -3, 2**40, 11, 12]
STEPS = {"age": DenseSteps(clip_min=0.0, log=True), "price": DenseSteps()}


def compiled_transform() -> CompiledTransform:
    features = [
        Feature(f.name, "continuous", f.dtype, steps=STEPS[f.name])
        if f.kind == "continuous"
        else Feature(f.name, "categorical", f.dtype, f.is_list, table=f.table, dim=f.dim, combiner=f.combiner)
        for f in SPEC.features
    ]
    known = {"city": TextValues.of(CITIES), "items": np.array(ITEMS, np.int64)}
    return CompiledTransform(features, Vocabularies.build(known))


def random_rows(seed: int, num_rows: int, items: Sequence[int]) -> list[dict[str, Any]]:
    random = np.random.default_rng(seed)
    return [
        {
            "age": int(random.integers(-5, 90)),
            "price": None if random.random() < 0.2 else float(random.normal()),
            "city": str(random.choice([*CITIES, "atlantis", ""])),
            "home": str(random.choice(CITIES)),
            "items": [int(item) for item in random.choice(items, random.integers(0, 4))],
        }
        for _ in range(num_rows)
    ]


def write_split(
    folder: Path,
    name: str,
    rows: list[dict[str, Any]],
    transform: CompiledTransform,
    newest_event: float | None = None,
) -> Split:
    """Writes what preprocessing would, in two files."""
    files = []
    for number, part in enumerate((rows[: len(rows) // 3], rows[len(rows) // 3 :])):
        batch = transform.apply(RawBatch.from_rows(transform.features, part))
        bags = np.split(batch.ids, np.cumsum(batch.lengths.ravel())[:-1])
        columns: dict[str, Any] = {"label": np.arange(len(part), dtype=np.float32) % 2}
        for index, feature in enumerate(SPEC.continuous):
            columns[feature.name] = batch.dense[:, index]
        for index, feature in enumerate(SPEC.categorical):
            ids = [bag.tolist() for bag in bags[index * len(part) : (index + 1) * len(part)]]
            kind = pa.list_(pa.int64()) if feature.is_list else pa.int64()
            columns[feature.name] = pa.array(ids if feature.is_list else [bag[0] for bag in ids], kind)
        files.append(SplitFile(f"{name}/part-{number}.parquet", len(part)))
        (folder / name).mkdir(exist_ok=True, parents=True)
        pq.write_table(pa.table(columns), folder / files[-1].name)
    save_raw_sample(folder / name, rows[:64])
    return Split(tuple(files), 0.5, {}, newest_event)


def write_dataset(
    folder: Path,
    transform: CompiledTransform | None = None,
    *,
    extends: Path | None = None,
    seed: int = 0,
    items: Sequence[int] = (*ITEMS, 99),
    newest_event: float | None = None,
) -> Path:
    """Writes a dataset with the splits "train" and "valid" of 40 rows each.

    Args:
        folder: Where.
        transform: Of its vocabularies; None is `compiled_transform()`.
        extends: The dataset that has all layers of them but the last.
        seed: Of the rows.
        items: Those that occur.
        newest_event: When the newest one happened.
    """
    transform = transform or compiled_transform()
    splits = {
        name: write_split(folder, name, random_rows(seed + place, 40, items), transform, newest_event)
        for place, name in enumerate(("train", "valid"))
    }
    SPEC.save(folder / SPEC_NAME)
    shared = layer_files(extends) if extends is not None else ()
    transform.save(folder, shared=shared)
    tables = {name: TableInfo(num_rows, 4) for name, num_rows in transform.vocabularies.num_rows.items()}
    PreparedDataset(folder, SPEC, splits, tables).commit()
    return folder


def extended(
    transform: CompiledTransform, *, cities: Mapping[str, int], items: Mapping[int, int], freed: Mapping[str, list[int]]
) -> CompiledTransform:
    """Adds a layer: the id that each value gets, or REMOVED, and the ids that are freed, by table."""
    changes = {
        "city": TableChange(TextValues.of(list(cities)), _ids(cities), np.array(freed.get("city", []), np.int64)),
        "items": TableChange(np.array(list(items), np.int64), _ids(items), np.array(freed.get("items", []), np.int64)),
    }
    return CompiledTransform(transform.features, transform.vocabularies.extended(changes))


def _ids(values: Mapping[Any, int]) -> np.ndarray:
    return np.array(list(values.values()), np.int64)


def days() -> list[CompiledTransform]:
    """Three days. On the second, two cities and an item go; of their ids, item 6 is given out again at once."""
    first = compiled_transform()
    second = extended(
        first,
        cities={"paris": 7, "rome": REMOVED, "lima": REMOVED},
        items={99: 6, 11: REMOVED, 5: 8},
        freed={"city": [3, 6], "items": [6]},
    )
    third = extended(second, cities={"lima": 6, "atlantis": 8}, items={}, freed={})
    return [first, second, third]
