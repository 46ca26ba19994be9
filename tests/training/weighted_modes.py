"""A layer with a table in every mode, all of them looked up with weights, and the gradients of these weights."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.plan import Plan, place
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.specs import EmbeddingSpec, Input, VocabularySettings
from tests.training.layer_steps import samples_of
from tests.training.modes import BATCH, SHARES, loss_of, tensor

# name: (rows, width, mode, options, whether it learns its keys).
TABLES: dict[str, tuple[int, int, Any, dict[str, Any], bool]] = {
    "copied": (5, 3, "data_parallel", {}, False),
    "whole": (40, 4, "table_wise", {}, False),
    "columns": (25, 20, "column_wise", {"num_slices": 3}, False),
    "column_rows": (12, 3, "column_wise", {"exchange": "rows"}, False),
    "rows": (50, 3, "row_wise", {}, False),
    "learnt": (60, 5, "column_wise", {"num_slices": 3}, True),
    "learnt_rows": (60, 3, "row_wise", {}, True),
}
# What every table is looked up by; the last one has no weights, and gets ones beside those of the others.
KINDS = [("ragged", "sum"), ("dense", "mean"), ("sparse", "sqrtn"), ("ragged", "sum")]
NUM_KEYS, NUM_STEPS = 30, 2


def build(ranks: Ranks) -> DistributedEmbedding:
    specs = [
        EmbeddingSpec(rows, width, name, vocabulary=VocabularySettings() if learnt else None)
        for name, (rows, width, _, _, learnt) in TABLES.items()
    ]
    return _layer(ranks, specs, {name: (mode, options) for name, (_, _, mode, options, _) in TABLES.items()})


def build_apart(ranks: Ranks) -> DistributedEmbedding:
    """A layer where the last rank holds nothing, and the first one pools nothing."""
    last = min(1, ranks.size - 1)
    placed = {
        "whole": ("table_wise", {"ranks": [last]}),
        "rows": ("row_wise", {"ranks": range(last + 1), "num_slices": last + 1}),
    }
    return _layer(ranks, [EmbeddingSpec(*TABLES[name][:2], name) for name in placed], placed)


def _layer(ranks: Ranks, specs: list[EmbeddingSpec], placed: dict[str, Any]) -> DistributedEmbedding:
    tables = tuple(spec.table_spec() for spec in specs)
    placements = [
        place(table, placed[table.name][0], num_ranks=ranks.size, **placed[table.name][1]) for table in tables
    ]
    inputs = [
        Input(f"{spec.name}/{at}", spec.name, combiner) for spec in specs for at, (_, combiner) in enumerate(KINDS)
    ]
    plan = Plan(tables, tuple(placements), ranks.size)
    return DistributedEmbedding(specs, inputs=inputs, ranks=ranks, plan=plan, seed=3, name=f"of_{len(specs)}")


def batch(
    layer: DistributedEmbedding, step: int, ranks: Ranks | None = None
) -> tuple[list[Any], list[Any], list[np.ndarray]]:
    """One rank's part of a step's batch: ids, weights, and for each input a number for each sample's loss."""
    generator, ranks = np.random.default_rng([step, 9]), ranks or layer.ranks
    part = samples_of(ranks, step, SHARES)
    ids, weights, factors = [], [], []
    for spec in layer.specs:
        rows = spec.input_dim if spec.vocabulary is None else NUM_KEYS
        for at, (kind, _) in enumerate(KINDS):
            lengths = np.full(BATCH, 2) if kind == "dense" else generator.integers(0, 5, BATCH)
            bags = [generator.integers(0, rows, length) for length in lengths]
            values = [generator.uniform(0.1, 2, length).astype(np.float32) for length in lengths]
            if at == 0:
                values[0] *= -1
            ids.append(tensor(kind, bags[part], np.int64))
            weights.append(tensor(kind, values[part], np.float32) if at < len(KINDS) - 1 else None)
            factors.append(generator.uniform(0.5, 1.5, BATCH).astype(np.float32)[part])
    return ids, weights, factors


