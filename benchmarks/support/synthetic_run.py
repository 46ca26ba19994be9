"""A run whose tables are large, made by the real code in seconds: few samples, and steps that touch chosen rows."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rankhouse.embedding_cache.format.feature import DenseSteps, Feature
from rankhouse.embedding_cache.format.transform import CompiledTransform
from rankhouse.embedding_cache.format.vocabulary import FIRST_KNOWN_ID, Vocabularies
from rankhouse.training.checkpoint.checkpoint import save_checkpoint
from rankhouse.training.config import load_recipe
from rankhouse.training.data.feature_spec import CategoricalFeature, ContinuousFeature, FeatureSpec
from rankhouse.training.data.prepared import SPEC_NAME, PreparedDataset, Split, SplitFile, TableInfo
from rankhouse.training.data.raw_sample import save_raw_sample
from rankhouse.training.data.rows import Batch
from rankhouse.training.models.ranking_model import RankingModel
from rankhouse.training.ranks import Ranks
from rankhouse.training.runs.folder import RunFolder
from rankhouse.training.train_step import TrainStep

TABLES = ("user", "item")
DIM = 16
_HELD_OUT_ROWS = 20_000
_RAW_ROWS = 64
_SAMPLES = 1024  # Of a step, whatever the number of rows that it touches.


def make_run(folder: Path, *, num_rows: int, touched: Sequence[float]) -> tuple[RunFolder, list[Path]]:
    """Makes a run of two tables, and a checkpoint for each step.

    Args:
        folder: Where the run and its dataset go.
        num_rows: Rows of both tables together.
        touched: For each step after the first checkpoint, the share of the rows that it touches.

    Returns:
        The run, and its checkpoints, oldest first.
    """
    dataset = _dataset(folder / "dataset", num_rows=num_rows // len(TABLES))
    overrides = [f"data.path={dataset.path}", "optimizer.rule=rowwise_adagrad"]
    run = RunFolder.create(folder / "run", load_recipe("dlrm", overrides=overrides))
    ranks, random = Ranks(0, 1), np.random.default_rng(1)
    model = RankingModel.build(run.config, dataset, ranks=ranks)
    step, state = TrainStep(model), model.state
    checkpoints = []
    for number, share in enumerate((0.0, *touched)):
        if number:
            batch = _batch(dataset, share, random)
            step(batch, batch.num_samples, False)
        checkpoints.append(
            save_checkpoint(run.checkpoints, state, ranks=ranks, step=number, document={}, fit=dataset.fit)
        )
    return run, checkpoints


def _dataset(folder: Path, *, num_rows: int) -> PreparedDataset:
    spec = FeatureSpec(
        "synthetic",
        "label",
        (ContinuousFeature("price"), *(CategoricalFeature(name, dtype="int64", dim=DIM) for name in TABLES)),
    )
    features = [
        Feature("price", "continuous", "float64", steps=DenseSteps()),
        *(Feature(name, "categorical", "int64", table=name, dim=DIM, combiner="mean") for name in TABLES),
    ]
    known = {name: np.arange(num_rows - FIRST_KNOWN_ID) for name in TABLES}
    random = np.random.default_rng(0)
    values = {name: random.integers(0, num_rows - FIRST_KNOWN_ID, _HELD_OUT_ROWS) for name in TABLES}
    prices = random.normal(size=_HELD_OUT_ROWS).astype(np.float32)
    columns = {
        "label": (random.random(_HELD_OUT_ROWS) < 0.5).astype(np.float32),
        "price": prices,
        **{name: ids + FIRST_KNOWN_ID for name, ids in values.items()},
    }
    splits = {}
    for split in ("train", "valid"):
        (folder / split).mkdir(parents=True)
        pq.write_table(pa.table(columns), folder / split / "part-0.parquet")
        splits[split] = Split((SplitFile(f"{split}/part-0.parquet", _HELD_OUT_ROWS),), 0.5, {})
        raw = [
            {"price": float(prices[row]), **{name: int(ids[row]) for name, ids in values.items()}}
            for row in range(_RAW_ROWS)
        ]
        save_raw_sample(folder / split, raw)
    CompiledTransform(features, Vocabularies.build(known)).save(folder)
    spec.save(folder / SPEC_NAME)
    PreparedDataset(folder, spec, splits, {name: TableInfo(num_rows, DIM) for name in TABLES}).commit()
    return PreparedDataset.open(folder)


def _batch(dataset: PreparedDataset, share: float, random: np.random.Generator) -> Batch:
    """A batch whose bags hold a random share of the rows of each table, each once."""
    ids, lengths = [], []
    for table in dataset.tables.values():
        chosen = random.choice(table.num_rows, int(share * table.num_rows), replace=False)
        ids.append(chosen.astype(np.int64))
        lengths.append(np.diff(np.linspace(0, len(chosen), _SAMPLES + 1).astype(np.int32)))
    return Batch(
        dense=random.normal(size=(_SAMPLES, 1)).astype(np.float32),
        ids=np.concatenate(ids),
        lengths=np.stack(lengths),
        labels=random.integers(0, 2, _SAMPLES).astype(np.float32),
    )
