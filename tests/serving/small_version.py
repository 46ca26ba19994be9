"""A small version with every kind of feature, and its scores computed row by row in plain Python and NumPy."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rankhouse.embedding_cache.format.content import DeltaContent, VersionContent
from rankhouse.embedding_cache.format.feature import DenseSteps, Feature
from rankhouse.embedding_cache.format.golden import GoldenRequest
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.records import FeatureContent, TableContent, TableDelta
from rankhouse.embedding_cache.format.transform import CompiledTransform
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.format.vocabulary import TextValues, Vocabularies

MODEL = "small"
TEXTS = {"city": ["rome", "oslo", "köln"], "tag": ["a", "bb", "ccc", "dddd"]}
NUMBERS = {"item": [7, -3, 2**40]}
FEATURES = (
    Feature("age", "continuous", "int64", steps=DenseSteps(fill=30.0, clip_min=0.0, log=True, mean=3.0, std=0.5)),
    Feature("price", "continuous", "float64", steps=DenseSteps(fill=0.0)),
    Feature("city", "categorical", "text", table="city", dim=4, combiner="sum"),
    Feature("home", "categorical", "text", table="city", dim=4, combiner="sum"),
    Feature("tags", "categorical", "text", is_list=True, table="tag", dim=2, combiner="mean"),
    Feature("item", "categorical", "int64", table="item", dim=3, combiner="sum"),
    Feature("clicked", "categorical", "int64", is_list=True, table="item", dim=3, combiner="sum"),
)
CATEGORICAL = tuple(feature for feature in FEATURES if feature.kind == "categorical")
DIMS = {feature.table: feature.dim for feature in CATEGORICAL}
ROWS: tuple[dict[str, Any], ...] = (
    {"age": 41, "price": 2.5, "city": "oslo", "home": "rome", "tags": ["a", "ccc"], "item": 7, "clicked": [7, 2**40]},
    {"age": -5, "price": -0.25, "city": "atlantis", "tags": [], "item": 1, "clicked": [-3]},
    {"city": "köln", "home": "köln", "tags": ["zz"], "clicked": [5, 5, 5]},
    {},
)


class Weights:
    """The weights of one version, from a seed; tables may have more rows than values use."""

    def __init__(self, seed: int, *, spare_rows: int = 0) -> None:
        generator = np.random.default_rng(seed)
        sizes = {table: 3 + len(values) + spare_rows for table, values in (TEXTS | NUMBERS).items()}
        self.tables = {
            name: generator.normal(size=(sizes[str(name)], dim)).astype(np.float32) for name, dim in DIMS.items()
        }
        self.dense = generator.normal(size=(2, 1)).astype(np.float32)
        self.embeddings = generator.normal(size=(sum(f.dim or 0 for f in CATEGORICAL), 1)).astype(np.float32)

    def scores(self, rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """The truth: float32 [B]."""
        return np.array([self._score(row) for row in rows], dtype=np.float32)

    def _score(self, row: Mapping[str, Any]) -> float:
        age = max(float(row.get("age", 30)), 0.0)
        dense = np.array([(math.log1p(age) - 3.0) / 0.5, row.get("price", 0.0)])
        pooled = np.concatenate([self.pooled(feature, row.get(feature.name)) for feature in CATEGORICAL])
        return 1 / (1 + math.exp(-float(dense @ self.dense[:, 0] + pooled @ self.embeddings[:, 0])))

    def pooled(self, feature: Feature, value: Any) -> np.ndarray:
        """What a feature's value becomes: [dim]."""
        table = self.tables[feature.table]
        known: list[Any] = (TEXTS | NUMBERS)[str(feature.table)]
        if feature.is_list:
            ids = [known.index(one) + 3 if one in known else 2 for one in value or []]
        else:
            ids = [1 if value is None else known.index(value) + 3 if value in known else 2]
        rows = table[ids].astype(np.float64).reshape(-1, table.shape[1])
        pooled: np.ndarray = rows.sum(axis=0)
        return pooled / len(ids) if feature.combiner == "mean" and ids else pooled


