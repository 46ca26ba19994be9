"""The tables of the engine's benchmarks, made once below build/: a chain of versions, and the same rows as one file.

Letters in shapes: F tables with a feature each, R rows and D width of a table.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.support.embedding.cells import Pattern, TableShape
from benchmarks.support.machine import CHECKOUT
from rankhouse.embedding_cache.format.content import DeltaContent, VersionContent
from rankhouse.embedding_cache.format.feature import DenseSteps, Feature
from rankhouse.embedding_cache.format.golden import GoldenRequest
from rankhouse.embedding_cache.format.records import FeatureContent, TableContent, TableDelta
from rankhouse.embedding_cache.format.transform import CompiledTransform
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.format.vocabulary import FIRST_KNOWN_ID, Vocabularies

MODEL = "bench"
NUM_FEATURES = 26
BLOCK_ROWS = 1 << 16
GOLDEN_CANDIDATES = 3
COMPLETE = "complete"


@dataclass(frozen=True)
class Dataset:
    """Tables, and the shares of their rows that each delta over them changes.

    Attributes:
        folder: Where the files lie.
        tables: F tables of one shape.
        shares: Of the rows that each delta changes, oldest first.
        is_servable: Whether Triton can serve the versions: with vocabularies that know a value for each row, and a
            dense part.
    """

    folder: Path
    tables: TableShape
    shares: tuple[float, ...]
    is_servable: bool = False

    @property
    def store(self) -> Path:
        """The store; its first version is whole, each later one a delta over the one before."""
        return self.folder / "store"

    @property
    def rows_file(self) -> Path:
        """All rows of the first version, float32 [F * R, D], table after table."""
        return self.folder / "rows.bin"

    def version(self, num_deltas: int) -> Version:
        """Opens a version of the chain; none of its files is read."""
        store = VersionStore(self.store)
        return store.open(store.names()[num_deltas], verify=False)

    def changed(self, table: int, number: int) -> np.ndarray:
        """Returns the ids that a delta changed, int64 [n], sorted; deltas count from 1."""
        count = int(self.shares[number - 1] * self.tables.rows)
        random = np.random.default_rng((number, table))
        return np.sort(random.choice(self.tables.rows, count, replace=False))

    def rows(self, table: int, ids: np.ndarray, num_deltas: int) -> np.ndarray:
        """Returns what rows hold after so many deltas, float32 [n, D].

        That is a pattern, plus the number of the newest delta that changed a row.
        """
        return _pattern(self.tables).rows(table, ids) + _newest(self, table, num_deltas)[ids, None]

    def expected(self, ids: np.ndarray, num_deltas: int) -> np.ndarray:
        """Returns what a lookup of ids [F, B] gives, float32 [B, F * D]."""
        return np.concatenate([self.rows(table, own, num_deltas) for table, own in enumerate(ids)], axis=1)


def table_dataset(num_rows: int, dim: int, shares: Sequence[float], *, is_servable: bool = False) -> Dataset:
    """Names the dataset of so many rows in all tables together; nothing is made yet."""
    kind = "served" if is_servable else "tables"
    folder = CHECKOUT / "build" / "engine" / f"{kind}-{num_rows}x{dim}-{'-'.join(f'{share:g}' for share in shares)}"
    tables = TableShape(NUM_FEATURES, num_rows // NUM_FEATURES, dim, training=False)
    return Dataset(folder, tables, tuple(shares), is_servable)


def make_dataset(dataset: Dataset, say: Callable[[str], None]) -> None:
    """Writes a dataset unless it is there."""
    if (dataset.folder / COMPLETE).exists():
        return
    parts = dataset.folder / "parts"
    parts.mkdir(parents=True, exist_ok=True)
    say(f"writing {dataset.folder}")
    num_values = dataset.tables.rows - FIRST_KNOWN_ID if dataset.is_servable else 1
    features = _features(dataset.tables.dim)
    tables = [str(feature.table) for feature in features[1:]]
    CompiledTransform(features, Vocabularies.build({name: np.arange(num_values) for name in tables})).save(parts)
    dense = parts / "dense.onnx" if dataset.is_servable else None
    if dense:
        write_dense_part(dense, NUM_FEATURES * dataset.tables.dim)
    version = VersionStore(dataset.store).write(
        VersionContent(
            model=MODEL,
            dense=dense,
            transform=parts,
            num_dense=1,
            tables=[
                TableContent(name, dataset.tables.rows, dataset.tables.dim, _blocks(dataset, table))
                for table, name in enumerate(tables)
            ],
            features=[FeatureContent(feature.name, str(feature.table), "sum") for feature in features[1:]],
            golden=golden_requests(dataset, 0),
        )
    )
    for number in range(1, len(dataset.shares) + 1):
        say(f"writing delta {number} of {dataset.folder}")
        deltas = [_delta(dataset, table, name, number) for table, name in enumerate(tables)]
        golden = golden_requests(dataset, number)
        content = DeltaContent(dense=dense, transform=parts, num_dense=1, tables=deltas, golden=golden)
        version = VersionStore(dataset.store).write_delta(content, version)
    if not dataset.is_servable:
        with dataset.rows_file.open("wb") as file:
            for table in range(NUM_FEATURES):
                for block in _blocks(dataset, table):
                    block.tofile(file)
    (dataset.folder / COMPLETE).touch()


def golden_requests(dataset: Dataset, num_deltas: int) -> list[GoldenRequest]:
    """Returns a request and what the version after so many deltas answers; none where Triton cannot serve it."""
    if not dataset.is_servable:
        return []
    values = np.arange(GOLDEN_CANDIDATES)[None, :] + np.arange(NUM_FEATURES)[:, None]
    first, second = _dense_weights(NUM_FEATURES * dataset.tables.dim, 0)
    embeddings = dataset.expected(values + FIRST_KNOWN_ID, num_deltas)
    hidden = np.concatenate([np.ones((GOLDEN_CANDIDATES, 1), np.float32), embeddings], axis=1) @ first
    scores = 1 / (1 + np.exp(-(np.maximum(hidden, 0) @ second)[:, 0].astype(np.float64)))
    rows = [
        {"price": 1.0, **{f"c{feature:02}": int(value) for feature, value in enumerate(candidate)}}
        for candidate in values.T
    ]
    return [GoldenRequest({"context": {}, "candidates": rows}, tuple(scores.tolist()))]


def _dense_weights(embeddings_dim: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random, hidden = np.random.default_rng(seed), 64
    first = random.normal(0, embeddings_dim**-0.5, (embeddings_dim + 1, hidden)).astype(np.float32)
    return first, random.normal(0, hidden**-0.5, (hidden, 1)).astype(np.float32)


def write_dense_part(path: Path, embeddings_dim: int, *, seed: int = 0) -> None:
    """Writes two layers that map `dense` [B, 1] and `embeddings` [B, E] to `scores` [B] as ONNX."""
    first, second = _dense_weights(embeddings_dim, seed)
    weights = {"first": first, "second": second, "flat": np.array([-1], dtype=np.int64)}
    nodes = [
        helper.make_node("Concat", ["dense", "embeddings"], ["inputs"], axis=1),
        helper.make_node("MatMul", ["inputs", "first"], ["products"]),
        helper.make_node("Relu", ["products"], ["hidden"]),
        helper.make_node("MatMul", ["hidden", "second"], ["logits"]),
        helper.make_node("Sigmoid", ["logits"], ["probabilities"]),
        helper.make_node("Reshape", ["probabilities", "flat"], ["scores"]),
    ]
    save_dense_part(path, nodes, weights, {"dense": 1, "embeddings": embeddings_dim})


def save_dense_part(
    path: Path, nodes: Sequence[onnx.NodeProto], weights: dict[str, np.ndarray], inputs: dict[str, int]
) -> None:
    """Writes nodes that map float32 inputs [B, width] to `scores` [B] as an ONNX file."""
    graph = helper.make_graph(
        nodes,
        "dense",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["B", width]) for name, width in inputs.items()],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["B"])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _features(dim: int) -> list[Feature]:
    names = [f"c{number:02}" for number in range(NUM_FEATURES)]
    return [
        Feature("price", "continuous", "float64", steps=DenseSteps()),
        *(Feature(name, "categorical", "int64", table=name, dim=dim, combiner="sum") for name in names),
    ]


def _blocks(dataset: Dataset, table: int) -> Iterator[np.ndarray]:
    tables, pattern = dataset.tables, _pattern(dataset.tables)
    for begin in range(0, tables.rows, BLOCK_ROWS):
        block = np.empty((min(BLOCK_ROWS, tables.rows - begin), tables.dim), np.float32)
        pattern.fill(block.reshape(-1), table, begin)
        yield block


def _delta(dataset: Dataset, table: int, name: str, number: int) -> TableDelta:
    ids = dataset.changed(table, number)
    blocks = (dataset.rows(table, ids[begin : begin + BLOCK_ROWS], number) for begin in range(0, len(ids), BLOCK_ROWS))
    return TableDelta(name, dataset.tables.rows, ids, blocks)


@lru_cache(maxsize=2)
def _pattern(tables: TableShape) -> Pattern:
    return Pattern(tables)


@lru_cache(maxsize=3 * NUM_FEATURES)
def _newest(dataset: Dataset, table: int, num_deltas: int) -> np.ndarray:
    """The number of the newest delta that changed each row, 0 where none did: float32 [R]."""
    newest = np.zeros(dataset.tables.rows, np.float32)
    for number in range(1, num_deltas + 1):
        newest[dataset.changed(table, number)] = number
    return newest
