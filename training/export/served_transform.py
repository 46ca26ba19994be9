"""The compiled transform of a version: its dataset's, with the keys that tables have learnt in training.

These are one more layer over those of the dataset, which the version shares.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rankhouse.embedding_cache.format.files import FileRecord, file_record
from rankhouse.embedding_cache.format.transform import CompiledTransform, layer_files
from rankhouse.embedding_cache.format.vocabulary import TableChange, TextValues, Vocabularies
from rankhouse.training.models.trained_model import TrainedModel


@dataclass(frozen=True)
class ServedTransform:
    """A compiled transform on the disk.

    Attributes:
        path: Its folder.
        layers: The files of its vocabularies, base first.
        layer_records: What they must be.
    """

    path: Path
    layers: tuple[Path, ...]
    layer_records: tuple[FileRecord, ...]


@contextmanager
def served_transform(trained: TrainedModel) -> Iterator[ServedTransform]:
    """Yields the compiled transform with which a model is served.

    Raises:
        DatasetError, FormatError: That of the dataset is damaged.
    """
    dataset = trained.dataset
    if not trained.learnt:
        yield ServedTransform(dataset.path, dataset.layers, dataset.layer_records)
        return
    fitted = dataset.transform()
    unchanged = {table: _nothing(fitted.vocabularies, table) for table in dataset.tables}
    learnt = {table: keys.change for table, keys in trained.learnt.items()}
    with tempfile.TemporaryDirectory(prefix="rankhouse-export-") as folder:
        extended = fitted.vocabularies.extended(unchanged | learnt)
        CompiledTransform(fitted.features, extended).save(folder, shared=dataset.layers)
        layers = layer_files(folder)
        yield ServedTransform(Path(folder), layers, (*dataset.layer_records, file_record(layers[-1])))


def _nothing(vocabularies: Vocabularies, table: str) -> TableChange:
    none = np.empty(0, np.int64)
    return TableChange(TextValues.of([]) if table in vocabularies.text_tables else none, none, none)
