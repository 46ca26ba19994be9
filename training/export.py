"""Export: a finished run becomes a version that serving can take, whole and checked.

    run folder      -> dense.onnx
    checkpoint      -> segments, streamed
    prepared data   -> the compiled transform, and rows both raw and transformed
    rows, trainer   -> golden requests

Before the version appears, its own parts (compiled transform, engine, ONNX Runtime) must reproduce the scores that the
trainer's parts (NVTabular, lookup op, TensorFlow) give to the golden requests.
"""

import functools
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from rankhouse.embedding_cache.engine import EmbeddingEngine
from rankhouse.embedding_cache.format.content import VersionContent
from rankhouse.embedding_cache.format.golden import GoldenRequest
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.records import FeatureContent, TableContent
from rankhouse.embedding_cache.format.transform import CompiledTransform
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.kernels import tf_ops
from rankhouse.training.checkpoint_files import Checkpoint
from rankhouse.training.data.loader import BatchLoader
from rankhouse.training.data.raw_sample import load_raw_sample
from rankhouse.training.data.rows import Batch
from rankhouse.training.errors import ExportError
from rankhouse.training.onnx_export import OnnxScorer, write_onnx
from rankhouse.training.trained_model import TrainedModel, load_trained_model

# The largest difference between the trainer's score and the version's that is put down to rounding.
TOLERANCE = 1e-5

NUM_GOLDEN_ROWS = 64
_BLOCK_BYTES = 16 << 20
_CANDIDATES_PER_REQUEST = 16


def export_version(
    run: Path | str,
    *,
    store: Path | str,
    model: str,
    checkpoint: Path | str | None = None,
    on_bytes: Callable[[int, int], None] = lambda written, total: None,
) -> Version:
    """Writes a run's model as a new version.

    Args:
        run: The run's folder.
        store: The version store's folder, made where it is missing.
        model: The model's name in the store and in the gateway's paths.
        checkpoint: A checkpoint's folder; None is the run's newest.
        on_bytes: Called while rows are written, with the bytes so far and in all.

    Raises:
        ExportError: The version would not score as the trainer does; the store stays as it was.
        TrainingError: The run, its checkpoint or its dataset is missing or damaged.
        FormatError: The store cannot take the version.
    """
    trained = load_trained_model(run, checkpoint=checkpoint)
    features = trained.dataset.spec.categorical
    golden = golden_requests(trained)
    total = sum(4 * table.num_rows * table.dim for table in trained.dataset.tables.values())
    progress = _Progress(total, on_bytes)
    with tempfile.TemporaryDirectory(prefix="rankhouse-export-") as folder:
        dense = Path(folder) / "dense.onnx"
        num_dense = len(trained.dataset.spec.continuous)
        embeddings_dim = sum(feature.dim for feature in features)
        portable = functools.partial(trained.dense.__call__, portable=True)
        write_onnx(portable, dense, num_dense=num_dense, embeddings_dim=embeddings_dim)
        content = VersionContent(
            model=model,
            dense=dense,
            transform=trained.dataset.path,
            num_dense=num_dense,
            tables=[
                TableContent(name, table.num_rows, table.dim, progress.watch(_blocks(trained.checkpoint, name)))
                for name, table in trained.dataset.tables.items()
            ],
            features=[FeatureContent(feature.name, feature.table, feature.combiner) for feature in features],
            golden=golden,
            metrics=_metrics(trained),
        )
        return VersionStore(store).write(content, check=check_golden)


def golden_requests(trained: TrainedModel, *, num_rows: int = NUM_GOLDEN_ROWS) -> list[GoldenRequest]:
    """Makes requests of held-out raw rows, with the scores that the trainer gives to the same rows transformed.

    Raises:
        DatasetError: The dataset has no held-out split, or no raw rows of it.
    """
    split = trained.run.config.data.valid_split
    rows = load_raw_sample(trained.dataset.path / split)[:num_rows]
    loader = BatchLoader(trained.dataset, split, batch_size=max(len(rows), 1), shuffle=False, num_lanes=1)
    scores = _trainer_scores(trained, next(loader.batches()))
    return [
        GoldenRequest(
            {"context": {}, "candidates": rows[begin : begin + _CANDIDATES_PER_REQUEST]},
            tuple(scores[begin : begin + _CANDIDATES_PER_REQUEST].tolist()),
        )
        for begin in range(0, len(rows), _CANDIDATES_PER_REQUEST)
    ]


