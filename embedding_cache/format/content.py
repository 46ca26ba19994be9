"""What is given to be written: the parts of a whole version, and of one that continues another."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankhouse.embedding_cache.format.files import FileRecord
from rankhouse.embedding_cache.format.golden import GoldenRequest
from rankhouse.embedding_cache.format.records import FeatureContent, TableContent, TableDelta
from rankhouse.embedding_cache.format.version_record import EXPORTED, Origin, Source


@dataclass(frozen=True)
class VersionContent:
    """What makes a whole version.

    Attributes:
        model: The model's name, as in the gateway's paths.
        dense: A file, the dense part as ONNX: float32 `dense` [B, num_dense] and `embeddings` [B, E] to `scores` [B].
            None where there is none; such a version cannot be served.
        transform: A folder that holds the compiled transform.
        num_dense: How many continuous features the dense part takes.
        tables: The embedding tables.
        features: The categorical features.
        golden: Raw requests and the trainer's scores.
        metrics: What is known of the model, for people: the step, the AUC, ... (JSON values); read after the tables.
        source: The training state that it holds, where that is known.
        origin: How it came about.
    """

    model: str
    dense: Path | None
    transform: Path
    num_dense: int
    tables: Sequence[TableContent]
    features: Sequence[FeatureContent]
    golden: Sequence[GoldenRequest] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    source: Source | None = None
    origin: Origin = EXPORTED


@dataclass(frozen=True)
class DeltaContent:
    """What changed since a parent version; model, features and row types are the parent's.

    Attributes:
        dense: As in `VersionContent`.
        transform: As in `VersionContent`.
        num_dense: As in `VersionContent`.
        tables: What changed in tables; one that is not among them did not change.
        golden: As in `VersionContent`.
        metrics: As in `VersionContent`.
        source: As in `VersionContent`.
        noted_layers: What the caller knows of the first layers of the transform's vocabularies; those of them that the
            parent has are not read.
    """

    dense: Path | None
    transform: Path
    num_dense: int
    tables: Sequence[TableDelta]
    golden: Sequence[GoldenRequest] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    source: Source | None = None
    noted_layers: Sequence[FileRecord] = ()
