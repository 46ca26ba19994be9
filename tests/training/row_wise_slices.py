"""Row-wise Adagrad on tables that are cut by columns, in all ways of looking them up, beside tables that lie whole."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rankhouse.kernels.optimizer_settings import RowwiseAdagrad
from rankhouse.training.checkpoint.checkpoint import TrainingState, load_checkpoint, save_checkpoint
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.plan import Plan, place
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.specs import EmbeddingSpec, Input, VocabularySettings
from rankhouse.training.tables.variable_rows import read_rows
from tests.training.layer_steps import BATCH, Packed, make_step, pack, samples_of, with_optimizer

# name: (rows, width, how it is cut). The second one travels by rows; the last but one learns its keys, the last one
# lies on the host.
TABLES: dict[str, tuple[int, int, dict[str, Any]]] = {
    "pooled": (25, 20, {"num_slices": 3}),
    "rows": (30, 6, {"num_slices": 2, "exchange": "rows"}),
    "learnt": (60, 5, {"num_slices": 3}),
    "hosted": (90, 5, {"num_slices": 3}),
}
NUM_STEPS, CACHED = 4, 40
SETTINGS = {
    "plain": RowwiseAdagrad(),
    "l2": RowwiseAdagrad(weight_decay=0.1, initial_accumulator_value=0.01),
    "decoupled": RowwiseAdagrad(weight_decay=0.1, decoupled=True),
}


def build(ranks: Ranks, settings: str, *, sliced: bool, names: tuple[str, ...] = tuple(TABLES)) -> TrainingState:
    specs = [
        EmbeddingSpec(*TABLES[name][:2], name, vocabulary=VocabularySettings() if name == "learnt" else None)
        for name in names
    ]
    tables = tuple(spec.table_spec() for spec in specs)
    placements = [
        place(table, "column_wise", num_ranks=ranks.size, **TABLES[table.name][2])
        if sliced
        else place(table, "table_wise", num_ranks=ranks.size)
        for table in tables
    ]
    if sliced:
        placements = [
            replace(item, device="host", cache_rows=CACHED) if item.table == "hosted" else item for item in placements
        ]
    inputs = [Input(f"{name}/{combiner}", name, combiner) for name in names for combiner in ("sum", "mean")]
    plan = Plan(tables, tuple(placements), ranks.size)
    name = f"{settings}_{len(names)}"
    layer = DistributedEmbedding(specs, inputs=inputs, ranks=ranks, plan=plan, seed=3, name=name)
    return with_optimizer(layer, SETTINGS[settings])


def train(state: TrainingState, steps: range, *, as_function: bool = False) -> None:
    scale = 0.5 if state.optimizer.settings == SETTINGS["l2"] else None
    step = make_step(state, gradient_scale=scale, as_function=as_function)
    for number in steps:
        step(*batch(state.embedding, number))


def batch(layer: DistributedEmbedding, step: int) -> Packed:
    """One rank's part of a step's batch: ids and lengths."""
    generator = np.random.default_rng([step])
    lengths = generator.integers(0, 4, [len(layer.inputs), BATCH])
    bags = [
        [generator.integers(0, TABLES[item.table][0] // 2, length) for length in row]
        for item, row in zip(layer.inputs, lengths, strict=True)
    ]
    return pack(bags, samples_of(layer.ranks, step))


def tables(state: TrainingState) -> Iterator[tuple[str, np.ndarray]]:
    """Yields whole tables; collective."""
    for spec, table in zip(state.embedding.specs, state.embedding.get_weights(), strict=True):
        if spec.vocabulary is None:
            yield spec.name, table
        else:
            yield f"{spec.name}/keys", table.keys
            yield spec.name, table.rows


def numbers(state: TrainingState) -> Iterator[tuple[str, np.ndarray]]:
    """Yields what the optimizer keeps for the rows of each slice on this rank, but for those that learn their keys."""
    for shard in state.embedding.shards:
        if shard.learnt is None:
            (slot,) = state.optimizer.slots(shard.variable).values()
            yield f"{shard.table}/{shard.column_start}", read_rows(slot, 0, TABLES[shard.table][0])


def train_all(ranks: Ranks, directory: Path) -> dict[str, Any]:
    """Trains with all settings; runs on each rank, and finds what one rank has left in the folder."""
    found: dict[str, np.ndarray] = {}
    # What there is to find on several ranks, the first ones find.
    for settings in list(SETTINGS)[: 2 if ranks.size > 1 else None]:
        # One table alone, of which a rank has no slice, as a function: what is needed must not be left out of it.
        for names in (tuple(TABLES), ("rows",)):
            if names == ("rows",) and settings != "l2":
                continue
            state = build(ranks, settings, sliced=True, names=names)
            train(state, range(NUM_STEPS), as_function=len(names) == 1)
            prefix = state.embedding.name
            found |= {f"{prefix}/{name}": table for name, table in tables(state)}
            found |= {f"{prefix}/slots/{name}": values for name, values in numbers(state)}
            if settings == "plain":
                save_checkpoint(directory / f"{ranks.size}", state, ranks=ranks, step=NUM_STEPS, document={})
    np.savez(directory / f"{ranks.size}-{ranks.rank}.npz", **found)
    loaded = build(ranks, "plain", sliced=True)
    load_checkpoint(next((directory / "whole").glob("step-*")), loaded, ranks=ranks)
    whole = np.load(directory / "whole.npz")
    return {
        "loaded": [bool(np.array_equal(values, whole[name.split("/")[0]])) for name, values in numbers(loaded)],
        "bytes": sum(count.sent for name, count in ranks.traffic.read().items() if name.endswith("row_squares")),
    }
