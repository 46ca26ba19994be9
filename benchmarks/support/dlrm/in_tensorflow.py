"""One rank of a candidate in TensorFlow: `python -m benchmarks.support.dlrm.in_tensorflow CANDIDATE SHAPE SIZES`.

Candidates are rankhouse and keras, either also as NAME_bfloat16 (mixed bfloat16), and rankhouse_within, which sends ids
within the step that needs them. On several ranks keras is data parallel by plain Horovod.
"""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from benchmarks.support.dlrm.shapes import LEARNING_RATE, NUM_DENSE, SHAPES, TABLE_ROWS, Shape, draw_batches
from benchmarks.support.dlrm.timing import parse_options, time_steps
from benchmarks.support.keras_baseline import KerasBaseline
from rankhouse.training.config import Config, ModelConfig, OptimizerConfig, TrainingConfig
from rankhouse.training.data.feature_spec import AnyFeature, CategoricalFeature, ContinuousFeature, FeatureSpec
from rankhouse.training.data.prepared import PreparedDataset, TableInfo
from rankhouse.training.data.rows import Batch
from rankhouse.training.models.ranking_model import RankingModel
from rankhouse.training.ranks import Ranks
from rankhouse.training.train_step import TrainStep


def main() -> None:
    """Trains at every batch size."""
    options = parse_options()
    ranks = Ranks.init()
    num_threads = max(1, len(os.sched_getaffinity(0)) // ranks.size)
    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    tf.config.threading.set_inter_op_parallelism_threads(num_threads)
    shape = SHAPES[options.shape]
    candidate, _, variant = options.candidate.partition("_")
    train = _trainer(candidate, shape, ranks, variant=variant)
    for batch_size in options.batch_sizes:
        batches = [
            Batch(samples.dense, samples.ids.ravel(), np.ones(samples.ids.shape, np.int32), samples.labels)
            for samples in draw_batches(batch_size, rank=ranks.rank, num_ranks=ranks.size)
        ]

        def step(number: int, batches: list[Batch] = batches, batch_size: int = batch_size) -> object:
            return train(batches[number], batch_size, batches[(number + 1) % len(batches)])

        time_steps(step, shape=shape, batch_size=batch_size, speaks=ranks.rank == 0)


def _trainer(candidate: str, shape: Shape, ranks: Ranks, *, variant: str) -> Callable[[Batch, int, Batch], object]:
    """Returns what makes a step of this rank's part of a batch, of how many samples all parts are, and of the next."""
    config = Config(
        model=ModelConfig(bottom_mlp=shape.bottom, top_mlp=shape.top),
        optimizer=OptimizerConfig(learning_rate=LEARNING_RATE),
        training=TrainingConfig(precision="mixed_bfloat16" if variant == "bfloat16" else "float32"),
    )
    dataset = _tables(shape.dim)
    if candidate == "keras":
        baseline = KerasBaseline(config, dataset, num_ranks=ranks.size)
        return lambda batch, *_: baseline.step(batch)
    train = TrainStep(RankingModel.build(config, dataset, ranks=ranks), overlap=ranks.size > 1 and variant != "within")
    return lambda batch, num_samples, following: train(batch, num_samples, stop=False, next_batch=following)


def _tables(dim: int) -> PreparedDataset:
    """Returns a dataset without samples, for its tables."""
    names = [f"table_{number}" for number in range(len(TABLE_ROWS))]
    features: tuple[AnyFeature, ...] = (
        *(ContinuousFeature(f"dense_{number}") for number in range(NUM_DENSE)),
        *(CategoricalFeature(name, dtype="int64", dim=dim) for name in names),
    )
    spec = FeatureSpec("criteo", "label", features)
    tables = {name: TableInfo(rows, dim) for name, rows in zip(names, TABLE_ROWS, strict=True)}
    return PreparedDataset(Path(), spec, {}, tables)


if __name__ == "__main__":
    main()
