"""The synthetic models as Keras models over a DistributedEmbedding, their inputs, and their training step.

Shapes: F inputs, B samples of this rank, N ids, E summed widths of all inputs, S columns averaged into one.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tf_keras
from numpy.typing import NDArray

from rankhouse.kernels.optimizer_settings import Adagrad, OptimizerSettings
from rankhouse.training.distributed_embedding import DistributedEmbedding
from rankhouse.training.errors import ModelError
from rankhouse.training.models.dense_products import dense
from rankhouse.training.models.synthetic_models import ID_EXPONENT, SyntheticModel
from rankhouse.training.optimizers.optimizers import Optimizer
from rankhouse.training.plan import Plan
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.specs import EmbeddingSpec, Input

# Of the benchmark's SGD; its other optimizers have Keras' defaults.
LEARNING_RATE = 0.03


class SyntheticBatch(NamedTuple):
    """One rank's part of a step.

    Attributes:
        numerical: float32 [B, num_numerical].
        ids: int64 [N], feature-major.
        lengths: int64 [F, B].
        labels: float32 [B].
    """

    numerical: tf.Tensor
    ids: tf.Tensor
    lengths: tf.Tensor
    labels: tf.Tensor


class SyntheticNetwork(tf_keras.Model):  # type: ignore[misc]
    """A synthetic model: pooled rows, averaged over neighbours, with numerical features through layers to a logit.

    Attributes:
        model: Its configuration.
        embedding: Its tables.
    """

    def __init__(
        self,
        model: SyntheticModel,
        *,
        ranks: Ranks | None = None,
        plan: Plan | None = None,
        seed: int = 0,
        precision: str = "float32",
    ) -> None:
        """Makes the tables that this rank holds, and the layers.

        Args:
            model: The configuration.
            ranks: The ranks that train together; by default this process alone.
            plan: Who holds which table, and as what; by default `make_plan`'s, in float32.
            seed: Of all initial values.
            precision: Keras' policy of the hidden layers: "float32", or "mixed_bfloat16" for products of bfloat16. The
                logit is float32 either way.

        Raises:
            PlanError: The plan is not for these tables or ranks.
        """
        super().__init__(name=model.name)
        self.model = model
        dtypes = plan.dtypes if plan else {}
        self.embedding = DistributedEmbedding(
            [
                EmbeddingSpec(table.num_rows, table.dim, table.name, dtype=dtypes.get(table.name, "float32"))
                for table in model.tables
            ],
            inputs=[Input(f"input_{number}", item.table) for number, item in enumerate(model.inputs)],
            ranks=ranks,
            plan=plan,
            seed=seed,
            name="embedding",
        )
        initializers = [tf_keras.initializers.GlorotUniform(seed + number) for number in range(len(model.mlp) + 1)]
        *hidden, last = zip((*model.mlp, 1), initializers, strict=True)
        self._layers_in_turn = [
            tf_keras.layers.Dense(width, "relu", kernel_initializer=initializer, dtype=precision)
            for width, initializer in hidden
        ]
        self._layers_in_turn.append(tf_keras.layers.Dense(last[0], kernel_initializer=last[1], dtype="float32"))
        width = model.layer_widths[0]
        for layer, units in zip(self._layers_in_turn, model.layer_widths[1:], strict=True):
            layer.build((None, width))
            width = units

    @property
    def dense_variables(self) -> list[tf.Variable]:
        """The weights and biases of the layers."""
        return [variable for layer in self._layers_in_turn for variable in layer.trainable_variables]

    def call(self, inputs: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> tf.Tensor:
        """Returns the logits float32 [B] of (numerical, ids, lengths); collective."""
        numerical, ids, lengths = inputs
        parts: tuple[tf.Tensor, ...] = (self.interact(self.embedding.lookup(ids, lengths)), numerical)
        for layer in self._layers_in_turn:
            parts = (dense(layer, *parts),)
        return parts[0][:, 0]

    def interact(self, pooled: tf.Tensor) -> tf.Tensor:
        """Averages neighbouring columns: [B, E] -> [B, E / S, rounded up]; at the ends over fewer."""
        stride = self.model.interaction_stride
        if stride == 1:
            return pooled
        return tf.nn.avg_pool1d(pooled[:, :, None], stride, stride, "SAME")[:, :, 0]


def capped(model: SyntheticModel, max_rows: int) -> SyntheticModel:
    """Returns the model with tables of at most so many rows, for machines that cannot hold it.

    Raises:
        ModelError: The cap is below 1.
    """
    if max_rows < 1:
        raise ModelError(f"cannot cap tables at {max_rows} rows; expected at least 1")
    groups = tuple(replace(group, num_rows=min(group.num_rows, max_rows)) for group in model.groups)
    return replace(model, groups=groups)


def synthetic_batches(
    model: SyntheticModel, *, batch_size: int, seed: int = 0, exponent: float = ID_EXPONENT
) -> Iterator[SyntheticBatch]:
    """Yields batches for ever: ids by a power law, the most frequent first, random numbers and labels.

    Args:
        model: The configuration.
        batch_size: Samples of each batch.
        seed: Of what is drawn; each rank takes its own.
        exponent: Of the power law; 0 is uniform.
    """
    rows = {table.name: table.num_rows for table in model.tables}
    lengths = tf.constant([[item.hotness] * batch_size for item in model.inputs], tf.int64)
    draws = np.random.default_rng(seed)
    while True:
        ids = [_draw(draws.random(batch_size * item.hotness), rows[item.table], exponent) for item in model.inputs]
        numerical = draws.random((batch_size, model.num_numerical), np.float32) * 100
        labels = draws.integers(0, 2, batch_size).astype(np.float32)
        yield SyntheticBatch(tf.constant(numerical), tf.constant(np.concatenate(ids)), lengths, tf.constant(labels))


def make_synthetic_step(
    network: SyntheticNetwork,
    settings: OptimizerSettings | None = None,
    *,
    learning_rate: float = LEARNING_RATE,
) -> Callable[[SyntheticBatch, int], tf.Tensor]:
    """Returns a function that trains on one batch and returns this rank's part of the mean loss.

    Its arguments are this rank's batch and the samples of all ranks together.
    """
    tables = [shard.variable for shard in network.embedding.shards]
    refs = {table.ref() for table in tables}
    others = [variable for variable in network.embedding.trainable_variables if variable.ref() not in refs]
    optimizer = Optimizer(
        settings or Adagrad(), tables=tables, dense=[*others, *network.dense_variables], learning_rate=learning_rate
    )
    variables = optimizer.variables

    @tf.function  # type: ignore[untyped-decorator]
    def step(batch: SyntheticBatch, num_samples: int) -> tf.Tensor:
        with tf.GradientTape() as tape:
            logits = network((batch.numerical, batch.ids, batch.lengths))
            losses = tf.nn.sigmoid_cross_entropy_with_logits(batch.labels, logits)
            loss = tf.reduce_sum(losses) / tf.cast(num_samples, tf.float32)
        gradients = network.embedding.sum_gradients(tape.gradient(loss, variables), variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return loss

    return step  # type: ignore[no-any-return]


def make_embedding_step(
    network: SyntheticNetwork, *, learning_rate: float = LEARNING_RATE
) -> Callable[[SyntheticBatch, tf.Tensor], tf.Tensor]:
    """Returns a function that looks a batch up and updates the tables by Adagrad: a step without the dense layers.

    Its arguments are this rank's batch and the gradient float32 [B, E] of what is found; it returns one number of that.
    """
    tables = [shard.variable for shard in network.embedding.shards]
    optimizer = Optimizer(Adagrad(), tables=tables, learning_rate=learning_rate)

    @tf.function  # type: ignore[untyped-decorator]
    def step(batch: SyntheticBatch, upstream: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            pooled = network.embedding.lookup(batch.ids, batch.lengths)
        gradients = tape.gradient(pooled, tables, output_gradients=upstream)
        optimizer.apply_gradients(zip(network.embedding.sum_gradients(gradients, tables), tables, strict=True))
        return pooled[0, 0]

    return step  # type: ignore[no-any-return]


def _draw(uniform: NDArray[np.float64], num_rows: int, exponent: float) -> NDArray[np.int64]:
    """Turns uniform numbers into ids as the benchmark's generator does."""
    if exponent == 0:
        return (uniform * num_rows).astype(np.int64)
    positions: NDArray[np.float64]
    if exponent == 1:  # What the other formula tends to.
        positions = (num_rows + 1.0) ** uniform
    else:
        power = 1 - exponent
        positions = (uniform * ((num_rows + 1.0) ** power - 1) + 1) ** (1 / power)
    return np.minimum(positions, num_rows).astype(np.int64) - 1
