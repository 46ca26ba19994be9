"""A layer whose tables, in every mode, hold rows of 16 bits, and steps in which no order of sums can make a difference.

In each step a row is looked up once, over all ranks: so every mode must give the same bits on any number of ranks.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from rankhouse.kernels.optimizer_settings import Adagrad
from rankhouse.training.checkpoint.checkpoint import TrainingState, load_checkpoint, save_checkpoint
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.exchange.wire_format import WireFormat
from rankhouse.training.optimizers.optimizers import Optimizer
from rankhouse.training.plan import Plan, TableSpec, place
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.owned_variables import broadcast_variables
from rankhouse.training.tables.specs import EmbeddingSpec, Input, VocabularySettings

# name: (rows, width, dtype, mode, options of `place`).
TABLES: dict[str, tuple[int, int, Any, Any, dict[str, Any]]] = {
    "copied": (30, 3, "bfloat16", "data_parallel", {}),
    "whole": (40, 4, "float16", "table_wise", {}),
    "columns": (50, 5, "bfloat16", "column_wise", {"num_slices": 3}),
    "rows": (60, 17, "bfloat16", "row_wise", {}),
    "hosted": (70, 4, "bfloat16", "row_wise", {}),
    "keyed": (120, 4, "bfloat16", "row_wise", {}),
    "full": (40, 4, "float32", "table_wise", {}),
}
CACHED, BATCH = 20, 6
SAVED_STEP, LAST_STEP = 4, 6
# How many of the samples of a step each rank has.
SHARES = {1: [6], 2: [4, 2], 3: [2, 0, 4]}


def build(
    ranks: Ranks,
    *,
    dtypes: dict[str, Any] | None = None,
    seed: int = 3,
    wire: WireFormat | None = None,
) -> TrainingState:
    """Makes the layer; `dtypes` go before those of the tables."""
    held = {name: (dtypes or {}).get(name, dtype) for name, (_, _, dtype, _, _) in TABLES.items()}
    specs = [EmbeddingSpec(rows, dim, name, dtype=held[name]) for name, (rows, dim, _, _, _) in TABLES.items()]
    specs = [replace(spec, vocabulary=VocabularySettings()) if spec.name == "keyed" else spec for spec in specs]
    tables = tuple(TableSpec(spec.name, spec.input_dim, spec.output_dim, dtype=spec.dtype) for spec in specs)
    placements = []
    for table in tables:
        *_, mode, options = TABLES[table.name]
        placement = place(table, mode, num_ranks=ranks.size, **options)
        hosted = table.name == "hosted"
        placements.append(replace(placement, device="host", cache_rows=CACHED) if hosted else placement)
    plan = Plan.from_document(Plan(tables, tuple(placements), ranks.size).document())
    inputs = [Input(spec.name, spec.name) for spec in specs]
    layer = DistributedEmbedding(specs, inputs=inputs, ranks=ranks, plan=plan, seed=seed, wire=wire, name="narrow")
    variables = [shard.variable for shard in layer.shards]
    others = [variable for variable in layer.trainable_variables if all(variable is not other for other in variables)]
    optimizer = Optimizer(Adagrad(), tables=variables, dense=others, learning_rate=0.1)
    return TrainingState(layer, {}, optimizer)


def batch(step: int, ranks: Ranks) -> tuple[tf.Tensor, tf.Tensor]:
    """One rank's part of a step's batch: ids and lengths."""
    generator = np.random.default_rng([step])
    begin = sum(SHARES[ranks.size][: ranks.rank])
    part = slice(begin, begin + SHARES[ranks.size][ranks.rank])
    lengths = generator.integers(0, 4, [len(TABLES), BATCH])
    ids = []
    for (name, (rows, *_)), row in zip(TABLES.items(), lengths, strict=True):
        ids_of_all = generator.permutation(40 if name == "keyed" else rows)
        bags = np.split(ids_of_all[: row.sum()], np.cumsum(row)[:-1])
        ids += [np.empty(0, np.int64), *bags[part]]
    return tf.constant(np.concatenate(ids), tf.int64), tf.constant(lengths[:, part])


def make_step(state: TrainingState, *, as_function: bool = False) -> Any:
    """Returns a step of training: what it looked up."""
    variables = state.optimizer.variables

    def step(ids: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows = state.embedding.lookup(ids, lengths, training=True)
            loss = tf.reduce_sum((rows - 0.1) ** 2) / BATCH
        gradients = state.embedding.sum_gradients(tape.gradient(loss, variables), variables)
        state.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return rows

    signature = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([len(TABLES), None], tf.int64)]
    return tf.function(step, input_signature=signature, autograph=False) if as_function else step


def train(step: Any, ranks: Ranks, first: int, last: int) -> list[np.ndarray]:
    """Trains steps [first, last); returns what they looked up."""
    return [step(*batch(number, ranks)).numpy() for number in range(first, last)]


def tables_of(state: TrainingState) -> dict[str, np.ndarray]:
    found = dict(zip(TABLES, state.embedding.get_weights(), strict=True))
    keyed = found.pop("keyed")
    return {**found, "keyed": keyed.rows, "keys": keyed.keys}


def checkpoint(directory: Path, num_ranks: int) -> Path:
    return directory / f"saved-{num_ranks}" / f"step-{SAVED_STEP:08d}"


def train_all(ranks: Ranks, directory: Path) -> dict[str, Any]:
    """Trains, saves, trains on; then goes on from the checkpoint of one rank. Runs on each rank."""
    state = build(ranks)
    found = {f"before/{name}": rows for name, rows in tables_of(state).items()}
    step = make_step(state, as_function=True)
    train(step, ranks, 0, SAVED_STEP)
    save_checkpoint(checkpoint(directory, ranks.size).parent, state, ranks=ranks, step=SAVED_STEP, document={})
    found |= {f"saved/{name}": rows for name, rows in tables_of(state).items()}
    outputs = train(step, ranks, SAVED_STEP, LAST_STEP)[0]
    found |= {f"after/{name}": rows for name, rows in tables_of(state).items()}
    other = build(ranks, seed=9, wire=WireFormat(forward="bfloat16"))
    load_checkpoint(checkpoint(directory, 1), other, ranks=ranks)
    wired = train(make_step(other), ranks, SAVED_STEP, SAVED_STEP + 1)[0]
    np.savez(directory / f"narrow-{ranks.size}-{ranks.rank}.npz", **found)
    # Rows that travel one by one lose nothing in their own format.
    starts = np.cumsum([0, *(dim for _, dim, *_ in TABLES.values())])
    columns = [
        slice(starts[list(TABLES).index(name)], starts[list(TABLES).index(name) + 1]) for name in ("rows", "hosted")
    ]
    same = [bool(np.array_equal(wired[:, part], outputs[:, part])) for part in columns]
    copies = [shard.variable for shard in state.embedding.shards if shard.table == "copied"]
    broadcast_variables(copies, ranks=ranks)
    return {"wired": same, "copy": copies[0].numpy().astype(np.float32).tobytes().hex()}
