"""Versions of a small model that carry a mark in every row of both tables, and in the dense part.

A score is three marks in one number: 65536 * user's + 256 * item's + the dense part's. Below 2 ** 24 float32 is exact.
Golden requests are part of each version, so that a refresh agent takes it.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from onnx import helper

from benchmarks.support.engine.dataset import save_dense_part
from rankhouse.embedding_cache.format.content import DeltaContent, VersionContent
from rankhouse.embedding_cache.format.feature import DenseSteps, Feature
from rankhouse.embedding_cache.format.golden import GoldenRequest
from rankhouse.embedding_cache.format.records import FeatureContent, TableContent, TableDelta
from rankhouse.embedding_cache.format.transform import CompiledTransform
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.format.vocabulary import Vocabularies

MODEL = "marked"
TABLES = ("user", "item")
PLACES = (*TABLES, "dense")
NUM_VALUES, DIM = 200, 4
# So many marks there are, from 1 on; then they begin again.
NUM_MARKS = 250
# A version is whole, and has no deltas, after so many that are deltas.
DELTAS_IN_A_ROW = 7
FEATURES = (
    Feature("price", "continuous", "float64", steps=DenseSteps()),
    *(Feature(name, "categorical", "int64", table=name, dim=DIM, combiner="sum") for name in TABLES),
)


@dataclass(frozen=True)
class Marked:
    """A version and its mark."""

    version: Version
    mark: int


class MarkedVersions:
    """Publishes versions into a store: seven deltas that change every row, then a whole one. Use from one thread.

    Args:
        folder: Gets the store, and the parts that versions are made of.
        model: The model's name.
    """

    def __init__(self, folder: Path, *, model: str = MODEL) -> None:
        self._folder = folder
        self._model = model
        self._store = VersionStore(folder / "store")
        self._newest: Version | None = None
        self._number = 0
        folder.mkdir(parents=True, exist_ok=True)
        vocabularies = Vocabularies.build({name: np.arange(NUM_VALUES) for name in TABLES})
        self._num_rows = {name: vocabularies.num_rows[name] for name in TABLES}
        CompiledTransform(FEATURES, vocabularies).save(folder)

    def publish(self, *, dense_mark: int | None = None) -> Marked:
        """Writes the next version; its dense part may be given another mark than its own."""
        mark = 1 + self._number % NUM_MARKS
        dense = self._folder / "dense.onnx"
        write_marking_part(dense, mark if dense_mark is None else dense_mark)
        rows = {name: _marked_rows(count, mark) for name, count in self._num_rows.items()}
        if self._newest is None or self._number % (DELTAS_IN_A_ROW + 1) == 0:
            self._newest = self._store.write(
                VersionContent(
                    model=self._model,
                    dense=dense,
                    transform=self._folder,
                    num_dense=1,
                    tables=[TableContent(name, *array.shape, blocks=[array]) for name, array in rows.items()],
                    features=[FeatureContent(name, name, "sum") for name in TABLES],
                    golden=[golden_request(mark)],
                )
            )
        else:
            deltas = [TableDelta(name, len(array), np.arange(len(array)), [array]) for name, array in rows.items()]
            content = DeltaContent(
                dense=dense, transform=self._folder, num_dense=1, tables=deltas, golden=[golden_request(mark)]
            )
            self._newest = self._store.write_delta(content, self._newest)
        self._number += 1
        return Marked(self._newest, mark)


def raw_rows(count: int, seed: int) -> list[dict[str, float | int]]:
    """Returns rows of known values."""
    random = np.random.default_rng(seed)
    return [{"price": 1.0, **{name: int(random.integers(NUM_VALUES)) for name in TABLES}} for _ in range(count)]


def golden_request(mark: int) -> GoldenRequest:
    """Returns a request, and what a version with a mark answers."""
    rows = raw_rows(3, seed=0)
    return GoldenRequest({"context": {}, "candidates": rows}, (float(mark * (2**16 + 2**8 + 1)),) * len(rows))


def marks_of(scores: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """Returns the marks in scores [B]: int64 [B, 3], user's, item's and the dense part's; -1 where it is none."""
    whole = np.where(np.isfinite(scores) & (scores >= 0) & (scores < 2**24), scores, -1)
    numbers = whole.astype(np.int64)
    marks = np.stack([numbers >> 16, numbers >> 8 & 255, numbers & 255], axis=1)
    marks[numbers != whole] = -1
    marks[whole < 0] = -1
    return marks


def write_marking_part(path: Path, mark: int) -> None:
    """Writes a dense part that adds its mark to what it finds in the first column of each table's rows."""
    embeddings = np.zeros((len(TABLES) * DIM, 1), np.float32)
    embeddings[0], embeddings[DIM] = 2**16, 2**8
    nodes = [
        helper.make_node("MatMul", ["embeddings", "places"], ["from_rows"]),
        # Of the continuous feature nothing remains: it is there because a dense part takes one.
        helper.make_node("MatMul", ["dense", "nothing"], ["from_dense"]),
        helper.make_node("Sum", ["from_rows", "from_dense", "mark"], ["sum"]),
        helper.make_node("Reshape", ["sum", "flat"], ["scores"]),
    ]
    weights = {
        "places": embeddings,
        "nothing": np.zeros((1, 1), np.float32),
        "mark": np.array([[mark]], np.float32),
        "flat": np.array([-1], np.int64),
    }
    save_dense_part(path, nodes, weights, {"dense": 1, "embeddings": len(TABLES) * DIM})


def _marked_rows(num_rows: int, mark: int) -> npt.NDArray[np.float32]:
    rows = np.arange(num_rows * DIM, dtype=np.float32).reshape(num_rows, DIM)
    rows[:, 0] = mark
    return rows
