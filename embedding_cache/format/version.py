"""The version store: immutable servable versions of models, sharing the files that did not change.

    segments/<sha256>.safetensors     rows of one table, changed rows of one table, or a layer of vocabularies
    versions/<name>/manifest.json     what the version is: those that it needs, and the size and checksum of each file
    versions/<name>/...               dense.onnx, transform.json, golden.json

A version is written under a temporary name, shared files first and its manifest last, and appears by one rename, or in
a bucket by its manifest (storage.py): a crash at any point leaves the store as it was, except for files that nothing
names. Any number of processes may read while one writes; several writers take turns.

FORMAT.md gives the files byte by byte.
"""

import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.content import DeltaContent, VersionContent
from rankhouse.embedding_cache.format.delta import check_deltas
from rankhouse.embedding_cache.format.errors import (
    ContentError,
    CorruptFileError,
    FormatError,
    ManifestError,
    NotServableError,
    StorageError,
    VersionNotFoundError,
)
from rankhouse.embedding_cache.format.files import (
    MANIFEST_NAME,
    FileRecord,
    Manifest,
    check_keys,
    commit_manifest,
    copy_file,
    load_manifest,
)
from rankhouse.embedding_cache.format.golden import GoldenRequest, read_golden
from rankhouse.embedding_cache.format.locks import writing
from rankhouse.embedding_cache.format.records import (
    FeatureRecord,
    TableRecord,
    check_tables,
    lay_out_features,
)
from rankhouse.embedding_cache.format.row_types import decode
from rankhouse.embedding_cache.format.shared_files import shared_files, shared_path
from rankhouse.embedding_cache.format.storage import open_storage
from rankhouse.embedding_cache.format.store_layout import VERSIONS, LastLook, Ranges
from rankhouse.embedding_cache.format.table_rows import TableRows
from rankhouse.embedding_cache.format.transform import TENSORS_NAME, CompiledTransform, layer_files
from rankhouse.embedding_cache.format.version_record import (
    DENSE_FILE,
    KEYS,
    Origin,
    Parent,
    Source,
    VersionRecord,
    check_model_name,
    sequence_of,
)
from rankhouse.embedding_cache.format.writing import put_files, write_deltas, write_vocabularies, write_whole

# Larger tables are cut into several files, so that copying and verifying a store can go on in parallel.
SEGMENT_BYTES = 4 << 30

_KIND = "version"
_Check = Callable[["Version"], None]


