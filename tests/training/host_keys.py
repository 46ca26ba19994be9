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
from rankhouse.training.plan import Plan, place
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.specs import EmbeddingSpec, Input, VocabularySettings
from tests.training.layer_steps import BATCH, Packed, make_step, pack, same_steps, samples_of, with_optimizer

# name: (width, mode, options, settings). There are more keys than rows, and more rows than are cached. Two are narrow.
TABLES: dict[str, tuple[int, Any, dict[str, Any], dict[str, Any]]] = {
    "whole": (4, "table_wise", {}, {"when_full": "oldest"}),
    "taken": (2, "table_wise", {"exchange": "rows"}, {"when_full": "rarest"}),
    "rows": (3, "row_wise", {}, {"when_full": "oldest"}),
    "columns": (5, "column_wise", {"num_slices": 3}, {"when_full": "oldest"}),
}
DTYPES: dict[str, Any] = {"taken": "bfloat16", "columns": "float16"}
CAPACITY, CACHED, NUM_STEPS = 30, 20, 8
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
    tables = tuple(spec.table_spec() for spec in specs)
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
    return with_optimizer(layer, Adam())


def batch(layer: DistributedEmbedding, step: int) -> Packed:
    """One rank's part of a step's batch: some keys that come often, and others that drift."""
    generator = np.random.default_rng([step])
    lengths = generator.integers(0, 4, [len(layer.inputs), BATCH])
    bags = [
        [KEYS[(generator.choice([0, 12 * step]) + generator.integers(0, 10, length)) % len(KEYS)] for length in row]
        for row in lengths
    ]
    return pack(bags, samples_of(layer.ranks, step))


def look_everywhere(layer: DistributedEmbedding, first: int) -> tf.Tensor:
    """Looks keys of all tables up as an evaluation does, many of which have no row."""
    own = KEYS[(first + 30 * layer.ranks.rank + np.arange(CACHED // layer.ranks.size)) % len(KEYS)]
    lengths = tf.ones([len(layer.inputs), len(own)], tf.int64)
    return layer.lookup(tf.constant(np.tile(own, len(layer.inputs)), tf.int64), lengths)


def both_train(whole: TrainingState, host: TrainingState, numbers: range, *, as_function: bool = False) -> bool:
    """Trains both, with evaluations in between; whether all that they looked up is the same to the bit."""
    return same_steps((whole, host), numbers, batch=batch, evaluate=look_everywhere, as_function=as_function)


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
    found["steps"] = both_train(whole, host, range(NUM_STEPS), as_function=True)
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
    found["goes on"] = both_train(*again, range(NUM_STEPS, NUM_STEPS + 2))
    found["ends"] = same_tables(*again)
    tables = whole.embedding.get_weights()
    host.embedding.set_weights([(table.keys, -table.rows) for table in tables])
    set_to = host.embedding.get_weights()
    found["set"] = all(np.array_equal(one.rows, -other.rows) for one, other in zip(set_to, tables, strict=True))
    return found
