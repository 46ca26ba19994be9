"""A prepared dataset: the folder that preprocessing writes and everything after it reads."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format import transform
from rankhouse.embedding_cache.format.errors import CorruptFileError, FormatError, ManifestError
from rankhouse.embedding_cache.format.files import (
    FORMAT_VERSION,
    FileRecord,
    check_content,
    check_format,
    file_record,
    read_json,
    write_durably,
)
from rankhouse.embedding_cache.format.tensors import read_tensors
from rankhouse.training.data.feature_spec import AnyFeature, FeatureSpec
from rankhouse.training.data.fit import Fit
from rankhouse.training.errors import DatasetError

DATASET_NAME = "dataset.json"
SPEC_NAME = "feature_spec.yaml"
WORKFLOW_NAME = "workflow"


@dataclass(frozen=True)
class TableInfo:
    """An embedding table that the dataset's ids point into.

    Attributes:
        num_rows: Its rows: 3 reserved ones and one per known value.
        dim: Its width.
    """

    num_rows: int
    dim: int


@dataclass(frozen=True)
class SplitFile:
    """A Parquet file of a split.

    Attributes:
        name: Its path in the dataset's folder.
        num_rows: Its rows.
    """

    name: str
    num_rows: int


@dataclass(frozen=True)
class Split:
    """Rows that were transformed together, as "train" or a held-out day.

    Attributes:
        files: Its files; their order is the order of the rows.
        positive_rate: The share of rows with label 1.
        missing_rates: For each feature the share of rows without a value.
        newest_event: The latest timestamp of its rows, in unix seconds; None if the feature spec names none.
    """

    files: tuple[SplitFile, ...]
    positive_rate: float
    missing_rates: Mapping[str, float]
    newest_event: float | None = None

    @property
    def num_rows(self) -> int:
        """The number of rows of all files."""
        return sum(file.num_rows for file in self.files)


@dataclass(frozen=True)
class PreparedDataset:
    """A prepared dataset, opened. Immutable; any thread may read it.

    Attributes:
        path: The folder.
        spec: The feature spec as used.
        splits: Its splits by name; "train" is the one that the workflow was fitted on.
        tables: The embedding tables by name, in the order of the spec.
        noted_layers: What is noted of the files of `layers`, base first; empty in datasets of older releases.
    """

    path: Path
    spec: FeatureSpec
    splits: Mapping[str, Split]
    tables: Mapping[str, TableInfo]
    noted_layers: tuple[FileRecord, ...] = ()

    @property
    def features(self) -> tuple[AnyFeature, ...]:
        """All features in the order of the spec; `spec.continuous` and `spec.categorical` are its two parts."""
        return self.spec.features

    @property
    def layers(self) -> tuple[Path, ...]:
        """The files of the vocabularies, the oldest first: that of the fit, and one for each day since.

        Raises:
            DatasetError: The compiled transform does not say.
        """
        try:
            return transform.layer_files(self.path)
        except FormatError as exc:
            raise DatasetError(f"{exc}; preprocess again") from exc

    @property
    def is_extension(self) -> bool:
        """Whether it extends another one: then its vocabularies have grown since the fit, which is the other's.

        Raises:
            DatasetError: The compiled transform does not say.
        """
        return len(self.layers) > 1

    @cached_property
    def layer_records(self) -> tuple[FileRecord, ...]:
        """Size and checksum of the files of `layers`, base first. What was not noted is read for that, once.

        Raises:
            CorruptFileError: A file cannot be read.
            DatasetError: The compiled transform does not say which they are.
        """
        return self.noted_layers + tuple(file_record(layer) for layer in self.layers[len(self.noted_layers) :])

    @property
    def fit(self) -> Fit:
        """What the model's inputs stand for.

        Raises:
            DatasetError: The compiled transform is damaged.
        """
        try:
            return Fit(transform.read_features(self.path), tuple(record.sha256 for record in self.layer_records))
        except FormatError as exc:
            raise DatasetError(f"{exc}; preprocess again") from exc

    def verify_layers(self) -> None:
        """Reads the files of `layers` and compares them with what is noted of them.

        Raises:
            CorruptFileError: One is missing or altered.
        """
        for layer, record in zip(self.layers, self.noted_layers, strict=False):
            check_content(layer, record)

    def freed_since(self, num_layers: int) -> dict[str, npt.NDArray[np.int64]]:
        """The ids that lost a value in the layers after the first `num_layers`, by table: int64 [n], sorted.

        Raises:
            FormatError: A layer is damaged.
        """
        freed: dict[str, npt.NDArray[np.int64]] = {}
        for layer in self.layers[num_layers:]:
            for name, ids in read_tensors(layer).items():
                if name.startswith("freed."):
                    table = name.removeprefix("freed.")
                    freed[table] = np.union1d(freed.get(table, ids), ids)
        return freed

    def split(self, name: str) -> Split:
        """Returns a split.

        Raises:
            DatasetError: There is none of this name.
        """
        if name not in self.splits:
            raise DatasetError(f"{self.path} has no split {name!r}; it has {', '.join(self.splits)}")
        return self.splits[name]

    def split_folder(self, name: str) -> Path:
        """Returns the folder of a split's files.

        Raises:
            DatasetError: There is no split of this name.
        """
        return (self.path / self.split(name).files[0].name).parent

    def transform(self) -> transform.CompiledTransform:
        """Opens the compiled transform.

        Raises:
            FormatError: It is damaged.
        """
        return transform.CompiledTransform.load(self.path)

    @classmethod
    def open(cls, directory: Path | str) -> "PreparedDataset":
        """Opens a folder and checks that its files are there.

        Raises:
            DatasetError: The folder is no prepared dataset, was not finished, or lacks a file.
            FeatureSpecError: Its feature spec is wrong.
        """
        directory = Path(directory)
        path = directory / DATASET_NAME
        if not path.is_file():
            state = "was not finished" if directory.is_dir() else "is no folder"
            raise DatasetError(
                f"{directory} is no prepared dataset: it {state} ({DATASET_NAME} is missing); "
                "make one with `rankhouse data preprocess`"
            )
        try:
            document = read_json(path, path.read_bytes())
            check_format(path, document, "dataset")
            splits = {name: _split_from(entry) for name, entry in document["splits"].items()}
            tables = {name: TableInfo(**entry) for name, entry in document["tables"].items()}
            layers = tuple(FileRecord(**entry) for entry in document.get("layers", ()))
        except (ManifestError, KeyError, TypeError) as exc:
            raise DatasetError(f"{path}: is no description of a dataset ({exc}); preprocess again") from exc
        dataset = cls(directory, FeatureSpec.load(directory / SPEC_NAME), splits, tables, layers)
        for file in dataset._files():
            if not file.is_file():
                raise DatasetError(f"{file} is missing; preprocess again or restore it")
        dataset._check_layers()
        return dataset

    def _check_layers(self) -> None:
        """Compares the sizes of the vocabularies' files with what is noted."""
        layers = self.layers
        if self.noted_layers and len(self.noted_layers) != len(layers):
            raise DatasetError(
                f"{self.path / DATASET_NAME} notes {len(self.noted_layers)} layers of vocabularies, "
                f"{transform.JSON_NAME} {len(layers)}; restore the one that was altered, or preprocess again"
            )
        try:
            for layer, record in zip(layers, self.noted_layers, strict=False):
                check_content(layer, record, verify=False)
        except CorruptFileError as exc:
            raise DatasetError(str(exc)) from exc

    def _files(self) -> Iterator[Path]:
        yield self.path / transform.JSON_NAME
        yield from self.layers
        for split in self.splits.values():
            yield from (self.path / file.name for file in split.files)

    def commit(self) -> None:
        """Writes `dataset.json`, after which the dataset exists; everything else must be written before."""
        document = {
            "format": "rankhouse.dataset",
            "format_version": FORMAT_VERSION,
            "splits": {name: _split_document(split) for name, split in self.splits.items()},
            "tables": {name: asdict(table) for name, table in self.tables.items()},
            "layers": [asdict(record) for record in self.layer_records],
        }
        write_durably(self.path / DATASET_NAME, json.dumps(document, indent=1, allow_nan=False).encode() + b"\n")


def _split_document(split: Split) -> dict[str, Any]:
    """What is not known is left out, so that releases that do not know of it read the rest."""
    return {key: value for key, value in asdict(split).items() if value is not None}


def _split_from(entry: Mapping[str, Any]) -> Split:
    return Split(**{**entry, "files": tuple(SplitFile(**file) for file in entry["files"])})
