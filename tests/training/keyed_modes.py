"""A layer with a table in every mode, all of which learn their keys, and batches like those of `modes`."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from rankhouse.kernels.optimizer_settings import Adam
from rankhouse.training.checkpoint.checkpoint import load_checkpoint, save_checkpoint
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.plan import Plan, place
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.specs import EmbeddingSpec, Input, VocabularySettings
from tests.training.layer_steps import samples_of, with_optimizer
from tests.training.modes import BATCH, SHARES, loss_of, tensor

# name: (width, mode, options, settings). The owner of "whole" and of "columns" adds up gradients in one rank's order.
TABLES: dict[str, tuple[int, Any, dict[str, Any], dict[str, Any]]] = {
    "copied": (3, "data_parallel", {}, {}),
    "whole": (4, "table_wise", {}, {"min_steps": 2}),
    "columns": (5, "column_wise", {"num_slices": 3}, {}),
    "column_rows": (3, "column_wise", {"exchange": "rows"}, {"when_full": "oldest"}),
    "rows": (3, "row_wise", {}, {"min_steps": 2, "when_full": "unknown"}),
    "more": (2, "row_wise", {}, {}),
}
# Every table has its share of the kinds of inputs: (kind of tensor, combiner, whether it has weights).
KINDS: dict[str, list[tuple[str, str | None, bool]]] = {
    "copied": [("sparse", "sum", False)],
    "whole": [("ragged", "sum", False), ("dense", "mean", True)],
    "columns": [("sparse", "sqrtn", True)],
    "column_rows": [("dense", "mean", True)],
    "rows": [("ragged", "mean", True), ("sparse", "sum", False)],
    "more": [("ragged", None, False), ("dense", None, False), ("flat", None, False)],
}
CAPACITY, NUM_KEYS, NUM_STEPS = 90, 50, 4
SAME_ORDER = ("whole", "columns")

# Any int64: small ones, negative ones, and the ends of the range.
KEYS = np.random.default_rng(5).integers(-(2**63), 2**63 - 1, NUM_KEYS)
KEYS[:6] = [0, -1, 1, 2**63 - 1, -(2**63), 12]


class Model:
    """The layer, its optimizer, and the step of training."""

    def __init__(self, ranks: Ranks, *, capacity: int = CAPACITY) -> None:
        self.ranks = ranks
        specs = [
            EmbeddingSpec(capacity, width, name, vocabulary=VocabularySettings(**settings))
            for name, (width, _, _, settings) in TABLES.items()
        ]
        inputs = [
            Input(f"{name}/{number}", name, combiner)
            for name in TABLES
            for number, (_, combiner, _) in enumerate(KINDS[name])
        ]
        tables = tuple(spec.table_spec() for spec in specs)
        placements = [
            place(table, TABLES[table.name][1], num_ranks=ranks.size, **TABLES[table.name][2]) for table in tables
        ]
        plan = Plan(tables, tuple(placements), ranks.size)
        self.layer = DistributedEmbedding(specs, inputs=inputs, ranks=ranks, plan=plan, seed=3, name="keyed")
        self.state = with_optimizer(self.layer, Adam())

    def train(self, first: int, last: int) -> list[Any]:
        """Trains with the batches of some steps; returns the outputs of the first."""
        outputs = [self._step(*batch(number, self.ranks)) for number in range(first, last)]
        return [_flat(output) for output in outputs[0]]

    def evaluate(self) -> list[Any]:
        ids, weights, _ = batch(NUM_STEPS + 1, self.ranks)
        return [_flat(output) for output in self.layer(ids, weights=weights, training=False)]

    def tables(self) -> dict[str, np.ndarray]:
        found = {}
        for name, table in zip(TABLES, self.layer.get_weights(), strict=True):
            found |= {f"{name}/keys": table.keys, f"{name}/rows": table.rows}
        return found

    # Eagerly, which saves the time of tracing; a test of one rank traces.
    def _step(self, ids: list[Any], weights: list[Any], factors: list[Any]) -> list[Any]:
        variables = self.layer.trainable_variables
        with tf.GradientTape() as tape:
            outputs = self.layer(ids, weights=weights, training=True)
            loss = sum(loss_of(*pair) for pair in zip(outputs, factors, strict=True)) / BATCH
        gradients = self.layer.sum_gradients(tape.gradient(loss, variables), variables)
        self.state.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return outputs


def batch(step: int, ranks: Ranks) -> tuple[list[Any], list[Any], list[np.ndarray]]:
    """One rank's part of a step's batch; later steps have keys that earlier ones had not."""
    generator = np.random.default_rng([7, step])
    part = samples_of(ranks, step, SHARES)
    ids, weights, factors = [], [], []
    for name in TABLES:
        for kind, _, weighted in KINDS[name]:
            lengths = generator.integers(0, 4, BATCH) if kind in ("ragged", "sparse") else np.full(BATCH, 2)
            numbers = [generator.integers(0, 20 + 8 * step, length) % NUM_KEYS for length in lengths]
            bags = [KEYS[bag] for bag in numbers] if kind != "flat" else numbers
            values = [generator.uniform(0.1, 2, length).astype(np.float32) for length in lengths]
            ids.append(tensor(kind, bags[part], np.int32 if kind == "flat" else np.int64))
            weights.append(tensor(kind, values[part], np.float32) if weighted else None)
            factors.append(generator.uniform(0.5, 1.5, BATCH).astype(np.float32)[part])
    return ids, weights, factors


def train_all(ranks: Ranks, directory: Path) -> dict[str, Any]:
    """Trains on each rank, and goes on from a checkpoint of one rank; leaves what was found in a file of this rank."""
    model = Model(ranks)
    found = {f"output/{number}": output for number, output in enumerate(model.train(0, NUM_STEPS))}
    before = model.tables()
    found |= {f"evaluation/{number}": output for number, output in enumerate(model.evaluate())}
    found |= {f"after/{name}": table for name, table in model.tables().items()}
    learnt_in_evaluation = any(not np.array_equal(before[name], found[f"after/{name}"]) for name in before)
    save_checkpoint(directory / f"saved-{ranks.size}", model.state, ranks=ranks, step=NUM_STEPS, document={})
    model.train(NUM_STEPS, NUM_STEPS + 1)
    found |= {f"later/{name}": table for name, table in model.tables().items()}

    other = Model(ranks)
    other.train(2, 3)  # What it knows so far is to go.
    load_checkpoint(directory / "saved-1" / f"step-{NUM_STEPS:08d}", other.state, ranks=ranks)
    found |= {f"loaded/{name}": table for name, table in other.tables().items()}
    other.train(NUM_STEPS, NUM_STEPS + 1)
    found |= {f"gone on/{name}": table for name, table in other.tables().items()}
    other.layer.set_weights([(found[f"after/{name}/keys"], found[f"after/{name}/rows"]) for name in TABLES])
    found |= {f"set/{name}": table for name, table in other.tables().items()}
    np.savez(directory / f"keyed-{ranks.size}-{ranks.rank}.npz", **found)
    return {"learnt_in_evaluation": learnt_in_evaluation, "num_lookups": int(model.layer.num_lookups)}


def _flat(output: Any) -> np.ndarray:
    return (output.values if isinstance(output, tf.RaggedTensor) else output).numpy()