def gradients(layer: DistributedEmbedding, step: int) -> dict[str, np.ndarray]:
    """Returns the gradients of the weights of each input, of a call, with those of the tables."""
    ids, weights, factors = batch(layer, step)
    # TensorFlow takes no SparseTensor as the source of a gradient, but what lies in it.
    given = [flat(values) for values in weights if values is not None]
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(given)
        outputs = layer(ids, weights=weights)
        loss = sum(loss_of(*pair) for pair in zip(outputs, factors, strict=True))
    found = tape.gradient(loss, [layer.trainable_variables, given])[1]
    names = [item.name for item, values in zip(layer.inputs, weights, strict=True) if values is not None]
    return {name: np.ravel(values) for name, values in zip(names, found, strict=True)}


def gradients_sent(layer: DistributedEmbedding, step: int, *, as_function: bool) -> np.ndarray:
    """Returns the same gradients, packed, of a lookup of ids that were sent before."""
    ids, weights, factors = batch(layer, step)
    widths = [spec.output_dim for spec in layer.specs for _ in KINDS]

    def look_up(sent: Any, factors: list[tf.Tensor]) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(sent.weights)
            outputs = tf.split(layer.lookup_sent(sent), widths, axis=1)
            loss = sum(loss_of(*pair) for pair in zip(outputs, factors, strict=True))
        return tape.gradient(loss, sent.weights[0])

    packed = layer.pack(ids, weights)
    found = (tf.function(look_up, autograph=False) if as_function else look_up)(layer.send_ids(*packed), factors)
    lengths = tf.reduce_sum(packed[1], axis=1)
    parts = tf.split(found, lengths, num=len(layer.inputs))
    return np.concatenate([part for part, values in zip(parts, weights, strict=True) if values is not None])


def look_up_all(ranks: Ranks, directory: Path) -> dict[str, Any]:
    """Finds the gradients of both layers; runs on each rank."""
    found: dict[str, np.ndarray] = {}
    answer = {}
    # Graphs of the small one alone, which saves the time of tracing.
    for layer, small in ((build(ranks), False), (build_apart(ranks), True)):
        learn(layer)
        name = f"{layer.name}_weights_gradient"
        _tables_alone(layer)
        before = ranks.traffic.read().get(name)
        steps = [gradients(layer, step) for step in range(NUM_STEPS)]
        counted = ranks.traffic.read().get(name)
        answer[layer.name] = {
            "free": before is None,
            "bytes": None if counted is None else [counted.sent, counted.received],
            "expected": bytes_of(layer, range(NUM_STEPS)),
            "sent": bool(
                np.array_equal(gradients_sent(layer, 1, as_function=small), np.concatenate([*steps[1].values()]))
            ),
        }
        found |= {f"{layer.name}/{step}/{key}": values for step, one in enumerate(steps) for key, values in one.items()}
    np.savez(directory / f"weighted-{ranks.size}-{ranks.rank}.npz", **found)
    return answer


def learn(layer: DistributedEmbedding) -> None:
    """Has tables learn some of their keys; the others stay unknown."""
    known = [tf.range(0, NUM_KEYS, 2) % spec.input_dim for spec in layer.specs for _ in KINDS]
    layer(known, training=True)


def bytes_of(layer: DistributedEmbedding, steps: range) -> list[int]:
    """Returns the bytes that this rank sends and receives for its weights' gradients: a number for each id and slice
    of a table that is pooled by others."""
    ranks, me = layer.ranks, layer.ranks.rank
    moved = np.zeros([ranks.size, ranks.size], np.int64)  # [owner, of whom the ids are]
    for step in steps:
        for rank in range(ranks.size):
            ids = batch(layer, step, Ranks(rank, ranks.size))[0]
            for number, item in enumerate(layer.inputs):
                placement = layer.plan.placement(item.table)
                count = int(tf.size(flat(ids[number])))
                pooled = placement.mode in ("table_wise", "column_wise") and placement.exchange != "rows"
                for shard in placement.shards if pooled else ():
                    moved[shard.rank, rank] += 4 * count
    np.fill_diagonal(moved, 0)
    return [int(moved[me].sum()), int(moved[:, me].sum())]


def _tables_alone(layer: DistributedEmbedding) -> None:
    ids, weights, _ = batch(layer, 0)
    with tf.GradientTape() as tape:
        loss = sum(tf.reduce_sum(output) for output in layer(ids, weights=weights))
    tape.gradient(loss, layer.trainable_variables)


def flat(tensor: Any) -> tf.Tensor:
    return tensor.values if isinstance(tensor, tf.RaggedTensor | tf.SparseTensor) else tensor
