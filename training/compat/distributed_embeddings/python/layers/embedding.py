"""The Keras layers `Embedding`, `IntegerLookup` and `ConcatOneHotEmbedding`."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import tensorflow as tf
import tf_keras

from rankhouse.kernels import layers, tf_ops
from rankhouse.kernels.bags import FixedHotness
from rankhouse.kernels.vocabulary_layer import DynamicVocabulary
from rankhouse.training.compat.distributed_embeddings.python.layers.world import world

# How a vocabulary names what it does not know, as Keras' IntegerLookup does.
_UNKNOWN_KEY = -1


@tf_keras.saving.register_keras_serializable("distributed_embeddings")
class Embedding(layers.Embedding):
    """A table of rows that ids select, with or without pooling.

    Everything is that of `rankhouse.kernels.layers.Embedding`: ids may be dense, ragged or sparse, an empty bag gives
    zeros, an id that is no row is an error. A configuration of `tf_keras.layers.Embedding` makes one, with its
    `mask_zero`.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        embeddings_regularizer: Any = None,
        activity_regularizer: Any = None,
        embeddings_constraint: Any = None,
        combiner: str | None = None,
        use_custom_kernel: bool = True,
        **kwargs: Any,
    ) -> None:
        """Describes the layer; its table is made on the first call.

        Args:
            input_dim: The number of rows.
            output_dim: The width of a row.
            embeddings_initializer: A Keras initializer of the table.
            embeddings_regularizer: A Keras regularizer of the table.
            activity_regularizer: A Keras regularizer of the result.
            embeddings_constraint: A Keras constraint of the table.
            combiner: None, "sum", "mean" or "sqrtn".
            use_custom_kernel: Kept in the configuration; there is one set of kernels, which runs on every machine.
            kwargs: Those of `rankhouse.kernels.layers.Embedding`.

        Raises:
            ArgumentError: A setting is out of its range (also a ValueError).
        """
        # Like Keras' layer, so that a Sequential model knows its variables before it is called.
        kwargs.setdefault("input_shape", (None,))
        super().__init__(
            input_dim,
            output_dim,
            embeddings_initializer,
            embeddings_regularizer,
            activity_regularizer,
            embeddings_constraint,
            combiner=combiner,
            **kwargs,
        )
        self.use_custom_kernel = use_custom_kernel

    def get_config(self) -> dict[str, Any]:
        """Returns what makes an equal layer."""
        return {**super().get_config(), "use_custom_kernel": self.use_custom_kernel}


