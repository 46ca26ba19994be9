"""Export: a checkpoint becomes a version that serving can take, whole and checked.

    run folder      -> dense.onnx
    checkpoint      -> rows: all of them, or those that changed since a version that the store has
    prepared data   -> the compiled transform, and rows both raw and transformed
    rows, trainer   -> golden requests, statistics of held-out rows, and what a row type costs in AUC

Before the version appears, its own parts (compiled transform, engine, ONNX Runtime) must reproduce the scores that the
trainer's parts (NVTabular, lookup op, TensorFlow) give to the golden requests. The trainer scores these with the rows
that serving will read: so what a row type costs is no part of that difference, but of the one in AUC, which has a limit
of its own.
"""

import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.engine import Engine
from rankhouse.embedding_cache.format.content import DeltaContent, VersionContent
from rankhouse.embedding_cache.format.excerpt import excerpt
from rankhouse.embedding_cache.format.golden import GoldenRequest
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.records import FeatureContent
from rankhouse.embedding_cache.format.statistics import STATISTICS
from rankhouse.embedding_cache.format.transform import CompiledTransform, TransformedBatch
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.format.version_record import EVENT_TIME, Source
from rankhouse.training.continuation import check_same_fit
from rankhouse.training.errors import ExportError
from rankhouse.training.export.delta_parent import check_parent
from rankhouse.training.export.onnx_export import OnnxScorer, write_onnx
from rankhouse.training.export.served_rows import ServedRows
from rankhouse.training.export.served_transform import ServedTransform, served_transform
from rankhouse.training.models.trained_model import TrainedModel, load_trained_model
from rankhouse.training.trainer_scores import auc_loss, golden_requests, training_statistics

# The largest difference between the trainer's score and the version's that is put down to rounding.
TOLERANCE = 1e-5

# How much AUC a row type may cost: a tenth of a point, which is more than a good change of a model brings.
MAX_AUC_LOSS = 0.001

OnBytes = Callable[[int, int], None]


def _unheard(written: int, total: int) -> None:
    pass


def export_version(
    run: Path | str,
    *,
    store: Path | str,
    model: str,
    checkpoint: Path | str | None = None,
    row_type: str = "float32",
    max_auc_loss: float = MAX_AUC_LOSS,
    on_bytes: OnBytes = _unheard,
) -> Version:
    """Writes a run's model as a new version, whole.

    Args:
        run: The run's folder.
        store: Where the version store lies, made where it is missing.
        model: The model's name in the store and in the gateway's paths.
        checkpoint: A checkpoint's folder; None is the run's newest.
        row_type: What rows are stored as: "float32", "float16", "bfloat16" or "int8".
        max_auc_loss: How much lower the held-out AUC may be with such rows than with float32.
        on_bytes: Called while rows are written, with the bytes so far and in all.

    Raises:
        ContentError: There is no such row type, or it cannot hold a value.
        ExportError: The version would not score as the trainer does, or the row type costs too much; the store stays as
            it was.
        TrainingError: The run, its checkpoint or its dataset is missing or damaged.
        FormatError: The store cannot take the version.
    """
    trained = load_trained_model(run, checkpoint=checkpoint)
    dataset = trained.dataset
    check_same_fit(trained.checkpoint, dataset)
    metrics, row_types = _metrics(trained), dict.fromkeys(dataset.tables, row_type)
    rows = ServedRows(trained.checkpoint, dataset, row_types, metrics=metrics, on_bytes=on_bytes, learnt=trained.learnt)
    metrics |= _auc_metrics(trained, rows, max_auc_loss)
    metrics[STATISTICS] = training_statistics(trained, as_served=rows.as_served).document()
    with _parts(trained, rows) as parts, served_transform(trained) as transform:
        content = VersionContent(
            model=model,
            dense=parts.dense,
            transform=transform.path,
            num_dense=parts.num_dense,
            tables=[rows.whole(table) for table in dataset.tables],
            features=[FeatureContent(each.name, each.table, each.combiner) for each in dataset.spec.categorical],
            golden=parts.golden,
            metrics=metrics,
            source=_source(trained),
        )
        return VersionStore(store).write(content, check=functools.partial(_check, transform))


def export_delta(
    run: Path | str,
    *,
    store: Path | str,
    model: str,
    parent: str = "latest",
    checkpoint: Path | str | None = None,
    max_auc_loss: float = MAX_AUC_LOSS,
    on_bytes: OnBytes = _unheard,
) -> Version:
    """Writes a run's model as a new version that shares with a parent what did not change, in the parent's row types.

    The cost is that of the changed rows, and of reading 4 bytes a row to find them. So of the files with the
    checkpoint's rows, and of the parent's, presence and size are checked and not every byte; of the rows that are
    written, that they are finite.

    Args:
        run: The run's folder.
        store: Where the version store lies.
        model: The model's name; the parent must be a version of it.
        parent: A version's name, or "latest" for the newest of the model.
        checkpoint: As in `export_version`.
        max_auc_loss: As in `export_version`.
        on_bytes: As in `export_version`.

    Raises:
        ContentError, ExportError, TrainingError, FormatError: As in `export_version`; also if the checkpoint did not go
            on from what the parent holds, ids stand for other values, or a table learns its keys.
    """
    trained = load_trained_model(run, checkpoint=checkpoint)
    for table in trained.learnt:
        raise ExportError(
            f"table {table!r} of {trained.run.path} learns its keys, so its rows may stand for other keys than in the "
            "parent, in ways that no dataset notes; export in full, without --delta"
        )
    versions = VersionStore(store)
    over = versions.open_in_place(parent, model=model)
    since = check_parent(trained, over)
    check_same_fit(trained.checkpoint, trained.dataset)
    metrics, row_types = _metrics(trained), {table.name: table.dtype for table in over.tables}
    rows = ServedRows(trained.checkpoint, trained.dataset, row_types, metrics=metrics, on_bytes=on_bytes)
    metrics |= _auc_metrics(trained, rows, max_auc_loss)
    metrics[STATISTICS] = training_statistics(trained, as_served=rows.as_served).document()
    num_layers = len(over.record.vocabularies) or 1
    with _parts(trained, rows) as parts, served_transform(trained) as transform:
        content = DeltaContent(
            dense=parts.dense,
            transform=transform.path,
            num_dense=parts.num_dense,
            tables=[
                rows.delta(table.name, since=since, num_known=table.num_rows, num_layers=num_layers)
                for table in over.tables
            ],
            golden=parts.golden,
            metrics=metrics,
            source=_source(trained),
            # The base alone is large, and nothing of it but its number of rows is needed here; the others are verified.
            noted_layers=transform.layer_records[:1],
        )
        return versions.write_delta(content, over, check=functools.partial(_check, transform))


