"""What a version's manifest says, as Python values; and the JSON of it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

from rankhouse.embedding_cache.format.errors import ContentError
from rankhouse.embedding_cache.format.files import FileRecord, Manifest, is_sha256
from rankhouse.embedding_cache.format.golden import GOLDEN_FILE
from rankhouse.embedding_cache.format.records import (
    FeatureRecord,
    TableRecord,
    parse_features,
    parse_files,
    parse_tables,
)
from rankhouse.embedding_cache.format.transform import JSON_NAME, TENSORS_NAME

DENSE_FILE = "dense.onnx"
# Among `metrics`: when the newest event that the model learnt from happened, in unix seconds.
EVENT_TIME = "event_time"

ACTIONS = ("export", "delta", "compact", "rollback", "import")

KEYS = (
    *("model", "sequence", "parent", "origin", "source", "created_at"),
    *("dense", "vocabularies", "tables", "features", "metrics"),
)
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_NAME = re.compile(r"(\d{6,})-([0-9a-f]{8})")


@dataclass(frozen=True)
class Parent:
    """The version that a delta was laid over.

    Attributes:
        name: Its name.
        sha256: The SHA-256 of its manifest.
    """

    name: str
    sha256: str


@dataclass(frozen=True)
class Origin:
    """How a version came about.

    Attributes:
        action: "export", "delta", "compact", "rollback" or "import".
        version: The version that it was made from, or None.
    """

    action: str
    version: str | None = None


EXPORTED = Origin("export")


@dataclass(frozen=True)
class Source:
    """The training state that a version holds.

    Attributes:
        run: The run's name.
        checkpoint: The checkpoint's id.
        step: The optimizer's iterations, over all runs that led to it.
    """

    run: str
    checkpoint: str
    step: int


@dataclass(frozen=True)
class VersionRecord:
    """What a version's manifest says.

    Attributes:
        model: The name of the model that it is a version of.
        tables: Its tables, with their files.
        features: Its categorical features in the order of the columns of `embeddings`.
        num_dense: How many continuous features its dense part takes; None where it has no dense part.
        vocabularies: The layers of its vocabularies, base first; none where they lie in the version's folder.
        parent: The version that its last delta was laid over; None if it is whole.
        origin: How it came about.
        source: The training state that it holds, where that is known.
        metrics: What is known of the model, for people.
    """

    model: str
    tables: tuple[TableRecord, ...]
    features: tuple[FeatureRecord, ...]
    num_dense: int | None
    vocabularies: tuple[FileRecord, ...] = ()
    parent: Parent | None = None
    origin: Origin = EXPORTED
    source: Source | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shared_files(self) -> tuple[FileRecord, ...]:
        """The files that it may share with other versions, each once."""
        files = (*(file for table in self.tables for file in table.files), *self.vocabularies)
        return tuple(dict.fromkeys(files))

    @property
    def file_names(self) -> tuple[str, ...]:
        """The files that lie in its folder beside the manifest."""
        return (
            *([] if self.num_dense is None else [DENSE_FILE]),
            *(JSON_NAME, *([] if self.vocabularies else [TENSORS_NAME]), GOLDEN_FILE),
        )

    def fault_over(self, parent: "VersionRecord", sha256: str) -> str:
        """Says what of a parent, whose manifest has this hash, this one does not continue; empty if it does."""
        own = {table.name: table for table in self.tables}
        for table in parent.tables:
            if not table.is_beginning_of(own.get(table.name)):
                return f"table {table.name!r} is not"
        is_it = self.parent is not None and self.parent.sha256 == sha256
        return "" if is_it else "the hash of its parent's manifest is not"

    def document(self, *, sequence: int) -> dict[str, Any]:
        """Makes the manifest's document of it, as of now."""
        return {
            "model": self.model,
            "sequence": sequence,
            "parent": None if self.parent is None else asdict(self.parent),
            "origin": asdict(self.origin),
            "source": None if self.source is None else asdict(self.source),
            "created_at": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
            "dense": _dense(self.num_dense, self.features),
            "vocabularies": [asdict(layer) for layer in self.vocabularies],
            "tables": [asdict(table) for table in self.tables],
            "features": [asdict(feature) for feature in self.features],
            "metrics": dict(self.metrics),
        }

    @classmethod
    def parse(cls, manifest: Manifest, *, sequence: int) -> "VersionRecord":
        """Reads a manifest; what is absent of the newer keys has the meaning that it had before there were any.

        Raises:
            KeyError: A field is missing.
            TypeError: A value is of another type.
            ValueError, ContentError: A value is impossible, or contradicts another.
        """
        document = manifest.document
        tables = parse_tables(document["tables"])
        parent, source = document["parent"], document.get("source")
        record = cls(
            model=document["model"],
            tables=tables,
            features=parse_features(document["features"], tables),
            num_dense=None if document["dense"] is None else document["dense"]["inputs"]["dense"],
            vocabularies=parse_files(document.get("vocabularies", ())),
            parent=None if parent is None else Parent(**parent),
            origin=Origin(**document.get("origin", {"action": "export"})),
            source=None if source is None else Source(**source),
            metrics=dict(document["metrics"]),
        )
        if document["sequence"] != sequence:
            raise ValueError(f"its sequence is {document['sequence']!r}, its name's {sequence}")
        if document["dense"] != _dense(record.num_dense, record.features):
            raise ValueError(f"the dense part {document['dense']} does not take what the features give")
        if set(manifest.files) != set(record.file_names):
            raise ValueError(f"it names the files {sorted(manifest.files)}; expected {sorted(record.file_names)}")
        datetime.fromisoformat(document["created_at"])
        record._check()
        return record

    def _check(self) -> None:
        check_model_name(self.model)
        if self.num_dense is not None and (type(self.num_dense) is not int or self.num_dense < 0):
            raise ValueError(f"the dense part takes {self.num_dense!r} continuous features")
        parent = self.parent
        if parent is not None and not (
            is_version_name(parent.name) and is_sha256(parent.sha256) and parent.name.endswith("-" + parent.sha256[:8])
        ):
            raise ValueError(f"its parent {parent} cannot be a version")
        if self.origin.action not in ACTIONS:
            raise ValueError(f"its origin is {self.origin.action!r}; expected one of {ACTIONS}")
        source = self.source
        if source is not None and (type(source.run), type(source.checkpoint), type(source.step)) != (str, str, int):
            raise ValueError(f"its source {source} is not a run, a checkpoint and a step")


def check_model_name(name: str) -> None:
    """Checks that a name can be a model's.

    Raises:
        ContentError: It cannot.
    """
    if not _MODEL_NAME.fullmatch(name):
        raise ContentError(f"{name!r} cannot be a model's name: it stands in paths; use letters, digits, '-' and '_'")


def is_version_name(name: str) -> bool:
    """Says whether a name can be a version's: its sequence number and eight hexadecimal digits."""
    return _NAME.fullmatch(name) is not None


def sequence_of(name: str) -> int:
    """The sequence number in a version's name."""
    return int(name.split("-")[0])


def _dense(num_dense: int | None, features: Sequence[FeatureRecord]) -> dict[str, Any] | None:
    if num_dense is None:
        return None
    return {
        "file": DENSE_FILE,
        "inputs": {"dense": num_dense, "embeddings": sum(feature.dim for feature in features)},
        "output": "scores",
    }