@dataclass(frozen=True)
class Version:
    """An immutable version in a store. Any thread may read it.

    Attributes:
        store: The store's folder.
        name: `<sequence, 6 digits>-<first 8 hex digits of the SHA-256 of its manifest>`.
        manifest: Its manifest as read.
        record: What the manifest says.
        ranges: Reads parts of the tables' files that the folder does not have; None if it has all (excerpt.py).
    """

    store: Path
    name: str
    manifest: Manifest
    record: VersionRecord
    ranges: Ranges | None = None

    @property
    def path(self) -> Path:
        """The version's folder."""
        return self.store / VERSIONS / self.name

    @property
    def dense_path(self) -> Path:
        """The dense part, an ONNX file.

        Raises:
            NotServableError: It has none.
        """
        if self.record.num_dense is None:
            raise self._not_servable()
        return self.path / DENSE_FILE

    @property
    def num_dense(self) -> int:
        """How many continuous features the dense part takes.

        Raises:
            NotServableError: It has none.
        """
        if self.record.num_dense is None:
            raise self._not_servable()
        return self.record.num_dense

    @property
    def model(self) -> str:
        """The name of the model that this is a version of."""
        return self.record.model

    @property
    def created_at(self) -> datetime:
        """When it was written, in UTC."""
        return datetime.fromisoformat(self.manifest.document["created_at"])

    @property
    def tables(self) -> tuple[TableRecord, ...]:
        """Its tables, with their files."""
        return self.record.tables

    @property
    def features(self) -> tuple[FeatureRecord, ...]:
        """Its categorical features in the order of the columns of `embeddings`."""
        return self.record.features

    @property
    def embeddings_dim(self) -> int:
        """E, the width of `embeddings`: the sum of the widths of all features."""
        return sum(feature.dim for feature in self.features)

    @property
    def parent(self) -> Parent | None:
        """The version that its last delta was laid over; None if it is whole. It may have been collected since."""
        return self.record.parent

    @property
    def origin(self) -> Origin:
        """How it came about."""
        return self.record.origin

    @property
    def source(self) -> Source | None:
        """The training state that it holds, where that is known."""
        return self.record.source

    @property
    def metrics(self) -> Mapping[str, Any]:
        """What is known of the model: the step, the held-out AUC, ..."""
        return self.record.metrics

    def files(self, *, tables: bool = True) -> dict[str, FileRecord]:
        """What it is made of besides its manifest, with or without its tables: path in the store to record."""
        own = {f"{VERSIONS}/{self.name}/{name}": file for name, file in self.manifest.files.items()}
        return own | shared_files(self.record.shared_files if tables else self.record.vocabularies)

    @property
    def num_bytes(self) -> int:
        """The size of all its files, shared ones included."""
        return sum(file.bytes for file in (*self.manifest.files.values(), *self.record.shared_files))

    def _not_servable(self) -> NotServableError:
        return NotServableError(
            f"version {self.name} of {self.model!r} has no dense part and cannot be served (it was made by "
            f"{self.origin.action!r}); export a trained model"
        )

    def table_rows(self, table: str) -> TableRows:
        """Maps a table's files into memory.

        Raises:
            ContentError: There is no such table.
            CorruptFileError: A file is missing or not what the manifest says.
        """
        for record in self.tables:
            if record.name == table:
                return TableRows(self.store, record)
        known = ", ".join(record.name for record in self.tables)
        raise ContentError(f"version {self.name} has no table {table!r}; it has {known}")

    def rows(self, table: str, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Reads effective rows of a table, float32 [n, D], by ids [n] in any order; maps the files anew each time.

        Raises:
            ContentError: There is no such table, or an id is outside it.
            CorruptFileError: A file is missing or not what the manifest says.
        """
        return decode(self.table_rows(table).gather(ids))

    def blocks(self, table: str) -> Iterator[npt.NDArray[Any]]:
        """Yields all effective rows of a table in order, in its own row type, some MiB at a time.

        Raises:
            ContentError: There is no such table.
            CorruptFileError: A file is missing or not what the manifest says.
        """
        return self.table_rows(table).blocks()

    @property
    def vocabulary_files(self) -> tuple[Path, ...]:
        """The vocabularies' layers among the store's shared files, the oldest first; none: they lie in the folder."""
        return tuple(shared_path(self.store, layer.sha256) for layer in self.record.vocabularies)

    def transform(self) -> CompiledTransform:
        """Opens the compiled transform.

        Raises:
            FormatError: It is damaged.
        """
        return CompiledTransform.load(self.path, self.vocabulary_files or None)

    def golden(self) -> tuple[GoldenRequest, ...]:
        """Reads the golden requests.

        Raises:
            ManifestError: The file is malformed.
        """
        return read_golden(self.path)


class VersionStore:
    """The versions in a folder or a bucket. Any process and any thread may use it.

    Attributes:
        location: The folder or URL.
        storage: How versions come into it, and to this machine.
        path: The folder in which readers find the files: the store's own, or the one that mirrors its URL.
    """

    def __init__(
        self, location: Path | str, *, cache: Path | str | None = None, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        """Names a store; nothing is read or written yet.

        Args:
            location: The store's folder, which the first write makes; or a URL, for example `s3://bucket/prefix`.
            cache: The folder below which a URL is mirrored; None is `default_cache()`.
            segment_bytes: How many bytes of rows a segment may hold.
        """
        self.location = str(location)
        self.storage = open_storage(location, cache=cache)
        self.path = self.storage.path
        self._segment_bytes = segment_bytes

    def names(self) -> list[str]:
        """Lists the versions, oldest first.

        Raises:
            VersionNotFoundError: There is no such folder.
            StorageError: The bucket cannot be reached, does not exist, or denies access.
        """
        return self.storage.names()

    def open(
        self, name: str = "latest", *, model: str | None = None, verify: bool = True, tables: bool = True
    ) -> Version:
        """Opens a version.

        Args:
            name: A version's name, or "latest" for the newest.
            model: The model that it must be a version of; None takes any.
            verify: Whether to read every file, shared ones included, and compare its checksum, and whether each delta
                applies to what is before it. Presence and size are compared in any case.
            tables: Whether its tables are wanted; without them their files are neither looked at nor fetched.

        Raises:
            VersionNotFoundError: There is no such version.
            ManifestError: Its manifest is malformed, made by a newer release, or contradicts its parent's.
            CorruptFileError: A file is missing, truncated or altered.
            StorageError: The bucket cannot be reached, does not exist, or denies access.
        """
        version = self.read(name, model=model)
        try:
            self._check_parent(version)
            self.storage.fetch(version.files(tables=tables), verify=verify)
            if verify and tables:
                for table in version.tables:
                    check_deltas(self.path, table)
        except CorruptFileError as exc:
            if version.name in self.names():  # A bucket's mirror may have its manifest still.
                raise
            raise VersionNotFoundError(
                f"{self.location}: version {version.name} was collected while it was opened; open a newer one"
            ) from exc
        return version

    def open_in_place(self, name: str = "latest", *, model: str | None = None) -> Version:
        """Opens a version whose shared files stay where they are kept: in a bucket, if the folder does not have them.

        Args and errors are those of `open`; presence and size alone are compared.
        """
        version = self.read(name, model=model)
        self._check_parent(version)
        own = {path: file for path, file in version.files().items() if path.startswith(f"{VERSIONS}/")}
        self.storage.fetch(own, verify=False)
        self.storage.look(shared_files(version.record.shared_files))
        return replace(version, ranges=self.storage.ranges)

    def read(self, name: str = "latest", *, model: str | None = None) -> Version:
        """Reads a version's manifest alone; none of the files that it names is looked at. Args are those of `open`.

        Raises:
            VersionNotFoundError: There is no such version.
            ManifestError: Its manifest is malformed, or made by a newer release.
            StorageError: The bucket cannot be reached, does not exist, or denies access.
        """
        if name == "latest":
            return self._latest(model)
        if not self.storage.has(name):
            known = ", ".join(self.names()[-5:]) or "none"
            raise VersionNotFoundError(f"{self.location}: has no version {name!r}; the newest are: {known}")
        folder = self.path / VERSIONS / name
        manifest = load_manifest(folder, kind=_KIND)
        path = folder / MANIFEST_NAME
        if not name.endswith("-" + manifest.sha256[:8]):
            raise ManifestError(
                f"{path}: was altered: its SHA-256 begins with {manifest.sha256[:8]}, the version's name ends with "
                "another; restore the version from another copy of the store"
            )
        check_keys(path, manifest.document, KEYS)
        try:
            record = VersionRecord.parse(manifest, sequence=sequence_of(name))
        except (KeyError, TypeError, ValueError, ContentError) as exc:
            raise ManifestError(f"{path}: is malformed: {exc!r}; export the version again") from exc
        if model is not None and record.model != model:
            raise VersionNotFoundError(
                f"{self.location}: version {name} is of the model {record.model!r}, not {model!r}"
            )
        return Version(self.path, name, manifest, record)

    def write(self, content: VersionContent, *, check: _Check | None = None) -> Version:
        """Writes a new whole version; it appears when all of it is on the disk.

        Args:
            content: What to write.
            check: Called with the complete version before it appears, under a temporary name; if it raises, the store
                stays as it was.

        Raises:
            ContentError: The content contradicts itself, or a table's blocks do not add up.
            CorruptFileError: The dense part or the compiled transform is missing.
        """
        check_model_name(content.model)
        check_tables(content.tables, content.features)
        with self._new_folder() as folder:
            tables, vocabularies = write_whole(
                self.path, content.tables, layer_files(content.transform), segment_bytes=self._segment_bytes
            )
            record = VersionRecord(
                model=content.model,
                tables=tables,
                features=lay_out_features(content.features, tables),
                num_dense=None if content.dense is None else content.num_dense,
                vocabularies=vocabularies,
                origin=content.origin,
                source=content.source,
                metrics=content.metrics,
            )
            files = put_files(folder, dense=content.dense, transform=content.transform, golden=content.golden)
            return self._publish(folder, record, files, check)

    def write_delta(self, content: DeltaContent, parent: Version, *, check: _Check | None = None) -> Version:
        """Writes a new version that shares with its parent what did not change; it appears when all is on the disk.

        Args:
            content: What changed.
            parent: A version of this store.
            check: As in `write`.

        Raises:
            ContentError: The content contradicts itself or the parent, or the parent is of another store.
            CorruptFileError: The dense part or the compiled transform is missing.
            VersionNotFoundError: The parent was collected.
        """
        deltas = {delta.name: delta for delta in content.tables}
        known = [table.name for table in parent.tables]
        if len(deltas) != len(content.tables) or not set(deltas) <= set(known):
            names = [delta.name for delta in content.tables]
            raise ContentError(f"the delta is of the tables {names}; expected each at most once, and of {known}")
        with self._new_folder() as folder:
            if self.read(parent.name).manifest.sha256 != parent.manifest.sha256:
                raise ContentError(f"{parent.path}: is another version than the one in {self.path}; open it there")
            before = parent.record.vocabularies or (parent.manifest.files[TENSORS_NAME],)
            here = [file for file in parent.record.vocabularies if shared_path(self.path, file.sha256).is_file()]
            vocabularies = write_vocabularies(self.path, content.transform, known=here, noted=content.noted_layers)
            if vocabularies[: len(before)] != before:
                raise ContentError(
                    f"{content.transform}: its vocabularies do not continue those of {parent.name}, so ids may stand "
                    "for other values; export the version whole"
                )
            record = replace(
                parent.record,
                tables=write_deltas(self.path, parent.tables, deltas),
                num_dense=None if content.dense is None else content.num_dense,
                vocabularies=vocabularies,
                parent=Parent(parent.name, parent.manifest.sha256),
                origin=Origin("delta", parent.name),
                source=content.source,
                metrics=content.metrics,
            )
            files = put_files(folder, dense=content.dense, transform=content.transform, golden=content.golden)
            return self._publish(folder, record, files, check)

    def commit(
        self, record: VersionRecord, folder: Path, *, check: _Check | None = None, last_look: LastLook | None = None
    ) -> Version:
        """Writes a new version of shared files that the store has already.

        Args:
            record: What its manifest is to say.
            folder: Where the files lie that belong to it alone, such as another version's folder.
            check: As in `write`.
            last_look: Called just before the version appears, when no version of a lower number can appear any more;
                if it raises, the store stays as it was.

        Raises:
            CorruptFileError: A file is missing.
            ContentError: The writer of a version of a lower number in a bucket does not come to an end.
        """
        with self._new_folder() as new:
            files = {name: copy_file(folder / name, new / name) for name in record.file_names}
            return self._publish(new, record, files, check, last_look)

    @contextmanager
    def _new_folder(self) -> Iterator[Path]:
        """Makes a folder in which a version may grow; it goes if that fails."""
        self.storage.prepare()
        with writing(self.path):
            folder = self.path / VERSIONS / f".tmp-{uuid.uuid4().hex}"
            folder.mkdir(parents=True)
            try:
                yield folder
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise

    def _publish(
        self,
        folder: Path,
        record: VersionRecord,
        files: Mapping[str, FileRecord],
        check: _Check | None,
        last_look: LastLook | None = None,
    ) -> Version:
        """Writes the manifest, gives the folder its name, and opens it."""

        def seal(sequence: int) -> Manifest:
            manifest = commit_manifest(folder, kind=_KIND, document=record.document(sequence=sequence), files=files)
            if check is not None:
                check(Version(self.path, folder.name, manifest, record, self.storage.ranges))
            return manifest

        name = self.storage.commit(folder, shared_files(record.shared_files), seal, last_look=last_look)
        try:
            return self.open_in_place(name)
        except (OSError, StorageError) as exc:
            raise StorageError(
                f"{self.location}: version {name} was written, but cannot be read back ({exc.__cause__ or exc}): see "
                f"whether `rankhouse version list {self.location}` has it"
            ) from exc

    def _latest(self, model: str | None) -> Version:
        for name in reversed(self.names()):
            with suppress(VersionNotFoundError):  # It is another model's, or was collected since the names were listed.
                return self.read(name, model=model)
        of_model = f" of the model {model!r}" if model is not None else ""
        raise VersionNotFoundError(f"{self.location}: has no version{of_model}; `rankhouse export` writes one")

    def _check_parent(self, version: Version) -> None:
        """Refuses a version that is not its parent's continuation, where the parent is still there."""
        if version.parent is None:
            return
        try:
            parent = self.read(version.parent.name)
        except FormatError:  # It was collected, or is refused where it is opened; this version is complete without it.
            return
        if fault := version.record.fault_over(parent.record, parent.manifest.sha256):
            raise ManifestError(
                f"{version.path / MANIFEST_NAME}: does not continue its parent {parent.name}: {fault} the one there; "
                "export the version again"
            )