def _check(transform: ServedTransform, version: Version) -> None:
    """Checks a version before it appears, against its dataset and by its own golden requests."""
    for number, (found, noted) in enumerate(zip(version.record.vocabularies, transform.layer_records, strict=True)):
        if found != noted:
            raise ExportError(
                f"{transform.layers[number]} was altered since the dataset was made: expected SHA-256 {noted.sha256}, "
                f"found {found.sha256}; restore it from another copy, or preprocess again"
            )
    check_golden(version)


def check_golden(version: Version) -> None:
    """Scores a version's golden requests with its own parts, as serving will.

    Raises:
        ExportError: The compiled transform is of other tables or features, or a score differs from the trainer's; the
            message names the row.
        FormatError: A part is damaged.
    """
    transform = version.transform()
    _check_fit(version, transform)
    requests = version.golden()
    batches = [transform.apply(RawBatch.from_rows(transform.features, golden.rows())) for golden in requests]
    with excerpt(version, _ids_by_table(version, batches)) as store:
        opened = Engine().open(store, version.name, verify=False)
        embeddings = [opened.lookup(batch.ids, batch.lengths) for batch in batches]
    dense = OnnxScorer(version.dense_path)
    for number, golden in enumerate(requests):
        found = dense.score(batches[number].dense, embeddings[number])
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


def _ids_by_table(version: Version, batches: Sequence[TransformedBatch]) -> dict[str, npt.NDArray[np.int64]]:
    ids: dict[str, list[npt.NDArray[np.int64]]] = {table.name: [np.empty(0, np.int64)] for table in version.tables}
    for batch in batches:
        ends = np.cumsum(batch.lengths.sum(axis=1))
        for feature, part in zip(version.features, np.split(batch.ids, ends[:-1]), strict=True):
            ids[feature.table].append(part)
    return {table: np.concatenate(parts) for table, parts in ids.items()}


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


@dataclass(frozen=True)
class _Parts:
    """What full and delta versions have in common."""

    dense: Path
    num_dense: int
    golden: list[GoldenRequest]


@contextmanager
def _parts(trained: TrainedModel, rows: ServedRows) -> Iterator[_Parts]:
    """Makes what is not rows."""
    golden = golden_requests(trained, as_served=rows.as_served)
    with tempfile.TemporaryDirectory(prefix="rankhouse-export-") as folder:
        dense = Path(folder) / "dense.onnx"
        num_dense = len(trained.dataset.spec.continuous)
        embeddings_dim = sum(feature.dim for feature in trained.dataset.spec.categorical)
        portable = functools.partial(trained.dense.__call__, portable=True)
        write_onnx(portable, dense, num_dense=num_dense, embeddings_dim=embeddings_dim)
        yield _Parts(dense, num_dense, golden)


def _auc_metrics(trained: TrainedModel, rows: ServedRows, max_auc_loss: float) -> dict[str, Any]:
    """Measures what the row types cost in AUC, where they cost anything and that matters."""
    if rows.row_types == ("float32",) or max_auc_loss >= 1:
        return {}
    found = auc_loss(trained, rows.as_served)
    # Written so that a NaN is refused.
    if not found.loss <= max_auc_loss:
        raise ExportError(
            f"{', '.join(rows.row_types)} costs {found.loss:.5f} of AUC on the first {found.num_rows} held-out rows "
            f"({found.exact:.5f} in float32, {found.served:.5f} so), more than {max_auc_loss:g}; choose another "
            "--row-type, or allow more with --max-auc-loss"
        )
    return {"auc_loss": found.loss, "auc_loss_rows": found.num_rows}


def _metrics(trained: TrainedModel) -> dict[str, Any]:
    metrics: dict[str, Any] = {"run": trained.run.name, "step": trained.checkpoint.step}
    if trained.checkpoint.event_time is not None:
        metrics[EVENT_TIME] = trained.checkpoint.event_time
    result = trained.run.result
    # An older checkpoint, or one of a run that goes on, has no result of its own.
    if result is not None and result.num_steps == trained.checkpoint.step:
        metrics |= {"auc": result.auc, "valid_loss": result.valid_loss}
    return metrics


def _source(trained: TrainedModel) -> Source:
    return Source(trained.run.name, trained.checkpoint.id, trained.checkpoint.iterations)
