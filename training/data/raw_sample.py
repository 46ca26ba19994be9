"""A few rows of a split as they stand in the raw files: what a client would send, for golden requests and examples."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankhouse.embedding_cache.format.errors import ManifestError
from rankhouse.embedding_cache.format.files import FORMAT_VERSION, check_format, read_json, write_durably
from rankhouse.training.errors import DatasetError

RAW_SAMPLE_NAME = "raw_sample.json"
NUM_SAMPLED_ROWS = 1000


def save_raw_sample(split: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes the first rows of a split into its folder.

    Args:
        split: The split's folder.
        rows: From feature names to raw values (JSON values), without the label; missing values may be left out.
    """
    document = {"format": "rankhouse.raw_sample", "format_version": FORMAT_VERSION, "rows": [dict(row) for row in rows]}
    write_durably(split / RAW_SAMPLE_NAME, json.dumps(document, indent=1, allow_nan=False).encode() + b"\n")


def load_raw_sample(split: Path) -> list[dict[str, Any]]:
    """Reads the first rows of a split from its folder; row i is row i of the split's files.

    Raises:
        DatasetError: They are missing or malformed.
    """
    path = split / RAW_SAMPLE_NAME
    try:
        document = read_json(path, path.read_bytes())
        check_format(path, document, "raw_sample")
        return [dict(row) for row in document["rows"]]
    except (OSError, ManifestError, KeyError, TypeError, ValueError) as exc:
        raise DatasetError(f"{path}: holds no raw rows ({exc}); preprocess again") from exc
