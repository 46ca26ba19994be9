"""The version store: immutable servable versions of models, sharing segments of rows.

    segments/<sha256>.safetensors     rows of one table, see segment.py
    versions/<name>/manifest.json     what the version is, with the size and checksum of each file beside it
    versions/<name>/...               dense.onnx, transform.json, transform.safetensors, golden.json

A version is written under a temporary name, segments first and its manifest last, and appears by one rename: a crash at
any point leaves the store as it was, except for files that nothing names. Any number of processes may read while one
writes; several writers take turns at a lock.

FORMAT.md gives the files byte by byte.
"""

import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.errors import ContentError, CorruptFileError, ManifestError, VersionNotFoundError
from rankhouse.embedding_cache.format.files import (
    MANIFEST_NAME,
    FileRecord,
    Manifest,
    check_files,
    check_keys,
    commit_manifest,
    file_record,
    flush,
    load_manifest,
)
from rankhouse.embedding_cache.format.golden import GOLDEN_FILE, GoldenRequest, read_golden, write_golden
from rankhouse.embedding_cache.format.locks import committing, writing
from rankhouse.embedding_cache.format.records import (
    FeatureContent,
    FeatureRecord,
    TableContent,
    TableRecord,
    check_content,
    lay_out_features,
    parse_features,
    parse_tables,
)
from rankhouse.embedding_cache.format.segment import check_segment, open_segment, write_segments

DENSE_FILE = "dense.onnx"
TRANSFORM_FILES = ("transform.json", "transform.safetensors")
VERSIONS = "versions"

# Larger tables are cut into several files, so that copying and verifying a store can go on in parallel.
SEGMENT_BYTES = 4 << 30

_KIND = "version"
_FILES = (DENSE_FILE, *TRANSFORM_FILES, GOLDEN_FILE)
_KEYS = ("model", "sequence", "parent", "created_at", "dense", "tables", "features", "metrics")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_NAME = re.compile(r"(\d{6,})-([0-9a-f]{8})")


@dataclass(frozen=True)
class VersionContent:
    """What makes a version.

    Attributes:
        model: The model's name, as in the gateway's paths.
        dense: A file, the dense part as ONNX: float32 `dense` [B, num_dense] and `embeddings` [B, E] to `scores` [B].
        transform: A folder that holds the compiled transform, `transform.json` and `transform.safetensors`.
        num_dense: How many continuous features the dense part takes.
        tables: The embedding tables.
        features: The categorical features.
        golden: Raw requests and the trainer's scores.
        metrics: What is known of the model, for people: the step, the held-out AUC, ... (JSON values).
    """

    model: str
    dense: Path
    transform: Path
    num_dense: int
    tables: Sequence[TableContent]
    features: Sequence[FeatureContent]
    golden: Sequence[GoldenRequest] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Version:
    """An immutable version in a store. Any thread may read it.

    Attributes:
        store: The store's folder.
        name: `<sequence, 6 digits>-<first 8 hex digits of the SHA-256 of its manifest>`.
        manifest: Its manifest as read.
        tables: Its tables, with their segments.
        features: Its categorical features in the order of the columns of `embeddings`.
    """

    store: Path
    name: str
    manifest: Manifest
    tables: tuple[TableRecord, ...]
    features: tuple[FeatureRecord, ...]

    @property
    def path(self) -> Path:
        """The version's folder; it holds the compiled transform."""
        return self.store / VERSIONS / self.name

    @property
    def dense_path(self) -> Path:
        """The dense part, an ONNX file."""
        return self.path / DENSE_FILE

    @property
    def model(self) -> str:
        """The name of the model that this is a version of."""
        return str(self.manifest.document["model"])

    @property
    def created_at(self) -> datetime:
        """When it was written, in UTC."""
        return datetime.fromisoformat(self.manifest.document["created_at"])

    @property
    def num_dense(self) -> int:
        """How many continuous features the dense part takes."""
        return int(self.manifest.document["dense"]["inputs"]["dense"])

    @property
    def embeddings_dim(self) -> int:
        """E, the width of `embeddings`: the sum of the widths of all features."""
        return sum(feature.dim for feature in self.features)

    @property
    def metrics(self) -> Mapping[str, Any]:
        """What is known of the model: the step, the held-out AUC, ..."""
        metrics: Mapping[str, Any] = self.manifest.document["metrics"]
        return metrics

    @property
    def num_bytes(self) -> int:
        """The size of all its files, shared segments included."""
        files = sum(record.bytes for record in self.manifest.files.values())
        return files + sum(segment.bytes for table in self.tables for segment in table.segments)

    def segments(self, table: TableRecord) -> list[npt.NDArray[np.float32]]:
        """Maps a table's segments into memory, read-only, in the order of their rows.

        Returns:
            float32 [n, D] each; together the table's rows.

        Raises:
            CorruptFileError: A segment is missing or not what the manifest says.
        """
        return [open_segment(self.store, table.name, segment, dim=table.dim) for segment in table.segments]

    def golden(self) -> tuple[GoldenRequest, ...]:
        """Reads the golden requests.

        Raises:
            ManifestError: The file is malformed.
        """
        return read_golden(self.path)


