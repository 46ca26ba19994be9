"""A small model over all kinds of tables, and batches that lie unevenly on any number of ranks."""

from pathlib import Path

import numpy as np
import tensorflow as tf

from rankhouse.kernels.optimizer_settings import Adagrad, OptimizerSettings
from rankhouse.training.checkpoint.checkpoint import TrainingState
from rankhouse.training.checkpoint.files import Checkpoint
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.optimizers.clipping import clipping_scale, owned_squared_norm
from rankhouse.training.optimizers.optimizers import Optimizer
from rankhouse.training.plan import Plan, make_plan
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.specs import EmbeddingSpec, Input

# By default two tables are table-wise and one data-parallel, so the third of three ranks owns none.
SPECS = [EmbeddingSpec(40, 4, "user"), EmbeddingSpec(5, 4, "shop"), EmbeddingSpec(60, 2, "item")]
INPUTS = [
    Input("viewed", "item", "mean"),
    Input("shop", "shop"),
    Input("user", "user"),
    Input("friends", "user", "mean"),
    Input("shops", "shop", "mean"),
]
ROWS = {spec.name: spec.input_dim for spec in SPECS}
DIM = 18
SIGNATURE = (
    tf.TensorSpec([None], tf.int64),
    tf.TensorSpec([len(INPUTS), None], tf.int32),
    tf.TensorSpec([None], tf.float32),
    tf.TensorSpec([], tf.float32),
)


def build(
    ranks: Ranks,
    *,
    threshold: int = 10,
    seed: int = 1,
    settings: OptimizerSettings | None = None,
    plan: Plan | None = None,
) -> TrainingState:
    tables = [spec.table_spec() for spec in SPECS]
    plan = plan or make_plan(tables, num_ranks=ranks.size, data_parallel_threshold_rows=threshold)
    embedding = DistributedEmbedding(SPECS, inputs=INPUTS, ranks=ranks, plan=plan, seed=seed, name="embedding")
    kernel = tf.Variable(np.random.default_rng(seed).normal(size=(DIM, 1)).astype(np.float32))
    tables = [shard.variable for shard in embedding.shards]
    others = embedding.trainable_variables[len(tables) :]  # of a rank that owns no table
    optimizer = Optimizer(settings or Adagrad(), tables=tables, dense=[*others, kernel], learning_rate=0.1)
    embedding.before_lookup = optimizer.catch_up
    return TrainingState(embedding, {"kernel": kernel}, optimizer)


def train(
    state: TrainingState, ranks: Ranks, first_step: int, last_step: int, *, clip_norm: float = 1e9
) -> list[float]:
    """Trains steps [first_step, last_step); returns their losses."""
    (kernel,) = state.dense.values()

    @tf.function(input_signature=SIGNATURE, autograph=False)
    def step(ids: tf.Tensor, lengths: tf.Tensor, labels: tf.Tensor, global_batch: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = tf.squeeze(state.embedding.lookup(ids, lengths) @ kernel, axis=1)
            losses = tf.nn.sigmoid_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_sum(losses) / global_batch
        variables = state.optimizer.variables
        gradients = tape.gradient(loss, variables)
        news = [loss, owned_squared_norm(state.embedding, gradients, variables)]
        gradients = state.embedding.sum_gradients(gradients, variables)
        loss, owned = ranks.sum_tensors(news, name="news")
        scale = clipping_scale(state.embedding, gradients, variables, owned_squared_norm=owned, clip_norm=clip_norm)
        state.optimizer.apply_gradients(zip(gradients, variables, strict=True), gradient_scale=scale)
        return loss

    return [float(step(*batch(number, ranks))) for number in range(first_step, last_step)]


def batch(step: int, ranks: Ranks) -> tuple[tf.Tensor, ...]:
    """One rank's part of a step's batch: the parts are uneven and some are empty, but together always the same."""
    generator = np.random.default_rng([step])
    size = int(generator.integers(1, 13))
    lengths = generator.integers(0, 4, (len(INPUTS), size))
    bags = [
        [generator.integers(0, ROWS[item.table], count) for count in row]
        for item, row in zip(INPUTS, lengths, strict=True)
    ]
    labels = generator.integers(0, 2, size).astype(np.float32)
    cuts = np.random.default_rng([step, ranks.size]).integers(0, size + 1, ranks.size - 1)
    bounds = [0, *sorted(cuts.tolist()), size]
    part = slice(bounds[ranks.rank], bounds[ranks.rank + 1])
    ids = np.concatenate([np.empty(0, np.int64), *(bag for row in bags for bag in row[part])])
    return (
        tf.constant(ids, tf.int64),
        tf.constant(lengths[:, part], tf.int32),
        tf.constant(labels[part]),
        tf.constant(float(size)),
    )


def arrays(path: Path) -> dict[str, np.ndarray]:
    """Returns everything that a checkpoint holds."""
    checkpoint = Checkpoint.open(path)
    found = {}
    for name, table in checkpoint.tables.items():
        for array in table.arrays:
            found[f"{name}/{array}"] = np.concatenate([block.rows for block in checkpoint.rows(name, array)])
    for array in next(iter(checkpoint.tables.values())).arrays:
        found |= {f"{name}/{array}": value for name, value in checkpoint.dense(array).items()}
    return found
