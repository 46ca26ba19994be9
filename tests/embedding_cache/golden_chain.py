"""The store of `format/golden_chain`: three days of a model with all row types, and its scores in plain NumPy.

On day 1 and 2 values come and go, rows change, go and come back. The store was made once by `write_chain`; the model
lives on here, because its scores are the truth that the store is held against.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rankhouse.embedding_cache.format.content import DeltaContent, VersionContent
from rankhouse.embedding_cache.format.feature import DenseSteps, Feature
from rankhouse.embedding_cache.format.golden import GoldenRequest
from rankhouse.embedding_cache.format.records import FeatureContent, TableContent, TableDelta
from rankhouse.embedding_cache.format.transform import CompiledTransform, layer_files
from rankhouse.embedding_cache.format.version import VersionStore
from rankhouse.embedding_cache.format.version_record import Source
from rankhouse.embedding_cache.format.vocabulary import REMOVED, TableChange, TextValues, Vocabularies
from rankhouse.kernels.reference.rows import dequantize_rows, quantize_rows
from tests.serving.small_version import write_dense_part

FEATURES = (
    Feature("age", "continuous", "int64", steps=DenseSteps(fill=30.0, mean=40.0, std=10.0)),
    Feature("price", "continuous", "float64", steps=DenseSteps(fill=0.0)),
    Feature("city", "categorical", "text", table="city", dim=4, combiner="sum"),
    Feature("tags", "categorical", "text", is_list=True, table="tag", dim=2, combiner="mean"),
    Feature("shop", "categorical", "int64", table="shop", dim=3, combiner="sum"),
    Feature("items", "categorical", "int64", is_list=True, table="item", dim=5, combiner="sum"),
)
CATEGORICAL = FEATURES[2:]
ROW_TYPES = {"city": "float32", "tag": "float16", "shop": "bfloat16", "item": "int8"}


@dataclass(frozen=True)
class Day:
    """What changes on a day: values with their ids, values that lose theirs, and the ids of rows."""

    come: dict[str, dict[Any, int]]
    gone: dict[str, dict[Any, int]]
    changed: dict[str, list[int]]
    removed: dict[str, list[int]]


BASE: dict[str, list[Any]] = {
    "city": ["rome", "oslo", "köln"],
    "tag": ["a", "bb"],
    "shop": [9, 4],
    "item": [7, -3, 2**40],
}
DAYS = (
    # lima is new, oslo goes; shop 4 goes and its id with it; the items' rows are trained on.
    Day(
        come={"city": {"lima": 6}, "tag": {"ccc": 5}},
        gone={"city": {"oslo": 4}, "shop": {4: 4}},
        changed={"city": [2, 3, 6], "tag": [5], "item": [0, 3, 5]},
        removed={"city": [4], "shop": [4]},
    ),
    # oslo comes back with another id; paris takes the free one; all of a's row goes, though it keeps its id.
    Day(
        come={"city": {"oslo": 7, "paris": 4}, "shop": {11: 5}},
        gone={},
        changed={"city": [3, 4, 7], "shop": [5], "item": [5]},
        removed={"tag": [3]},
    ),
)
ROWS: tuple[dict[str, Any], ...] = (
    {"age": 41, "price": 2.5, "city": "oslo", "tags": ["a", "ccc"], "shop": 4, "items": [7, 2**40]},
    {"age": 5, "price": -0.25, "city": "paris", "tags": [], "shop": 11, "items": [-3]},
    {"city": "köln", "tags": ["zz", "bb", "a"], "items": [5, 7, 7]},
    {"city": "lima", "shop": 9},
    {},
)


class ChainModel:
    """The model as of a day; `known` is its vocabularies, `rows` what a reader finds in its tables."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(20)
        dims = {str(feature.table): feature.dim or 0 for feature in CATEGORICAL}
        self.known = {table: {value: 3 + place for place, value in enumerate(values)} for table, values in BASE.items()}
        self.trained = {table: self._new_rows(3 + len(BASE[table]), dim) for table, dim in dims.items()}
        self.rows = {table: self._stored(table, rows) for table, rows in self.trained.items()}
        self.vocabularies = Vocabularies.build({table: _values(table, values) for table, values in BASE.items()})
        self.dense = self._new_rows(2, 1)
        self.embeddings = self._new_rows(sum(dims.values()), 1)

    def live_through(self, day: Day) -> list[TableDelta]:
        """Changes what a day changes and returns it."""
        deltas, changes = [], {}
        for table, old in self.rows.items():
            come, gone = day.come.get(table, {}), day.gone.get(table, {})
            for value in gone:
                del self.known[table][value]
            self.known[table] |= come
            ids_of_gone = sorted(gone.values())
            changes[table] = TableChange(
                _values(table, [*come, *gone]),
                np.array([*come.values(), *([REMOVED] * len(gone))], np.int64),
                np.array(ids_of_gone, np.int64),
            )
            ids, removed = (np.array(part.get(table, []), np.int64) for part in (day.changed, day.removed))
            num_rows = max(len(old), *(id_ + 1 for id_ in come.values())) if come else len(old)
            trained = self._new_rows(len(ids), old.shape[1])
            self.rows[table] = np.concatenate([old, np.zeros((num_rows - len(old), old.shape[1]), np.float32)])
            self.rows[table][ids], self.rows[table][removed] = self._stored(table, trained), 0
            deltas.append(TableDelta(table, num_rows, ids, [trained], removed))
        self.vocabularies = self.vocabularies.extended(changes)
        return deltas

    def scores(self) -> np.ndarray:
        """The truth: float64 [B] of `ROWS`."""
        return np.array([self._score(row) for row in ROWS])

    def _score(self, row: dict[str, Any]) -> float:
        dense = np.array([(row.get("age", 30) - 40.0) / 10.0, row.get("price", 0.0)])
        pooled = np.concatenate([self._pooled(feature, row.get(feature.name)) for feature in CATEGORICAL])
        return float(1 / (1 + np.exp(-(dense @ self.dense[:, 0] + pooled @ self.embeddings[:, 0]))))

    def _pooled(self, feature: Feature, value: Any) -> np.ndarray:
        known, rows = self.known[str(feature.table)], self.rows[str(feature.table)].astype(np.float64)
        values = (value or []) if feature.is_list else [value]
        ids = [1 if one is None else known.get(one, 2) for one in values]
        pooled: np.ndarray = rows[ids].reshape(-1, rows.shape[1]).sum(axis=0)
        return pooled / len(ids) if feature.combiner == "mean" and ids else pooled

    def _new_rows(self, num_rows: int, dim: int) -> np.ndarray:
        return self._random.normal(size=(num_rows, dim)).astype(np.float32)

    def _stored(self, table: str, rows: np.ndarray) -> np.ndarray:
        return dequantize_rows(quantize_rows(rows, ROW_TYPES[table])) if len(rows) else rows