class VersionStore:
    """The versions in a folder. Any process and any thread may use it."""

    def __init__(self, path: Path | str, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        """Names a store; nothing is read or written yet.

        Args:
            path: The store's folder; the first write makes it.
            segment_bytes: How many bytes of rows a segment may hold.
        """
        self.path = Path(path)
        self._segment_bytes = segment_bytes

    def names(self) -> list[str]:
        """Lists the versions, oldest first.

        Raises:
            VersionNotFoundError: There is no such folder.
        """
        if not self.path.is_dir():
            raise VersionNotFoundError(f"{self.path}: there is no such version store; `rankhouse export` makes one")
        folder = self.path / VERSIONS
        entries = folder.iterdir() if folder.is_dir() else ()
        found = [entry.name for entry in entries if is_version_name(entry.name) and (entry / MANIFEST_NAME).is_file()]
        return sorted(found, key=lambda name: (sequence_of(name), name))

    def open(self, name: str = "latest", *, model: str | None = None, verify: bool = True) -> Version:
        """Opens a version.

        Args:
            name: A version's name, or "latest" for the newest.
            model: The model that it must be a version of; None takes any.
            verify: Whether to read every file, segments included, and compare its checksum. Presence and size are
                compared in any case.

        Raises:
            VersionNotFoundError: There is no such version.
            ManifestError: Its manifest is malformed, or made by a newer release.
            CorruptFileError: A file is missing, truncated or altered.
        """
        names = self.names()
        if name == "latest":
            name = self._latest(names, model)
        elif name not in names:
            known = ", ".join(names[-5:]) or "none"
            raise VersionNotFoundError(f"{self.path}: has no version {name!r}; the newest are: {known}")
        version = self.read(name)
        if model is not None and version.model != model:
            raise VersionNotFoundError(f"{self.path}: version {name} is of the model {version.model!r}, not {model!r}")
        check_files(version.path, version.manifest, verify=verify)
        for segment in {segment for table in version.tables for segment in table.segments}:
            check_segment(self.path, segment, verify=verify)
        return version

    def read(self, name: str) -> Version:
        """Reads a version's manifest alone; none of the files that it names is looked at.

        Args:
            name: A version's name.

        Raises:
            VersionNotFoundError: There is no such version.
            ManifestError: Its manifest is malformed, or made by a newer release.
        """
        folder = self.path / VERSIONS / name
        if not folder.is_dir():
            raise VersionNotFoundError(f"{folder}: there is no such version; `rankhouse version list` shows which are")
        manifest = load_manifest(folder, kind=_KIND)
        if not name.endswith("-" + manifest.sha256[:8]):
            raise ManifestError(
                f"{folder / MANIFEST_NAME}: was altered: its SHA-256 begins with {manifest.sha256[:8]}, the version's "
                "name ends with another; restore the version from another copy of the store"
            )
        path = folder / MANIFEST_NAME
        check_keys(path, manifest.document, _KEYS)
        try:
            tables = parse_tables(manifest.document["tables"])
            features = parse_features(manifest.document["features"], tables)
            _check_document(manifest, features, sequence=sequence_of(name))
        except (KeyError, TypeError, ValueError) as exc:
            raise ManifestError(f"{path}: is malformed: {exc!r}; export the version again") from exc
        return Version(self.path, name, manifest, tables, features)

    def write(self, content: VersionContent, *, check: Callable[[Version], None] | None = None) -> Version:
        """Writes a new version; it appears when all of it is on the disk.

        Args:
            content: What to write.
            check: Called with the complete version before it appears, under a temporary name; if it raises, the store
                stays as it was.

        Raises:
            ContentError: The content contradicts itself, or a table's blocks do not add up.
            CorruptFileError: The dense part or the compiled transform is missing.
        """
        if not _MODEL_NAME.fullmatch(content.model):
            raise ContentError(
                f"{content.model!r} cannot be a model's name: it stands in paths; use letters, digits, '-' and '_'"
            )
        check_content(content.tables, content.features)
        if not self.path.is_dir():
            self.path.mkdir(parents=True, exist_ok=True)
            flush(self.path.absolute().parent)
        with writing(self.path):
            temporary = self.path / VERSIONS / f".tmp-{uuid.uuid4().hex}"
            temporary.mkdir(parents=True)
            try:
                tables = [self._write_table(table) for table in content.tables]
                features = lay_out_features(content.features, tables)
                files = _copy_files(content, temporary)
                with committing(self.path):
                    sequence = max((sequence_of(name) for name in self.names()), default=0) + 1
                    document = _document(content, tables=tables, features=features, sequence=sequence)
                    manifest = commit_manifest(temporary, kind=_KIND, document=document, files=files)
                    if check is not None:
                        check(Version(self.path, temporary.name, manifest, tuple(tables), features))
                    name = f"{sequence:06d}-{manifest.sha256[:8]}"
                    # The store's own entries may be as new as the version.
                    flush(self.path)
                    os.rename(temporary, self.path / VERSIONS / name)
                    flush(self.path / VERSIONS)
            except BaseException:
                shutil.rmtree(temporary, ignore_errors=True)
                raise
            return self.open(name, verify=False)

    def _write_table(self, table: TableContent) -> TableRecord:
        segments = write_segments(
            self.path,
            table.name,
            table.blocks,
            num_rows=table.num_rows,
            dim=table.dim,
            rows_per_segment=max(1, self._segment_bytes // (4 * table.dim)),
        )
        return TableRecord(table.name, table.num_rows, table.dim, "float32", segments)

    def _latest(self, names: Sequence[str], model: str | None) -> str:
        for name in reversed(names):
            if model is None or self._model_of(name) == model:
                return name
        of_model = f" of the model {model!r}" if model is not None else ""
        raise VersionNotFoundError(f"{self.path}: has no version{of_model}; `rankhouse export` writes one")

    def _model_of(self, name: str) -> str | None:
        try:
            return self.read(name).model
        except VersionNotFoundError:  # It was collected since the versions were listed.
            return None


def is_version_name(text: str) -> bool:
    """Says whether a folder's name is that of a version."""
    return _NAME.fullmatch(text) is not None


def sequence_of(name: str) -> int:
    """The sequence number in a version's name."""
    return int(name.split("-")[0])


def _check_document(manifest: Manifest, features: Sequence[FeatureRecord], *, sequence: int) -> None:
    """Checks what a manifest says beside tables and features; raises KeyError, TypeError or ValueError."""
    document = manifest.document
    if document["parent"] is not None:
        raise ValueError(f"its parent is {document['parent']!r}; this release reads whole versions only")
    if document["sequence"] != sequence:
        raise ValueError(f"its sequence is {document['sequence']!r}, its name's {sequence}")
    if not _MODEL_NAME.fullmatch(document["model"]):
        raise ValueError(f"{document['model']!r} cannot be a model's name")
    if set(manifest.files) != set(_FILES):
        raise ValueError(f"it names the files {sorted(manifest.files)}; expected {sorted(_FILES)}")
    num_dense = document["dense"]["inputs"]["dense"]
    if type(num_dense) is not int or document["dense"] != _dense(num_dense, features):
        raise ValueError(f"the dense part {document['dense']} does not take what the features give")
    datetime.fromisoformat(document["created_at"])
    dict(document["metrics"])


def _dense(num_dense: int, features: Sequence[FeatureRecord]) -> dict[str, Any]:
    return {
        "file": DENSE_FILE,
        "inputs": {"dense": num_dense, "embeddings": sum(feature.dim for feature in features)},
        "output": "scores",
    }


def _document(
    content: VersionContent, *, tables: Sequence[TableRecord], features: Sequence[FeatureRecord], sequence: int
) -> dict[str, Any]:
    return {
        "model": content.model,
        "sequence": sequence,
        "parent": None,  # Every version is a whole one so far.
        "created_at": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "dense": _dense(content.num_dense, features),
        "tables": [asdict(table) for table in tables],
        "features": [asdict(feature) for feature in features],
        "metrics": dict(content.metrics),
    }


def _copy_files(content: VersionContent, folder: Path) -> dict[str, FileRecord]:
    sources = {DENSE_FILE: content.dense, **{name: content.transform / name for name in TRANSFORM_FILES}}
    for name, source in sources.items():
        try:
            shutil.copyfile(source, folder / name)
        except OSError as exc:
            raise CorruptFileError(f"{source}: cannot be copied into the version ({exc.strerror})") from exc
    write_golden(folder, content.golden)
    return {name: file_record(folder / name) for name in _FILES}
