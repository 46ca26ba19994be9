"""A small version to write: two tables, three features."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rankhouse.embedding_cache.format.golden import GoldenRequest
from rankhouse.embedding_cache.format.records import FeatureContent, TableContent
from rankhouse.embedding_cache.format.version import VersionContent


def rows_of(num_rows: int, dim: int, first: float = 0.0) -> np.ndarray:
    return (first + np.arange(num_rows * dim, dtype=np.float32)).reshape(num_rows, dim)


def blocks_of(rows: np.ndarray, size: int = 4) -> Iterator[np.ndarray]:
    return (rows[begin : begin + size] for begin in range(0, len(rows), size))


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