def write_chain(store: Path, parts: Path) -> None:
    """Writes a whole version and two deltas into a store; `parts` is a folder for what they are made of."""
    model, versions = ChainModel(), VersionStore(store, segment_bytes=80)
    folder = _write_parts(model, parts / "0", before=None)
    version = versions.write(
        VersionContent(
            model="chain",
            dense=folder / "dense.onnx",
            transform=folder,
            num_dense=2,
            tables=[TableContent(name, *rows.shape, [rows], ROW_TYPES[name]) for name, rows in model.trained.items()],
            features=[FeatureContent(f.name, str(f.table), str(f.combiner)) for f in CATEGORICAL],
            golden=[_golden(model)],
            source=Source("chain-1", "00", 100),
        )
    )
    for number, day in enumerate(DAYS, start=1):
        deltas = model.live_through(day)
        folder = _write_parts(model, parts / str(number), before=folder)
        content = DeltaContent(
            dense=folder / "dense.onnx",
            transform=folder,
            num_dense=2,
            tables=deltas,
            golden=[_golden(model)],
            source=Source("chain-1", f"0{number}", 100 + number),
        )
        version = versions.write_delta(content, version)


def _write_parts(model: ChainModel, folder: Path, *, before: Path | None) -> Path:
    folder.mkdir(parents=True)
    shared = layer_files(before) if before is not None else ()
    CompiledTransform(FEATURES, model.vocabularies).save(folder, shared=shared)
    write_dense_part(folder / "dense.onnx", model.dense, model.embeddings)
    return folder


def _golden(model: ChainModel) -> GoldenRequest:
    return GoldenRequest({"context": {}, "candidates": list(ROWS)}, tuple(model.scores().tolist()))


def _values(table: str, values: list[Any]) -> Any:
    return TextValues.of(values) if table in ("city", "tag") else np.array(values, np.int64)