def check_golden(version: Version) -> None:
    """Scores a version's golden requests with its own parts, as serving will.

    Raises:
        ExportError: The compiled transform is of other tables or features, or a score differs from the trainer's; the
            message names the row.
        FormatError: A part is damaged.
    """
    transform = version.transform()
    _check_fit(version, transform)
    engine = EmbeddingEngine(version)
    dense = OnnxScorer(version.dense_path)
    for number, golden in enumerate(version.golden()):
        batch = transform.apply(RawBatch.from_rows(transform.features, golden.rows()))
        found = dense.score(batch.dense, engine.lookup(batch.ids, batch.lengths))
        errors = np.abs(found - np.array(golden.scores))
        # Written so that a NaN on either side is refused.
        if not (errors <= TOLERANCE).all():
            worst = int(np.argmax(np.where(np.isnan(errors), np.inf, errors)))
            raise ExportError(
                f"candidate {worst} of golden request {number} scores {found[worst]:.7f}, the trainer gives it "
                f"{golden.scores[worst]:.7f}; expected at most {TOLERANCE:g} between them. Does the dataset "
                "still hold what the run was trained on? The row: "
                f"{golden.rows()[worst]}"
            )


def _check_fit(version: Version, transform: CompiledTransform) -> None:
    """Compares what the transform's ids point into with the tables that are there, to the last id."""
    parts = {
        "tables": (dict(transform.vocabularies.num_rows), {table.name: table.num_rows for table in version.tables}),
        "features": (
            [(feature.name, feature.table, feature.dim, feature.combiner) for feature in transform.categorical],
            [(feature.name, feature.table, feature.dim, feature.combiner) for feature in version.features],
        ),
        "counts of continuous features": (transform.num_dense, version.num_dense),
    }
    for what, (found, expected) in parts.items():
        if found != expected:
            raise ExportError(
                f"the compiled transform's {what} are {found}, the model's {expected}. Does the dataset still hold "
                "what the run was trained on?"
            )


def _trainer_scores(trained: TrainedModel, batch: Batch) -> npt.NDArray[np.float32]:
    """Scores transformed rows with the trainer's op and TensorFlow; only the rows in use are read of the tables."""
    features = trained.dataset.spec.categorical
    names = list(trained.dataset.tables)
    feature_tables = [names.index(feature.table) for feature in features]
    table_of_id = np.repeat(feature_tables, batch.lengths.sum(axis=1))
    ids, tables = batch.ids.copy(), []
    for number, name in enumerate(names):
        used, ids[table_of_id == number] = np.unique(batch.ids[table_of_id == number], return_inverse=True)
        # Without verifying files: exporting the rows does so before it is done.
        tables.append(tf.Variable(trained.checkpoint.gather(name, used)))
    offsets = np.concatenate([[0], np.cumsum(batch.lengths.ravel(), dtype=np.int64)])
    embeddings = tf_ops.pooled_lookup(
        tables,
        tf.constant(ids),
        tf.constant(offsets),
        feature_tables=feature_tables,
        combiners=[feature.combiner for feature in features],
    )
    scores: npt.NDArray[np.float32] = tf.sigmoid(trained.dense((tf.constant(batch.dense), embeddings))).numpy()
    return scores


def _blocks(checkpoint: Checkpoint, table: str) -> Iterator[npt.NDArray[np.float32]]:
    """Yields a table's rows in blocks of some MiB, so that progress shows while a large file is copied.

    Raises:
        ExportError: A row is not finite, which no golden request might notice.
    """
    num_rows = max(1, _BLOCK_BYTES // (4 * checkpoint.tables[table].dim))
    for part in checkpoint.rows(table):
        for begin in range(0, len(part.rows), num_rows):
            block = part.rows[begin : begin + num_rows]
            finite = np.isfinite(block).all(axis=1)
            if not finite.all():
                row = part.start + begin + int(np.argmin(finite))
                raise ExportError(
                    f"row {row} of table {table!r} holds what is no finite number; export an older checkpoint, and "
                    "train with a lower learning rate"
                )
            yield block


class _Progress:
    """Counts the bytes of blocks that pass by, in several threads."""

    def __init__(self, total: int, on_bytes: Callable[[int, int], None]) -> None:
        self._written, self._total, self._on_bytes = 0, total, on_bytes
        self._lock = threading.Lock()

    def watch(self, blocks: Iterable[npt.NDArray[np.float32]]) -> Iterator[npt.NDArray[np.float32]]:
        for block in blocks:
            yield block
            with self._lock:
                self._written += block.nbytes
                self._on_bytes(self._written, self._total)


def _metrics(trained: TrainedModel) -> dict[str, Any]:
    metrics: dict[str, Any] = {"run": trained.run.name, "step": trained.checkpoint.step}
    result = trained.run.result
    # An older checkpoint, or one of a run that goes on, has no result of its own.
    if result is not None and result.num_steps == trained.checkpoint.step:
        metrics |= {"auc": result.auc, "valid_loss": result.valid_loss}
    return metrics
