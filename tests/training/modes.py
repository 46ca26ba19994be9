"""A layer with a table in every mode and inputs of every kind, and batches that lie unevenly on any number of ranks."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from rankhouse.kernels.optimizer_settings import Adagrad
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.exchange.sent_ids import SentIds
from rankhouse.training.exchange.wire_format import WireFormat
from rankhouse.training.optimizers.optimizers import Optimizer
from rankhouse.training.plan import Plan, place
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.specs import EmbeddingSpec, Input
from tests.training.layer_steps import samples_of, with_optimizer

# name: (rows, width, mode, options). The last table has fewer rows than three ranks need for one each, and its first
# row lies on the last rank.
TABLES: dict[str, tuple[int, int, Any, dict[str, Any]]] = {
    "copied": (5, 3, "data_parallel", {}),
    "whole": (40, 4, "table_wise", {}),
    "one": (30, 1, "table_wise", {"exchange": "rows"}),
    "columns": (25, 5, "column_wise", {"num_slices": 3}),
    "column_rows": (12, 3, "column_wise", {"exchange": "rows"}),
    "rows": (50, 3, "row_wise", {}),
    "tiny": (2, 2, "row_wise", {}),
}
# What every table is looked up by: (kind of tensor, combiner, whether it has weights).
POOLED_KINDS = [("ragged", "sum", False), ("dense", "mean", True), ("sparse", "sqrtn", True)]
APART_KINDS = [("ragged", None, False), ("dense", None, False), ("flat", None, False), ("ragged", "mean", True)]
KINDS = {"pooled": POOLED_KINDS, "apart": APART_KINDS}
# Without a combiner all tables that travel do so by rows: the other ones would show nothing more.
NAMES = {"pooled": tuple(TABLES), "apart": ("copied", "whole", "columns", "rows")}

BATCH, NUM_STEPS = 7, 3
# How many of the samples of a step each rank has: uneven, and sometimes none.
SHARES = {1: [[7]], 2: [[3, 4], [7, 0], [0, 7]], 3: [[2, 4, 1], [0, 7, 0], [3, 0, 4]]}


def build(ranks: Ranks, kinds: str, *, wire: dict[str, WireFormat] | None = None) -> DistributedEmbedding:
    specs = [EmbeddingSpec(*TABLES[name][:2], name) for name in NAMES[kinds]]
    inputs = [
        Input(f"{name}/{number}", name, combiner)
        for name in NAMES[kinds]
        for number, (_, combiner, _) in enumerate(KINDS[kinds])
    ]
    tables = tuple(spec.table_spec() for spec in specs)
    options = {name: options for name, (_, _, _, options) in TABLES.items()}
    options["tiny"] = {"ranks": range(ranks.size)[::-1]}
    placements = [place(table, TABLES[table.name][2], num_ranks=ranks.size, **options[table.name]) for table in tables]
    plan = Plan(tables, tuple(placements), ranks.size)
    return DistributedEmbedding(specs, inputs=inputs, ranks=ranks, plan=plan, seed=3, wire=wire, name=kinds)


def batch(kinds: str, step: int, ranks: Ranks) -> tuple[list[Any], list[Any], list[np.ndarray]]:
    """One rank's part of a step's batch: ids, weights, and for each input a number that its loss is multiplied with."""
    generator = np.random.default_rng([step])
    part = samples_of(ranks, step, SHARES)
    ids, weights, factors = [], [], []
    for name in NAMES[kinds]:
        rows = TABLES[name][0]
        for kind, _, weighted in KINDS[kinds]:
            lengths = generator.integers(0, 4, BATCH) if kind in ("ragged", "sparse") else np.full(BATCH, 2)
            bags = [generator.integers(0, rows, length) for length in lengths]
            values = [generator.uniform(0.1, 2, length).astype(np.float32) for length in lengths]
            ids.append(tensor(kind, bags[part], np.int32 if kind == "flat" else np.int64))
            weights.append(tensor(kind, values[part], np.float32) if weighted else None)
            factors.append(generator.uniform(0.5, 1.5, BATCH).astype(np.float32)[part])
    return ids, weights, factors


def tensor(kind: str, bags: list[np.ndarray], dtype: Any) -> Any:
    if kind == "flat":
        return tf.constant(np.array([bag[0] for bag in bags], dtype))
    if kind == "dense":
        return tf.constant(np.array(bags, dtype).reshape(-1, 2))
    ragged = tf.RaggedTensor.from_row_lengths(
        np.concatenate([np.empty(0, dtype), *bags]).astype(dtype), np.array([len(bag) for bag in bags], np.int64)
    )
    if kind == "ragged":
        return ragged
    values = ragged.to_sparse()
    return tf.SparseTensor(values.indices, values.values, [len(bags), 4])


def signature(kinds: str) -> tuple[list[Any], list[Any], list[tf.TensorSpec]]:
    """The types of a batch, whatever the sizes."""
    every = [kind for _ in NAMES[kinds] for kind in KINDS[kinds]]
    ids = [spec(kind, tf.int32 if kind == "flat" else tf.int64) for kind, _, _ in every]
    weights = [spec(kind, tf.float32) for kind, _, weighted in every if weighted]
    return ids, weights, [tf.TensorSpec([None], tf.float32)] * len(every)


def spec(kind: str, dtype: tf.DType) -> Any:
    if kind == "ragged":
        return tf.RaggedTensorSpec([None, None], dtype, row_splits_dtype=tf.int64)
    if kind == "sparse":
        return tf.SparseTensorSpec([None, 4], dtype)
    return tf.TensorSpec([None] if kind == "flat" else [None, 2], dtype)


def build_training(ranks: Ranks, kinds: str) -> tuple[DistributedEmbedding, Optimizer]:
    layer = build(ranks, kinds)
    return layer, with_optimizer(layer, Adagrad()).optimizer


def train(ranks: Ranks, kinds: str) -> dict[str, np.ndarray]:
    """Trains some steps; returns the outputs of this rank in the first, and the tables before and after."""
    layer, optimizer = build_training(ranks, kinds)
    variables = layer.trainable_variables
    weighted = [weighted for _ in NAMES[kinds] for _, _, weighted in KINDS[kinds]]

    def step(ids: list[Any], given: list[Any], factors: list[tf.Tensor]) -> list[Any]:
        rest = iter(given)
        weights = [next(rest) if is_weighted else None for is_weighted in weighted]
        with tf.GradientTape() as tape:
            outputs = layer(ids, weights=weights)
            loss = sum(loss_of(*pair) for pair in zip(outputs, factors, strict=True)) / BATCH
        gradients = layer.sum_gradients(tape.gradient(loss, variables), variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return outputs

    if kinds == "pooled":  # the other one eagerly, which saves the time of tracing
        step = tf.function(step, input_signature=signature(kinds), autograph=False)
    found = {f"before/{spec.name}": table for spec, table in zip(layer.specs, layer.get_weights(), strict=True)}
    for number in range(NUM_STEPS):
        ids, weights, factors = batch(kinds, number, ranks)
        outputs = step(ids, [values for values in weights if values is not None], factors)
        if number == 0:
            found |= {f"output/{i}": _flat(output) for i, output in enumerate(outputs)}
    found |= {f"after/{spec.name}": table for spec, table in zip(layer.specs, layer.get_weights(), strict=True)}
    return found


def train_ahead(ranks: Ranks) -> dict[str, np.ndarray]:
    """Trains the steps of the pooled layer, each of which sends the ids of the next batch; returns the tables."""
    layer, optimizer = build_training(ranks, "pooled")
    packed = (tf.TensorSpec([None], tf.int64), tf.TensorSpec([len(layer.inputs), None], tf.int64))
    factors = signature("pooled")[2]

    @tf.function(
        input_signature=(layer.sent_spec(weighted=True), factors, *packed, tf.TensorSpec([None])), autograph=False
    )
    def step(
        sent: SentIds, factors: list[tf.Tensor], ids: tf.Tensor, lengths: tf.Tensor, weights: tf.Tensor
    ) -> SentIds:
        next_sent = layer.send_ids(ids, lengths, weights)
        variables = layer.trainable_variables
        with tf.GradientTape() as tape:
            outputs = tf.split(layer.lookup_sent(sent), [TABLES[item.table][1] for item in layer.inputs], axis=1)
            loss = sum(loss_of(*pair) for pair in zip(outputs, factors, strict=True)) / BATCH
        gradients = layer.sum_gradients(tape.gradient(loss, variables), variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return next_sent

    batches = [batch("pooled", number, ranks) for number in range(NUM_STEPS + 1)]
    ids = [layer.pack(*each[:2]) for each in batches]
    sent = layer.send_ids(*ids[0])
    for number in range(NUM_STEPS):
        sent = step(sent, batches[number][2], *ids[number + 1])
    return {f"after/{spec.name}": table for spec, table in zip(layer.specs, layer.get_weights(), strict=True)}


def train_all(ranks: Ranks, directory: Path) -> dict[str, Any]:
    """Trains both layers, and leaves what they found in a file of this rank; runs on each rank."""
    found = {kinds: train(ranks, kinds) for kinds in KINDS}
    for kinds, arrays in found.items():
        np.savez(directory / f"{kinds}-{ranks.size}-{ranks.rank}.npz", **arrays)
    layer = build(ranks, "pooled")
    tables = [np.arange(rows * dim, dtype=np.float32).reshape(rows, dim) for rows, dim, _, _ in TABLES.values()]
    layer.set_weights(tables)
    back = layer.get_weights(all_ranks=False)
    return {
        "ahead": {
            name: bool(np.array_equal(table, found["pooled"][name])) for name, table in train_ahead(ranks).items()
        },
        "held": [[shard.table, *shard.variable.shape] for shard in layer.shards],
        "rounding": round_rows(ranks),
        "set": [bool(np.array_equal(*pair)) for pair in zip(back, tables, strict=False)],
    }


def round_rows(ranks: Ranks) -> dict[str, float]:
    """Looks up with narrow rows of two tables; returns how far outputs move, relative to the largest, by table."""
    ids, weights, _ = batch("pooled", 0, ranks)
    wire = {"rows": WireFormat(forward="bfloat16"), "whole": WireFormat(forward="int8")}
    layers = [build(ranks, "pooled", wire=each) for each in (wire, None)]
    narrow, exact = (layer(ids, weights=weights) for layer in layers)
    moved = dict.fromkeys(TABLES, 0.0)
    for item, one, other in zip(layers[0].inputs, narrow, exact, strict=True):
        if len(one):
            error = np.abs(one - other).max() / np.abs(other).max()
            moved[item.table] = max(moved[item.table], float(error))
    return moved


def loss_of(output: Any, factor: tf.Tensor) -> tf.Tensor:
    """A loss whose gradient at a sample depends on nothing but the sample."""
    if isinstance(output, tf.RaggedTensor):
        each = tf.reduce_sum(output.values**2, axis=1) * tf.gather(factor, output.value_rowids())
        return tf.reduce_sum(each)
    return tf.reduce_sum(tf.reduce_sum((output - 0.1) ** 2, axis=list(range(1, output.shape.rank))) * factor)


def _flat(output: Any) -> np.ndarray:
    return (output.values if isinstance(output, tf.RaggedTensor) else output).numpy()
