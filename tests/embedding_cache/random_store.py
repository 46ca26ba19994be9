"""Stores of random rows with deltas, and what a lookup in them gives, from `Version.rows` and NumPy alone."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rankhouse.embedding_cache.format.records import FeatureContent, TableContent, TableDelta
from rankhouse.embedding_cache.format.version import Version, VersionStore
from tests.embedding_cache.format.small_store import small_content, small_delta

# Name, rows, width and row type of each table. Some have rows that begin on no multiple of anything.
TABLES = (("A", 700, 4, "float32"), ("B", 90, 3, "float16"), ("C", 1500, 1, "bfloat16"), ("D", 300, 7, "int8"))
# Name, table, combiner. Two features share a table, and they are not next to each other.
FEATURES = (("a", "A", "sum"), ("c", "C", "mean"), ("b", "B", "mean"), ("a2", "A", "mean"), ("d", "D", "sum"))


def write_random(
    store: VersionStore, parts: Path, *, seed: int = 0, tables: Sequence[tuple[str, int, int, str]] = TABLES
) -> Version:
    """Writes a whole version."""
    random = np.random.default_rng(seed)
    rows = {name: random.normal(size=(num_rows, dim)).astype(np.float32) for name, num_rows, dim, _ in tables}
    content = small_content(
        parts,
        tables=[TableContent(name, *rows[name].shape, [rows[name]], dtype) for name, _, _, dtype in tables],
        features=[FeatureContent(*feature) for feature in FEATURES if feature[1] in rows],
    )
    return store.write(content)


def write_random_delta(
    store: VersionStore, parts: Path, parent: Version, *, seed: int, fraction: float = 0.1
) -> Version:
    """Writes one that continues another: in each table rows change, go, and are added."""
    random = np.random.default_rng(seed)
    deltas = []
    for table in parent.tables:
        added = int(random.integers(0, 4))
        touched = random.permutation(table.num_rows)[: table.num_rows // 10]
        ids = np.union1d(touched[1::2], np.arange(table.num_rows, table.num_rows + added))
        rows = random.normal(size=(len(ids), table.dim)).astype(np.float32)
        deltas.append(TableDelta(table.name, table.num_rows + added, ids, [rows], np.sort(touched[::2])))
    return store.write_delta(small_delta(parts, tables=deltas), parent)


def random_batch(version: Version, num_samples: int, *, seed: int = 0, most: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Ids and lengths of bags of 0 to `most` ids."""
    random = np.random.default_rng(seed)
    num_rows = {table.name: table.num_rows for table in version.tables}
    lengths_FB = random.integers(0, most + 1, (len(version.features), num_samples), dtype=np.int32)
    parts = [
        random.integers(0, num_rows[feature.table], lengths.sum())
        for feature, lengths in zip(version.features, lengths_FB, strict=True)
    ]
    return np.concatenate(parts), lengths_FB


def pooled(
    version: Version,
    ids_N: np.ndarray,
    lengths_FB: np.ndarray,
    *,
    weights_N: np.ndarray | None = None,
    combiners: Sequence[str] | None = None,
) -> np.ndarray:
    """The definition, bag by bag, in float64."""
    weights_N = np.ones(len(ids_N)) if weights_N is None else weights_N.astype(np.float64)
    columns, position = [], 0
    for f, (feature, lengths_B) in enumerate(zip(version.features, lengths_FB, strict=True)):
        combiner = feature.combiner if combiners is None else combiners[f]
        own = slice(position, position + int(lengths_B.sum()))
        rows = version.rows(feature.table, ids_N[own].astype(np.int64)).astype(np.float64)
        out, first = np.zeros((len(lengths_B), feature.dim)), 0
        for sample, length in enumerate(lengths_B):
            bag, weights = rows[first : first + length], weights_N[own][first : first + length, None]
            divisor = {"sum": 1.0, "mean": weights.sum(), "sqrtn": np.sqrt((weights**2).sum())}[combiner]
            out[sample] = (bag * weights).sum(axis=0) / divisor if length else 0
            first += length
        columns.append(out)
        position = own.stop
    return np.concatenate(columns, axis=1)
