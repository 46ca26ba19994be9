"""Scripts as users of distributed-embeddings write them, and the same on one device beside them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from rankhouse.training.compat.distributed_embeddings import Embedding
from rankhouse.training.compat.distributed_embeddings import dist_model_parallel as dmp

# Rows, width and combiner; two of one width, and with combiners of one kind.
TABLES = [(40, 4, None), (30, 4, "sum"), (25, 6, "mean"), (50, 8, None), (12, 4, "sum")]
# The table of each input, and what the input is.
INPUTS = [(0, "single"), (1, "ragged"), (2, "triple"), (3, "pair"), (4, "sparse"), (1, "pair32")]
# By table, inputs without a combiner have one id.
BY_TABLE = [(0, "single"), (1, "ragged"), (2, "triple"), (3, "column"), (4, "sparse"), (1, "pair32")]
BATCH = 8
NUM_STEPS = 3
SHAPES = {"single": (), "column": (1,), "pair": (2,), "pair32": (2,), "triple": (3,)}

Inputs = Sequence[tuple[int, str]]


class Model(tf_keras.Model):
    """Embedding layers, by themselves or spread over ranks, and a dense layer."""

    def __init__(self, inputs: Inputs, distribute: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.tables = [self._layer(number, *table) for number, table in enumerate(TABLES)]
        self.input_table_map = [table for table, _ in inputs]
        self.embedding = None
        if distribute is not None:
            self.embedding = dmp.DistributedEmbedding(self.tables, input_table_map=self.input_table_map, **distribute)
        sizes = [TABLES[table][1] * (2 if kind == "pair" and TABLES[table][2] is None else 1) for table, kind in inputs]
        self.sizes = sizes
        self.top = tf_keras.layers.Dense(1)

    @staticmethod
    def _layer(number: int, rows: int, width: int, combiner: str | None) -> Any:
        if combiner is None:
            return tf_keras.layers.Embedding(rows, width, name=f"table_{number}")
        return Embedding(rows, width, combiner=combiner, name=f"table_{number}")

    def call(self, inputs: Any) -> tf.Tensor:
        if self.embedding is not None:
            outputs = self.embedding(inputs)
        else:
            outputs = [self.tables[table](ids) for table, ids in zip(self.input_table_map, inputs, strict=True)]
        flat = [tf.reshape(output, [-1, size]) for output, size in zip(outputs, self.sizes, strict=True)]
        return self.top(tf.concat(flat, axis=1))

    def set_tables(self, tables: Sequence[Any], **options: Any) -> None:
        if self.embedding is not None:
            self.embedding.set_weights(tables, **options)
        else:
            for layer, table in zip(self.tables, tables, strict=True):
                layer.set_weights([table])

    def get_tables(self) -> list[Any]:
        if self.embedding is not None:
            return self.embedding.get_weights(all_ranks=True)
        return [layer.get_weights()[0] for layer in self.tables]


def batch_of(step: int, inputs: Inputs) -> tuple[list[Any], tf.Tensor]:
    """Makes the global batch of a step; bags are of any length, with empty ones at the end and between."""
    generator = np.random.default_rng(step)
    tensors: list[Any] = []
    for table, kind in inputs:
        rows = TABLES[table][0]
        if kind in SHAPES:
            ids = generator.integers(0, rows, (BATCH, *SHAPES[kind]))
            tensors.append(tf.constant(ids, tf.int32 if kind == "pair32" else tf.int64))
        else:
            lengths = generator.integers(0, 4, BATCH)
            lengths[-1] = lengths[2] = 0
            bags = tf.RaggedTensor.from_row_lengths(generator.integers(0, rows, lengths.sum()), lengths)
            tensors.append(bags.to_sparse() if kind == "sparse" else bags)
    return tensors, tf.constant(generator.normal(size=(BATCH, 1)), tf.float32)


def signature_of(tensors: Sequence[Any]) -> list[Any]:
    """Returns what a function is told of inputs whose batch may have any size."""
    signature: list[Any] = []
    for tensor in tensors:
        if isinstance(tensor, tf.RaggedTensor):
            signature.append(tf.RaggedTensorSpec([None, None], tensor.dtype))
        elif isinstance(tensor, tf.SparseTensor):
            signature.append(tf.SparseTensorSpec([None, None], tensor.dtype))
        else:
            signature.append(tf.TensorSpec([None, *tensor.shape[1:]], tensor.dtype))
    return signature


def part_of(tensor: Any, start: int, stop: int) -> Any:
    if isinstance(tensor, tf.SparseTensor):
        return tf.RaggedTensor.from_sparse(tensor)[start:stop].to_sparse()
    return tensor[start:stop]


def initial_tables() -> list[Any]:
    generator = np.random.default_rng(99)
    return [generator.normal(size=table[:2]).astype(np.float32) for table in TABLES]


def prepare(model: Model, inputs: Inputs, given: Sequence[Any]) -> None:
    """Builds a model and gives it the weights that all have."""
    model(list(given))
    model.set_tables(initial_tables())
    width = sum(model.sizes)
    model.top.set_weights([np.linspace(-1, 1, width, dtype=np.float32)[:, np.newaxis], np.zeros(1, np.float32)])


def train_alone(inputs: Inputs, make_optimizer: Callable[[], Any]) -> Model:
    """Plain Keras on one device."""
    model, optimizer = Model(inputs), make_optimizer()
    prepare(model, inputs, batch_of(0, inputs)[0])
    for step in range(NUM_STEPS):
        tensors, labels = batch_of(step, inputs)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(tensors) - labels) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return model


def train_by_tape(
    ranks: Any,
    inputs: Inputs,
    make_optimizer: Callable[[], Any],
    *,
    cuts: Sequence[int] | None = None,
    in_graph: bool = False,
    **options: Any,
) -> Model:
    """The functional loop of the user guide; `cuts`: where the ranks' parts of the batch begin and end.

    In a graph the batch has a size that TensorFlow does not know.
    """
    cuts = cuts or [rank * BATCH // ranks.size for rank in range(ranks.size + 1)]
    start, stop = cuts[ranks.rank], cuts[ranks.rank + 1]
    # What makes the mean over the ranks that over all samples, where batches are uneven.
    scale = (stop - start) * ranks.size / BATCH
    model, optimizer = Model(inputs, options), make_optimizer()

    def given(step: int) -> tuple[list[Any], tf.Tensor]:
        tensors, labels = batch_of(step, inputs)
        if options.get("dp_input", True):
            return [part_of(tensor, start, stop) for tensor in tensors], labels[start:stop]
        return [tensors[number] for number in model.embedding.strategy.input_ids_list[ranks.rank]], labels[start:stop]

    def train_step(tensors: list[Any], labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(tensors) - labels) ** 2) * scale
        tape = dmp.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    first, labels = given(0)
    prepare(model, inputs, first)
    for step in range(NUM_STEPS):
        train_step(*given(step))
        if step == 0:
            if in_graph:  # From the second step on: a function that makes the optimizer's slots is traced twice.
                signature = [signature_of(first), *signature_of([labels])]
                train_step = tf.function(train_step, input_signature=signature, autograph=False)
            dmp.broadcast_variables(model.variables, root_rank=0)
            dmp.broadcast_variables(optimizer.variables(), root_rank=0)
    return model


def train_by_fit(ranks: Any, inputs: Inputs, optimizer: Any, **options: Any) -> Model:
    """`model.fit` with the distributed optimizer and the callback."""
    part = BATCH // ranks.size
    model = Model(inputs, options)
    batches = [batch_of(step, inputs) for step in range(NUM_STEPS)]
    start = ranks.rank * part
    own = [
        ([part_of(ids, start, start + part) for ids in ids_], labels[start : start + part]) for ids_, labels in batches
    ]
    prepare(model, inputs, own[0][0])
    distributed = dmp.DistributedOptimizer(optimizer)
    distributed.build(model.trainable_variables)  # Else the step is traced twice.
    model.compile(optimizer=distributed, loss="mse")
    signature = (tuple(signature_of(own[0][0])), *signature_of([own[0][1]]))
    data = tf.data.Dataset.from_generator(
        lambda: ((tuple(tensors), labels) for tensors, labels in own), output_signature=signature
    )
    model.fit(data, epochs=1, callbacks=[dmp.BroadcastGlobalVariablesCallback(0)], verbose=0)
    return model


def difference(model: Model, other: Model) -> float:
    """Returns the largest difference of any weight."""
    ours, theirs = [*model.get_tables(), *model.top.get_weights()], [*other.get_tables(), *other.top.get_weights()]
    return max(float(np.abs(one - two).max()) for one, two in zip(ours, theirs, strict=True))


def saved_tables(directory: Path) -> list[str]:
    """Writes tables to files and returns their paths."""
    paths = [str(directory / f"{number}.npy") for number in range(len(TABLES))]
    for path, table in zip(paths, initial_tables(), strict=True):
        np.save(path, table)
    return paths