def raw_batch(rows: Sequence[Mapping[str, Any]]) -> RawBatch:
    return RawBatch.from_rows(FEATURES, rows)


def write_version(
    store: Path, *, seed: int = 0, wrong_by: float = 0.0, url: str | None = None, spare_rows: int = 0
) -> Version:
    """Writes a version, into a bucket if a URL is given; its golden scores are wrong by so much."""
    weights = Weights(seed, spare_rows=spare_rows)
    folder = store / "parts"
    folder.mkdir(parents=True, exist_ok=True)
    known = {name: TextValues.of(texts) for name, texts in TEXTS.items()} | {
        name: np.array(values, dtype=np.int64) for name, values in NUMBERS.items()
    }
    CompiledTransform(FEATURES, Vocabularies.build(known)).save(folder)
    write_dense_part(folder / "dense.onnx", weights.dense, weights.embeddings)
    return VersionStore(url or store, cache=store / "mirrors").write(
        VersionContent(
            model=MODEL,
            dense=folder / "dense.onnx",
            transform=folder,
            num_dense=2,
            tables=[TableContent(str(name), *rows.shape, blocks=[rows]) for name, rows in weights.tables.items()],
            features=[FeatureContent(f.name, str(f.table), str(f.combiner)) for f in CATEGORICAL],
            golden=[golden_of(weights, wrong_by)],
        )
    )


def write_dense_part(path: Path, dense: np.ndarray, embeddings: np.ndarray) -> None:
    """Writes a logistic regression of float32 weights [num_dense, 1] and [E, 1] as ONNX."""
    nodes = [
        helper.make_node("MatMul", ["dense", "dense_weights"], ["from_dense"]),
        helper.make_node("MatMul", ["embeddings", "embedding_weights"], ["from_embeddings"]),
        helper.make_node("Add", ["from_dense", "from_embeddings"], ["sum"]),
        helper.make_node("Sigmoid", ["sum"], ["probability"]),
        helper.make_node("Reshape", ["probability", "flat"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes,
        "dense",
        [
            helper.make_tensor_value_info("dense", TensorProto.FLOAT, ["B", len(dense)]),
            helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["B", len(embeddings)]),
        ],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["B"])],
        [
            numpy_helper.from_array(dense, "dense_weights"),
            numpy_helper.from_array(embeddings, "embedding_weights"),
            numpy_helper.from_array(np.array([-1], dtype=np.int64), "flat"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    onnx.save(model, path)


def write_delta(store: Path, parent: Version, *, seed: int, wrong_by: float = 0.0, url: str | None = None) -> Version:
    """Lays the weights of another seed over a version that `write_version` wrote there, as a delta of all rows."""
    weights, folder = Weights(seed), store / "parts"
    write_dense_part(folder / "dense.onnx", weights.dense, weights.embeddings)
    num_rows = {table.name: table.num_rows for table in parent.tables}
    deltas = [
        TableDelta(str(name), num_rows[str(name)], np.arange(len(rows)), [rows])
        for name, rows in weights.tables.items()
    ]
    content = DeltaContent(
        dense=folder / "dense.onnx", transform=folder, num_dense=2, tables=deltas, golden=[golden_of(weights, wrong_by)]
    )
    return VersionStore(url or store, cache=store / "mirrors").write_delta(content, parent)


def golden_of(weights: Weights, wrong_by: float) -> GoldenRequest:
    """A golden request with the scores of some weights, wrong by so much."""
    request = {"context": {"city": "oslo"}, "candidates": [{"age": 3, "tags": ["bb"]}, {"item": -3, "home": "paris"}]}
    rows = [{**request["context"], **candidate} for candidate in request["candidates"]]
    return GoldenRequest(request, tuple(float(score) + wrong_by for score in weights.scores(rows)))
