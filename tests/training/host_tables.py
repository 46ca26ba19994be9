"""The same layer twice: tables held whole, and on the host with some rows cached; trained side by side on each rank."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from rankhouse.kernels.optimizer_settings import Adagrad, Adam, Ftrl, Momentum, OptimizerSettings, RowwiseAdagrad, Sgd
from rankhouse.training.checkpoint.checkpoint import TrainingState, load_checkpoint
from rankhouse.training.checkpoint.saver import CheckpointSaver
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.plan import Plan, place
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.specs import EmbeddingSpec, Input
from tests.training.layer_steps import BATCH, Packed, make_step, pack, same_steps, samples_of, with_optimizer

# name: (rows, width, mode, options). A step looks up fewer rows of each than are cached, and all steps more.
TABLES: dict[str, tuple[int, int, Any, dict[str, Any]]] = {
    "copied": (20, 3, "data_parallel", {}),
    "whole": (200, 4, "table_wise", {}),
    "taken": (150, 2, "table_wise", {"exchange": "rows"}),
    "rows": (180, 3, "row_wise", {}),
    "columns": (150, 5, "column_wise", {"num_slices": 3}),
}
CACHED, NUM_STEPS = 40, 3
SETTINGS: dict[str, OptimizerSettings] = {
    "adagrad": Adagrad(initial_accumulator_value=0.01),
    "adam": Adam(),
    "rowwise_adagrad": RowwiseAdagrad(),
    "sgd": Sgd(weight_decay=0.01),
    "momentum": Momentum(nesterov=True),
    "ftrl": Ftrl(),
}
# What there is to find on several ranks, the first ones find.
NUM_SETTINGS = {1: 6, 2: 2}


def build(
    ranks: Ranks, directory: Path, settings: OptimizerSettings, *, cached: int | None, seed: int = 3
) -> TrainingState:
    names = [name for name in TABLES if name != "columns" or not isinstance(settings, RowwiseAdagrad)]
    specs = [EmbeddingSpec(*TABLES[name][:2], name) for name in names]
    tables = tuple(spec.table_spec() for spec in specs)
    placements = [
        place(table, TABLES[table.name][2], num_ranks=ranks.size, **TABLES[table.name][3]) for table in tables
    ]
    if cached:
        folders = {"rows": str(directory)}
        placements = [
            replace(item, device="host", cache_rows=cached, host_folder=folders.get(item.table))
            if item.mode != "data_parallel"
            else item
            for item in placements
        ]
    inputs = [Input(f"{name}/{combiner}", name, combiner) for name in names for combiner in ("sum", "mean")]
    plan = Plan.from_document(Plan(tables, tuple(placements), ranks.size).document())
    layer = DistributedEmbedding(specs, inputs=inputs, ranks=ranks, plan=plan, seed=seed, name="tables")
    return with_optimizer(layer, settings)


def batch(layer: DistributedEmbedding, step: int) -> Packed:
    """One rank's part of a step's batch: ids, mostly the same few, and lengths."""
    generator = np.random.default_rng([step])
    lengths = generator.integers(0, 4, [len(layer.inputs), BATCH])
    bags = [
        [generator.integers(0, generator.choice([10, TABLES[item.table][0]]), length) for length in row]
        for item, row in zip(layer.inputs, lengths, strict=True)
    ]
    return pack(bags, samples_of(layer.ranks, step))


def look_everywhere(layer: DistributedEmbedding, first: int) -> tf.Tensor:
    """Looks up rows of all tables as an evaluation does: so many that each takes another's place."""
    rows = {spec.name: spec.input_dim for spec in layer.specs}
    own = first + 90 * layer.ranks.rank + 4 * np.arange(CACHED // layer.ranks.size)
    ids = [own % rows[item.table] for item in layer.inputs]
    return layer.lookup(tf.constant(np.concatenate(ids), tf.int64), tf.ones([len(ids), len(ids[0])], tf.int64))


def both_train(
    whole: TrainingState, host: TrainingState, numbers: range = range(NUM_STEPS), *, as_function: bool = False
) -> bool:
    """Trains both, with evaluations in between; whether all that they looked up is the same to the bit."""
    return same_steps((whole, host), numbers, batch=batch, evaluate=look_everywhere, as_function=as_function)


def same_tables(one: TrainingState, other: TrainingState) -> bool:
    pairs = zip(one.embedding.get_weights(), other.embedding.get_weights(), strict=True)
    return all(np.array_equal(*pair) for pair in pairs)


def train_all(ranks: Ranks, directory: Path) -> dict[str, Any]:
    """Trains with each optimizer, saves and loads both ways; runs on each rank. Returns what was found."""
    found: dict[str, Any] = {}
    for name in list(SETTINGS)[: NUM_SETTINGS[ranks.size]]:
        settings = SETTINGS[name]
        whole = build(ranks, directory, settings, cached=None)
        host = build(ranks, directory, settings, cached=CACHED)
        found[f"{name} starts"] = same_tables(whole, host)
        found[f"{name} steps"] = both_train(whole, host, as_function=name == "adagrad")
        found[f"{name} tables"] = same_tables(whole, host)
        if name == "adagrad":
            found["stats"] = {table: stats.document() for table, stats in host.embedding.host_stats().items()}
            found |= save_and_load(ranks, directory, whole, host)
    return found


def save_and_load(ranks: Ranks, directory: Path, whole: TrainingState, host: TrainingState) -> dict[str, bool]:
    """Saves both while they train on, and has each go on from the other's checkpoint."""
    found, paths, settings = {}, {}, SETTINGS["adagrad"]
    for name, state in (("whole", whole), ("host", host)):
        with closing(CheckpointSaver(directory / f"{name}-{ranks.size}", state, ranks=ranks)) as saver:
            paths[name] = saver.save(step=NUM_STEPS, document={})
            make_step(state)(*batch(state.embedding, NUM_STEPS))
            saver.wait()
    found["after saving"] = same_tables(whole, host)
    again = build(ranks, directory, settings, cached=None, seed=4), build(ranks, directory, settings, cached=50, seed=5)
    for state in again:
        look_everywhere(state.embedding, 0)  # what is in the cache must not stay as it was
    load_checkpoint(paths["host"], again[0], ranks=ranks)
    load_checkpoint(paths["whole"], again[1], ranks=ranks)
    found["loaded"] = same_tables(*again)
    found["goes on"] = both_train(*again, range(NUM_STEPS, NUM_STEPS + 2))
    found["ends"] = same_tables(*again)
    weights = [-table for table in whole.embedding.get_weights()]
    host.embedding.set_weights(weights)
    found["set"] = all(np.array_equal(*pair) for pair in zip(host.embedding.get_weights(), weights, strict=True))
    return found
