"""Models of HPS made up for tests, written key by key as its own samples write them."""

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Rows = Mapping[int, Sequence[float]]

ITEMS: Rows = {7: (0.5, -1.0, 2.0), -3: (1.5, 0.25, 0.0), 2**40: (4.0, 8.0, -16.0), 0: (1.0, 2.0, 3.0)}
USERS: Rows = {5: (1.0, 10.0), 6: (2.0, 20.0), 9: (3.0, 30.0)}


def write_table(folder: Path, rows: Rows) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "key").write_bytes(b"".join(struct.pack("<q", key) for key in rows))
    (folder / "emb_vector").write_bytes(b"".join(struct.pack(f"<{len(row)}f", *row) for row in rows.values()))
    return folder


def model_entry(folder: Path, name: str, tables: Mapping[str, Rows], **changes: Any) -> dict[str, Any]:
    """A model's part of `ps.json`; its tables' folders are written."""
    return {
        "model": name,
        "sparse_files": [str(write_table(folder / name / table, rows)) for table, rows in tables.items()],
        "embedding_table_names": list(tables),
        "embedding_vecsize_per_table": [len(next(iter(rows.values()))) for rows in tables.values()],
        "maxnum_catfeature_query_per_table_per_sample": [2] * len(tables),
        "default_value_for_each_table": [0.125 * (number + 1) for number in range(len(tables))],
        "deployed_device_list": [0],
        "max_batch_size": 1024,
        "hit_rate_threshold": 0.9,
        "gpucacheper": 0.25,
        "gpucache": True,
        **changes,
    }


def write_ps_json(folder: Path, *models: Mapping[str, Any], **changes: Any) -> Path:
    document = {"supportlonglong": True, "models": list(models), **changes}
    path = folder / "ps.json"
    path.write_text(json.dumps({name: value for name, value in document.items() if value is not None}))
    return path


def small_ps_json(folder: Path, *, model: Mapping[str, Any] | None = None, **changes: Any) -> Path:
    """One model, `shop`, with the tables `item` and `user`."""
    return write_ps_json(
        folder, model_entry(folder, "shop", {"item": ITEMS, "user": USERS}, **(model or {})), **changes
    )


def row_of(rows: Rows, key: int, default: float) -> np.ndarray:
    """The truth."""
    dim = len(next(iter(rows.values())))
    return np.array(rows.get(key, (default,) * dim), np.float32)
