"""The synthetic models as a user would write them without Rankhouse: Keras embedding layers and Keras' Adagrad."""

from collections.abc import Callable

import tensorflow as tf
import tf_keras as keras

from rankhouse.training.models.synthetic_models import SyntheticModel
from rankhouse.training.models.synthetic_network import LEARNING_RATE, SyntheticBatch


class KerasSynthetic:
    """A synthetic model in plain Keras, on one rank; its inputs have a fixed number of ids."""

    def __init__(self, model: SyntheticModel, *, precision: str) -> None:
        self.model = model
        self.tables = {table.name: keras.layers.Embedding(table.num_rows, table.dim) for table in model.tables}
        for layer in self.tables.values():
            layer.build(())
        layers = [keras.layers.Dense(width, "relu", dtype=precision) for width in model.mlp]
        self.mlp = keras.Sequential([*layers, keras.layers.Dense(1)])
        self.mlp.build((None, model.layer_widths[0]))
        self.optimizer = keras.optimizers.legacy.Adagrad(LEARNING_RATE)

    def step(self, batch: SyntheticBatch) -> float:
        """Trains on a batch and returns its mean loss."""
        return float(self._step(self._by_input(batch), batch.numerical, batch.labels))

    def embedding_step(self, batch: SyntheticBatch, upstream: tf.Tensor) -> float:
        """Looks a batch up, and updates the tables by a gradient [B, E] of what was found."""
        return float(self._embedding_step(self._by_input(batch), upstream))

    def _by_input(self, batch: SyntheticBatch) -> list[tf.Tensor]:
        """Returns the ids of each input as Keras takes them: [B, hotness]."""
        num_samples, hotness = batch.lengths.shape[1], [item.hotness for item in self.model.inputs]
        parts = tf.split(batch.ids, [num_samples * count for count in hotness])
        return [tf.reshape(part, [num_samples, count]) for part, count in zip(parts, hotness, strict=True)]

    def _look_up(self, ids: list[tf.Tensor]) -> tf.Tensor:
        rows = [self.tables[item.table](own) for item, own in zip(self.model.inputs, ids, strict=True)]
        return tf.concat([found[:, 0] if found.shape[1] == 1 else tf.reduce_sum(found, axis=1) for found in rows], 1)

    @tf.function  # type: ignore[untyped-decorator]
    def _step(self, ids: list[tf.Tensor], numerical: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            pooled = self._look_up(ids)
            stride = self.model.interaction_stride
            if stride > 1:
                pooled = tf.nn.avg_pool1d(pooled[:, :, None], stride, stride, "SAME")[:, :, 0]
            logits = self.mlp(tf.concat([pooled, numerical], axis=1))[:, 0]
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, logits))
        variables = [*self._table_variables(), *self.mlp.trainable_variables]
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss

    @tf.function  # type: ignore[untyped-decorator]
    def _embedding_step(self, ids: list[tf.Tensor], upstream: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            pooled = self._look_up(ids)
        variables = self._table_variables()
        gradients = tape.gradient(pooled, variables, output_gradients=upstream)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return pooled[0, 0]

    def _table_variables(self) -> list[tf.Variable]:
        return [layer.embeddings for layer in self.tables.values()]


def timed_step(model: SyntheticModel, batches: list[SyntheticBatch], part: str) -> Callable[[int], float]:
    """Returns what makes one step of a batch, of the part that `synthetic_models` was asked for."""
    network = KerasSynthetic(model, precision="mixed_bfloat16" if part == "step_bfloat16" else "float32")
    if part == "embedding":
        upstream = tf.random.stateless_normal([batches[0].lengths.shape[1], model.output_dim], seed=(1, 2))
        return lambda number: network.embedding_step(batches[number], upstream)
    return lambda number: network.step(batches[number])
