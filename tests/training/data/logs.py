"""Small raw logs for tests: every kind of feature, missing values, shared tables, lists, extremes."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rankhouse.training.data.feature_spec import FeatureSpec

SPEC = FeatureSpec.from_document(
    {
        "name": "small",
        "label": "clicked",
        "features": [
            {"name": "count", "kind": "continuous", "dtype": "int64", "clip_min": 0, "log": True},
            {"name": "item", "kind": "categorical", "dtype": "text", "dim": 4, "frequency_threshold": 2},
            {"name": "price", "kind": "continuous", "dtype": "float64", "fill": 1.5, "clip_max": 100},
            {"name": "history", "kind": "categorical", "dtype": "text", "list": True, "table": "item"},
            {"name": "age", "kind": "continuous", "dtype": "int64", "fill": -1, "normalize": False},
            {"name": "shop", "kind": "categorical", "dtype": "int64", "dim": 8, "max_size": 20},
            {"name": "shops", "kind": "categorical", "dtype": "int64", "list": True, "combiner": "sum", "dim": 2},
            {"name": "city", "kind": "categorical", "dtype": "text", "dim": 2, "frequency_threshold": 3, "max_size": 9},
            {"name": "ratio", "kind": "continuous", "clip_min": -0.5, "clip_max": 3, "log": True, "normalize": False},
        ],
    }
)


def raw_rows(num_rows: int, seed: int, unseen: int = 0) -> list[dict[str, Any]]:
    """Rows as a request would carry them, and the label; `unseen` shifts some ids to ones that other seeds lack."""
    random = np.random.default_rng(seed)
    # Neighbours above 2**53, which a float64 cannot tell apart.
    far = 2**60

    def ids(count: int, values: int) -> list[int]:
        return [int(value) + unseen for value in random.zipf(1.3, count) % values]

    def row() -> dict[str, Any]:
        return {
            "clicked": int(random.integers(2)),
            "count": int(random.choice([-3, 0, 5, 7_000, 2**40, 2**63 - 1])),
            "item": f"é{ids(1, 60)[0]}" * int(random.integers(1, 4)),
            "price": float(random.choice([random.normal(10, 50), 1e300, -1e-300, -0.0, float("nan")])),
            "history": [f"é{value}" for value in ids(int(random.integers(0, 5)), 60)],
            "age": int(random.integers(-5, 99)),
            "shop": far + ids(1, 50)[0] if random.random() < 0.9 else -ids(1, 9)[0],
            "shops": [far + value for value in ids(int(random.integers(0, 4)), 30)],
            "city": f"city {ids(1, 30)[0]}",
            "ratio": float(random.normal()),
        }

    def with_gaps(values: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in values.items() if name == "clicked" or random.random() < 0.85}

    return [with_gaps(row()) for _ in range(num_rows)]


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Writes rows in the types of the spec above."""
    types = {
        "clicked": pa.int8(),
        "count": pa.int64(),
        "item": pa.string(),
        "price": pa.float64(),
        "history": pa.list_(pa.string()),
        "age": pa.int64(),
        "shop": pa.int64(),
        "shops": pa.list_(pa.int64()),
        "city": pa.string(),
        "ratio": pa.float64(),
    }
    columns = {name: pa.array([row.get(name) for row in rows], kind) for name, kind in types.items()}
    pq.write_table(pa.table(columns), path)
    return path
