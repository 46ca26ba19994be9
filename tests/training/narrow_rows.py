"""A layer whose tables, in every mode, hold rows of 16 bits, and steps in which no order of sums can make a difference.

In each step a row is looked up once, over all ranks: so every mode must give the same bits on any number of ranks.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from rankhouse.kernels.optimizer_settings import Adagrad
from rankhouse.training.checkpoint.checkpoint import TrainingState, load_checkpoint, save_checkpoint
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.exchange.wire_format import WireFormat
from rankhouse.training.plan import Plan, place
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.owned_variables import broadcast_variables
from rankhouse.training.tables.specs import EmbeddingSpec, Input, VocabularySettings
from tests.training.layer_steps import BATCH, Packed, Step, make_step, pack, samples_of, with_optimizer

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
CACHED = 20
SAVED_STEP, LAST_STEP = 4, 6


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
    tables = tuple(spec.table_spec() for spec in specs)
    placements = []
    for table in tables:
        *_, mode, options = TABLES[table.name]
        placement = place(table, mode, num_ranks=ranks.size, **options)
        hosted = table.name == "hosted"
        placements.append(replace(placement, device="host", cache_rows=CACHED) if hosted else placement)
    plan = Plan.from_document(Plan(tables, tuple(placements), ranks.size).document())
    inputs = [Input(spec.name, spec.name) for spec in specs]
    layer = DistributedEmbedding(specs, inputs=inputs, ranks=ranks, plan=plan, seed=seed, wire=wire, name="narrow")
    return with_optimizer(layer, Adagrad())


def batch(step: int, ranks: Ranks) -> Packed:
    """One rank's part of a step's batch: ids and lengths."""
    generator = np.random.default_rng([step])
    lengths = generator.integers(0, 4, [len(TABLES), BATCH])
    bags = []
    for (name, (rows, *_)), row in zip(TABLES.items(), lengths, strict=True):
        ids = generator.permutation(40 if name == "keyed" else rows)
        bags.append(np.split(ids[: row.sum()], np.cumsum(row)[:-1]))
    return pack(bags, samples_of(ranks, step))


def train(step: Step, ranks: Ranks, first: int, last: int) -> list[np.ndarray]:
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
