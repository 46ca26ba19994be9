"""A small version to write: two tables, three features."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.content import DeltaContent, VersionContent
from rankhouse.embedding_cache.format.golden import GoldenRequest
from rankhouse.embedding_cache.format.records import FeatureContent, TableContent, TableDelta
from rankhouse.embedding_cache.format.version import Version


def rows_of(num_rows: int, dim: int, first: float = 0.0) -> np.ndarray:
    return (first + np.arange(num_rows * dim, dtype=np.float32)).reshape(num_rows, dim)


def blocks_of(rows: np.ndarray, size: int = 4) -> Iterator[np.ndarray]:
    return (rows[begin : begin + size] for begin in range(0, len(rows), size))


def forge(version: Version, **changes: object) -> str:
    """Changes a version's manifest and gives it the name that goes with it, as a broken writer might."""
    path = version.path / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    name = f"{version.name.split('-')[0]}-{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"
    version.path.rename(version.path.with_name(name))
    return name


def table_delta(
    name: str, rows: Mapping[int, npt.ArrayLike], *, num_rows: int, removed: Sequence[int] = ()
) -> TableDelta:
    """Changed rows of a table, by their ids."""
    ids = np.array(sorted(rows), np.int64)
    blocks = [np.asarray([rows[int(i)]], np.float32) for i in ids]
    return TableDelta(name, num_rows, ids, blocks, np.array(removed, np.int64))


def small_delta(folder: Path, **changes: Any) -> DeltaContent:
    """What changes in `small_content`: row 2 of C1 is new, row 4 went and row 11 came."""
    whole = small_content(folder)
    content = DeltaContent(
        dense=whole.dense,
        transform=whole.transform,
        num_dense=2,
        tables=[table_delta("C1", {2: [-1, -2, -3], 11: [7, 8, 9]}, num_rows=12, removed=[4])],
        golden=whole.golden,
        metrics={"auc": 0.8},
    )
    return replace(content, **changes)


def small_content(folder: Path, *, first: float = 0.0, **changes: Any) -> VersionContent:
    """The parts are stand-ins of a few bytes, because a store does not look into them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dense.onnx").write_bytes(f"dense.onnx of {first}".encode())
    (folder / "transform.safetensors").write_bytes(b"vocabularies")
    (folder / "transform.json").write_text('{"format": "rankhouse.transform", "format_version": 1}')
    content = VersionContent(
        model="dlrm",
        dense=folder / "dense.onnx",
        transform=folder,
        num_dense=2,
        tables=[
            TableContent("C1", 11, 3, blocks_of(rows_of(11, 3, first))),
            TableContent("C2", 5, 2, blocks_of(rows_of(5, 2))),
        ],
        features=[
            FeatureContent("C1", "C1", "sum"),
            FeatureContent("C2", "C2", "mean"),
            FeatureContent("clicked", "C1", "mean"),
        ],
        golden=[GoldenRequest({"context": {"I1": 1}, "candidates": [{"C1": "a"}, {"C1": None}]}, (0.25, 0.5))],
        metrics={"auc": 0.75},
    )
    return replace(content, **changes)