@tf_keras.saving.register_keras_serializable("distributed_embeddings")
class IntegerLookup(tf_keras.layers.Layer):  # type: ignore[misc]
    """Turns integer keys into ids from 1 on, learning the keys that it is called with; 0 stands for unknown ones.

    New keys get their ids in the order in which they first appear, those of rank 0 first. Once `max_tokens` keys have
    one, others are 0, and so is -1, always. `evaluate` and `predict` add none. On several ranks all learn the keys of
    all, so an id means the same on each; every rank must call the layer in every step of training.
    """

    def __init__(self, max_tokens: int, use_gpu: bool = True, **kwargs: Any) -> None:
        """Makes an empty vocabulary.

        Args:
            max_tokens: Most keys with an id; the embedding table after it needs max_tokens + 1 rows.
            use_gpu: Kept in the configuration; the vocabulary lies in main memory, and counts keys either way.
            kwargs: Those of a Keras layer.

        Raises:
            tf.errors.InvalidArgumentError: `max_tokens` is below 1.
        """
        super().__init__(**{**kwargs, "autocast": False})
        self.max_tokens = int(max_tokens)
        self.capacity = self.max_tokens + 1
        self.use_gpu = use_gpu
        self._dynamic = DynamicVocabulary(self.max_tokens, name=f"{self.name}_vocabulary")
        with tf.device("CPU:0"):
            # The vocabulary gives new keys rising ids in the order of their values: here is the id of each of those.
            self._ids = self.add_weight("ids", (self.capacity,), tf.int64, "zeros", trainable=False)

    def call(self, inputs: Any, training: bool | tf.Tensor = True) -> Any:
        """Gives int64 ids in the place of keys, int32 or int64 of any shape, dense, ragged or sparse."""
        values = inputs if isinstance(inputs, tf.RaggedTensor | tf.SparseTensor) else tf.convert_to_tensor(inputs)
        keys = getattr(values, "flat_values", getattr(values, "values", values))
        if isinstance(training, tf.Tensor):
            tf.cond(tf.cast(training, tf.bool), lambda: self._learn(keys), tf.no_op)
        elif training is not False:
            self._learn(keys)
        found = self._dynamic(values, training=False)
        if isinstance(found, tf.RaggedTensor):
            return found.with_flat_values(tf.gather(self._ids, found.flat_values))
        if isinstance(found, tf.SparseTensor):
            return found.with_values(tf.gather(self._ids, found.values))
        return tf.gather(self._ids, found)

    def get_vocabulary(self) -> list[int]:
        """Returns the keys in the order of their ids, after -1 for the unknown ones."""
        entries = self._dynamic.vocabulary.export()
        ids, keys = tf.gather(self._ids, entries.ids).numpy(), entries.keys.numpy()
        known = sorted((number, key) for number, key in zip(ids.tolist(), keys.tolist(), strict=True) if number)
        return [_UNKNOWN_KEY, *(key for _, key in known)]

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Ids have the shape of their keys."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Returns what makes an equal, empty layer."""
        return {**super().get_config(), "max_tokens": self.max_tokens, "use_gpu": self.use_gpu}

    def _learn(self, keys: tf.Tensor) -> tf.Operation:
        """Takes note of the keys [...] of all ranks, and gives the next ids to those that have none and still fit."""
        keys = tf.cast(tf.reshape(keys, [-1]), tf.int64)
        own = tf.unique_with_counts(tf.boolean_mask(keys, keys != _UNKNOWN_KEY), tf.int64)
        seen = tf.stack([own.y, own.count], axis=1)
        if world().size > 1:
            seen = world().allgather(seen, name=f"{self.name}_keys")
        keys, first = tf.unique(seen[:, 0])
        counts = tf.math.unsorted_segment_sum(seen[:, 1], first, tf.size(keys))
        vocabulary = self._dynamic.vocabulary
        size, is_new = vocabulary.size(), vocabulary.lookup(keys) == 0
        fits = ~is_new | (tf.cumsum(tf.cast(is_new, tf.int64)) + size <= self.max_tokens)
        new = tf.boolean_mask(keys, is_new & fits)
        step = self._dynamic.step.assign_add(1)
        vocabulary.observe(tf.boolean_mask(keys, fits), tf.boolean_mask(counts, fits), step=step)
        ids = size + 1 + tf.range(tf.size(new, tf.int64))
        self._ids.scatter_update(tf.IndexedSlices(ids, vocabulary.lookup(new)))
        return tf.no_op()


@tf_keras.saving.register_keras_serializable("distributed_embeddings")
class ConcatOneHotEmbedding(tf_keras.layers.Layer):  # type: ignore[misc]
    """Several features, each with one id and rows of one width, in one variable `params`."""

    def __init__(self, feature_sizes: Sequence[int], embedding_width: int, **kwargs: Any) -> None:
        """Makes the table.

        Args:
            feature_sizes: Rows of each feature.
            embedding_width: Width of every row.
            kwargs: Those of a Keras layer.
        """
        super().__init__(**{**kwargs, "autocast": False})
        self.feature_sizes = list(feature_sizes)
        self.embedding_width = embedding_width
        self.params = self.add_weight("params", shape=[sum(self.feature_sizes), embedding_width], dtype=tf.float32)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """Looks up ids [B, F], one of each feature; returns [B, F, embedding_width].

        Raises:
            tf.errors.InvalidArgumentError: An id is not a row of its own feature.
        """
        ids = tf.ensure_shape(tf.cast(inputs, tf.int64), [None, len(self.feature_sizes)])
        sizes = tf.constant(self.feature_sizes, tf.int64)
        starts = tf.constant([0, *accumulate(self.feature_sizes[:-1])], tf.int64)
        # Checked here: in the shared variable an id too large would be a row of the next feature.
        rows = list(self.feature_sizes)
        message = f"an id is not a row of its feature in {self.name!r}, whose features have {rows} rows"
        inside = tf.debugging.assert_equal(tf.reduce_all((ids >= 0) & (ids < sizes)), True, message)
        with tf.control_dependencies([] if inside is None else [inside]):
            flat = tf.reshape(ids + starts, [-1])
        rows = tf_ops.pooled_lookup([self.params], flat, FixedHotness((1,)), feature_tables=[0], combiners=["none"])
        return tf.reshape(rows, [-1, len(self.feature_sizes), self.embedding_width])

    def get_config(self) -> dict[str, Any]:
        """Returns what makes an equal layer."""
        config = {"feature_sizes": list(self.feature_sizes), "embedding_width": self.embedding_width}
        return {**super().get_config(), **config}
