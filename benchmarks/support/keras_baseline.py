"""The same DLRM as a user would write it without Rankhouse: Keras embedding layers, and Horovod data parallel.

The dense part is Rankhouse's own (plain Keras), the batches and the optimizer's formula are the same; so what differs
is how embeddings are looked up, exchanged and updated.
"""

import numpy as np
import tensorflow as tf
import tf_keras as keras

from rankhouse.training.config import Config
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.data.rows import Batch
from rankhouse.training.models.ranking_model import build_dense


class KerasBaseline:
    """A model with `tf_keras.layers.Embedding` tables and Keras' Adagrad; IndexedSlices travel by allgather."""

    def __init__(self, config: Config, dataset: PreparedDataset, *, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        tables = dataset.tables.items()
        self.layers = {name: keras.layers.Embedding(table.num_rows, table.dim, name=name) for name, table in tables}
        for layer in self.layers.values():
            layer.build(())
        self.feature_layers = [self.layers[feature.table] for feature in dataset.spec.categorical]
        self.dense = build_dense(config, dataset, precision=config.training.precision)
        self.optimizer = keras.optimizers.legacy.Adagrad(config.optimizer.learning_rate)
        tables_variables = [layer.embeddings for layer in self.layers.values()]
        self.variables = [*tables_variables, *self.dense.trainable_variables]
        if num_ranks > 1:
            import horovod.tensorflow as hvd

            hvd.broadcast_variables(self.variables, root_rank=0)

    def step(self, batch: Batch) -> float:
        """Trains on this rank's part of a global batch of one-hot features and returns its mean loss."""
        ids_FB = np.reshape(batch.ids, batch.lengths.shape)
        return float(self._step(tf.constant(batch.dense), tf.constant(ids_FB), tf.constant(batch.labels)))

    @tf.function(reduce_retracing=True)
    def _step(self, dense: tf.Tensor, ids_FB: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows = [layer(ids) for layer, ids in zip(self.feature_layers, tf.unstack(ids_FB), strict=True)]
            logits = self.dense([dense, tf.concat(rows, axis=1)], portable=True)
            loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
        if self.num_ranks > 1:
            import horovod.tensorflow as hvd

            tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, self.variables)
        self.optimizer.apply_gradients(zip(gradients, self.variables, strict=True))
        return loss
