"""Tables that learn their keys twice: held whole, and on the host with some rows cached; side by side on each rank."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from rankhouse.kernels.optimizer_settings import Adam
from rankhouse.training.checkpoint.checkpoint import TrainingState, load_checkpoint
from rankhouse.training.checkpoint.saver import CheckpointSaver
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.optimizers.optimizers import Optimizer
from rankhouse.training.plan import Plan, TableSpec, place
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.specs import EmbeddingSpec, Input, VocabularySettings
from tests.training.host_tables import SHARES, make_step

# name: (width, mode, options, settings). There are more keys than rows, and more rows than are cached. Two are narrow.
TABLES: dict[str, tuple[int, Any, dict[str, Any], dict[str, Any]]] = {
    "whole": (4, "table_wise", {}, {"when_full": "oldest"}),
    "taken": (2, "table_wise", {"exchange": "rows"}, {"when_full": "rarest"}),
    "rows": (3, "row_wise", {}, {"when_full": "oldest"}),
    "columns": (5, "column_wise", {"num_slices": 3}, {"when_full": "oldest"}),
}
DTYPES: dict[str, Any] = {"taken": "bfloat16", "columns": "float16"}
CAPACITY, CACHED, NUM_STEPS, BATCH = 30, 20, 8, 6
KEYS = np.random.default_rng(5).integers(-(2**63), 2**63 - 1, 120)


def build(
    ranks: Ranks, directory: Path, *, cached: int | None, seed: int = 3, capacity: int = CAPACITY
) -> TrainingState:
    specs = [
        EmbeddingSpec(
            capacity, width, name, vocabulary=VocabularySettings(**settings), dtype=DTYPES.get(name, "float32")
        )
        for name, (width, _, _, settings) in TABLES.items()
    ]
    tables = tuple(TableSpec(spec.name, spec.input_dim, spec.output_dim, dtype=spec.dtype) for spec in specs)
    placements = [place(each, TABLES[each.name][1], num_ranks=ranks.size, **TABLES[each.name][2]) for each in tables]
    if cached:
        folders = {"rows": str(directory)}
        placements = [
            replace(
                each,
                device="host",
                # Of the keys of a step each rank has some.
                cache_rows=cached if each.mode != "row_wise" or ranks.size == 1 else cached * 2 // 3,
                host_folder=folders.get(each.table),
            )
            for each in placements
        ]
    inputs = [Input(f"{name}/{combiner}", name, combiner) for name in TABLES for combiner in ("sum", "mean")]
    plan = Plan(tables, tuple(placements), ranks.size)
    layer = DistributedEmbedding(specs, inputs=inputs, ranks=ranks, plan=plan, seed=seed, name="tables")
    variables = [shard.variable for shard in layer.shards]
    others = [variable for variable in layer.trainable_variables if all(variable is not other for other in variables)]
    return TrainingState(layer, {}, Optimizer(Adam(), tables=variables, dense=others, learning_rate=0.1))


def batch(layer: DistributedEmbedding, step: int) -> tuple[tf.Tensor, tf.Tensor]:
    """One rank's part of a step's batch: some keys that come often, and others that drift."""
    generator, ranks = np.random.default_rng([step]), layer.ranks
    shares = SHARES[ranks.size][step % len(SHARES[ranks.size])]
    begin = sum(shares[: ranks.rank])
    part = slice(begin, begin + shares[ranks.rank])
    lengths = generator.integers(0, 4, [len(layer.inputs), BATCH])
    first = 12 * step
    bags = [
        [KEYS[(generator.choice([0, first]) + generator.integers(0, 10, length)) % len(KEYS)] for length in row]
        for row in lengths
    ]
    keys = np.concatenate([np.empty(0, np.int64), *(bag for row in bags for bag in row[part])])
    return tf.constant(keys, tf.int64), tf.constant(lengths[:, part])


def look_everywhere(layer: DistributedEmbedding, first: int) -> tf.Tensor:
    """Looks keys of all tables up as an evaluation does, many of which have no row."""
    own = KEYS[(first + 30 * layer.ranks.rank + np.arange(CACHED // layer.ranks.size)) % len(KEYS)]
    lengths = tf.ones([len(layer.inputs), len(own)], tf.int64)
    return layer.lookup(tf.constant(np.tile(own, len(layer.inputs)), tf.int64), lengths)


def same_steps(one: TrainingState, other: TrainingState, steps: range, *, as_function: bool = False) -> bool:
    """Trains both, with evaluations in between; whether all that they looked up is the same to the bit."""
    both = [make_step(one), make_step(other)]
    if as_function:
        signature = [tf.TensorSpec([None], tf.int64), tf.TensorSpec([len(one.embedding.inputs), None], tf.int64)]
        both[1] = tf.function(both[1], input_signature=signature, autograph=False)
    same = True
    for number in steps:
        rows = [step(*batch(one.embedding, number)).numpy() for step in both]
        seen = [look_everywhere(state.embedding, 30 * number).numpy() for state in (one, other)]
        same &= np.array_equal(*rows) and np.array_equal(*seen) and bool(rows[0].any() or not len(rows[0]))
    return same


def same_tables(one: TrainingState, other: TrainingState) -> bool:
    pairs = zip(one.embedding.get_weights(), other.embedding.get_weights(), strict=True)
    return all(
        np.array_equal(found.keys, expected.keys) and np.array_equal(found.rows, expected.rows)
        for found, expected in pairs
    )


def train_all(ranks: Ranks, directory: Path) -> dict[str, Any]:
    """Trains, saves and loads both ways; runs on each rank. Returns what was found."""
    found: dict[str, Any] = {}
    whole, host = (build(ranks, directory, cached=cached) for cached in (None, CACHED))
    found["steps"] = same_steps(whole, host, range(NUM_STEPS), as_function=True)
    found["tables"] = same_tables(whole, host)
    found["full"] = [len(table.keys) for table in host.embedding.get_weights()]
    found["stats"] = {table: stats.document() for table, stats in host.embedding.host_stats().items()}
    paths = {}
    for name, state in (("whole", whole), ("host", host)):
        with closing(CheckpointSaver(directory / f"{name}-{ranks.size}", state, ranks=ranks)) as saver:
            paths[name] = saver.save(step=NUM_STEPS, document={})
            make_step(state)(*batch(state.embedding, NUM_STEPS))
            saver.wait()
    found["after saving"] = same_tables(whole, host)
    again = build(ranks, directory, cached=None, seed=3), build(ranks, directory, cached=24, seed=3)
    for state in again:
        make_step(state)(*batch(state.embedding, 2))  # What it knows, and has in the cache, must go.
    load_checkpoint(paths["host"], again[0], ranks=ranks)
    load_checkpoint(paths["whole"], again[1], ranks=ranks)
    found["loaded"] = same_tables(*again)
    found["goes on"] = same_steps(*again, range(NUM_STEPS, NUM_STEPS + 2))
    found["ends"] = same_tables(*again)
    tables = whole.embedding.get_weights()
    host.embedding.set_weights([(table.keys, -table.rows) for table in tables])
    set_to = host.embedding.get_weights()
    found["set"] = all(np.array_equal(one.rows, -other.rows) for one, other in zip(set_to, tables, strict=True))
    return found
