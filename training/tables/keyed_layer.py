"""A Keras layer that describes a table which learns its keys."""

from dataclasses import asdict
from typing import Any

import tensorflow as tf
import tf_keras

from rankhouse.training.tables.specs import VocabularySettings


@tf_keras.saving.register_keras_serializable("rankhouse")
class KeyedEmbedding(tf_keras.layers.Embedding):  # type: ignore[misc]
    """An embedding that is looked up by any int64 keys, in a model that `distributed_model` is to spread.

    It holds no table: until the model is spread it can be called to put the model together, but not be run.

    Args:
        input_dim: The most keys that have a row at a time.
        output_dim: Width of a row.
        vocabulary: How it learns keys; `VocabularySettings`, or a mapping of them.
        layer_options: Those of Keras' Embedding.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        vocabulary: VocabularySettings | dict[str, Any] | None = None,
        **layer_options: Any,
    ) -> None:
        super().__init__(input_dim, output_dim, **layer_options)
        given = vocabulary or VocabularySettings()
        self.vocabulary_settings = given if isinstance(given, VocabularySettings) else VocabularySettings(**given)

    def build(self, input_shape: Any = None) -> None:
        """Makes no table."""
        self.built = True

    def call(self, inputs: Any) -> Any:
        """Says what shape rows will have.

        Raises:
            tf.errors.InvalidArgumentError: It is run.
        """
        if isinstance(inputs, tf.RaggedTensor):
            return inputs.with_flat_values(self.call(inputs.flat_values))
        said = f"{self.name} holds no table: give its model to distributed_model, and run what that returns"
        with tf.control_dependencies([tf.debugging.Assert(tf.constant(False), [said])]):
            rows = tf.zeros(tf.concat([tf.shape(inputs), [self.output_dim]], axis=0), self.compute_dtype)
        return tf.ensure_shape(rows, [*inputs.shape, self.output_dim])

    def get_config(self) -> dict[str, Any]:
        """Returns what makes an equal layer."""
        return {**super().get_config(), "vocabulary": asdict(self.vocabulary_settings)}
