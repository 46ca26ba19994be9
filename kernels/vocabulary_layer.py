"""The Keras layer that turns keys into ids, learning new keys as it trains."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras

from rankhouse.kernels.errors import ArgumentError
from rankhouse.kernels.tf_ops.vocabulary import Entries, Evicted, Vocabulary, unique
from rankhouse.kernels.vocabulary import VocabularyOptions


@tf_keras.saving.register_keras_serializable("rankhouse")
class DynamicVocabulary(tf_keras.layers.Layer):  # type: ignore[misc]
    """Turns keys into ids of an embedding table; with `training=True` it takes note of the keys first.

    Evaluation and serving never add a key. Every call in training is a step of its own, in which no key that it was
    given is evicted: give features that share a vocabulary in one call, as a list or dict.

    `tf.train.Checkpoint`, SavedModels, weights in TensorFlow's format, `.weights.h5` and `.keras` files hold what it
    knows; Keras' older `.h5` files, `get_weights` and `set_weights` do not, as Keras gives them variables alone.

    Args:
        max_keys: Most keys with an id at one time.
        first_id: The ids given out are first_id to first_id + max_keys - 1: an embedding table for them and for
            unknown_id 0 has max_keys + 1 rows.
        unknown_id: The id of keys that have none.
        min_count: A key gets an id once it was seen so often.
        max_candidates: Most keys remembered that have no id yet; 0: as many as max_keys.
        eviction: "never", "oldest" or "rarest": which key makes room when all ids are given out.
        gather: Gives the concatenation of what all ranks pass, int64 [n, 2] each, in any order. With it the ids are the
            same on all ranks, and those of one rank that sees all keys. Every rank must call the layer in every step.
        on_evicted: Called in every training step, also in `tf.function`, with what went (often nothing): the rows of
            these ids, and the state of their optimizer, are to start anew.

    gather and on_evicted are not in `get_config`: set the attributes of a model that was loaded.

    Raises:
        tf.errors.InvalidArgumentError: A number is out of its range.
        ArgumentError: eviction is not one of these.
    """

    def __init__(
        self,
        max_keys: int,
        *,
        first_id: int = 1,
        unknown_id: int = 0,
        min_count: int = 1,
        max_candidates: int = 0,
        eviction: str = "never",
        gather: Callable[[tf.Tensor], tf.Tensor] | None = None,
        on_evicted: Callable[[Evicted], Any] | None = None,
        **layer_options: Any,
    ) -> None:
        super().__init__(autocast=False, **layer_options)
        self.gather = gather
        self.on_evicted = on_evicted
        self.vocabulary = Vocabulary(
            VocabularyOptions(
                max_keys=max_keys,
                first_id=first_id,
                unknown_id=unknown_id,
                min_count=min_count,
                max_candidates=max_candidates,
                eviction=eviction,
            )
        )
        with tf.device("CPU:0"):
            self.step = self.add_weight("step", (), tf.int64, "zeros", trainable=False)

    def call(self, keys: Any, training: bool | tf.Tensor | None = None) -> Any:
        """Gives int64 ids in the place of keys.

        Args:
            keys: int32 or int64 of any shape, dense, ragged or sparse, or a list or dict of such.
            training: Whether to take note of the keys.

        Raises:
            ArgumentError: The keys are not integers.
            UnsupportedError: XLA was to compile it.
        """
        if isinstance(training, tf.Tensor):
            tf.cond(tf.cast(training, tf.bool), lambda: self._observe(keys), tf.no_op)
        elif training:
            self._observe(keys)
        return tf.nest.map_structure(lambda tensor: _map_values(self.vocabulary.lookup, tensor), keys)

    def get_config(self) -> dict[str, Any]:
        """Gives the numbers and the eviction that the layer was made with."""
        return {**super().get_config(), **asdict(self.vocabulary.options)}

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Ids have the shape of their keys."""
        return input_shape

    def save_own_variables(self, store: Any) -> None:
        """Writes what the vocabulary knows, and the step, to a `.weights.h5` or `.keras` file."""
        store["step"] = self.step.numpy()
        for name, column in self.vocabulary.export()._asdict().items():
            store[name] = column.numpy()

    def load_own_variables(self, store: Any) -> None:
        """Reads what `save_own_variables` wrote."""
        self.step.assign(np.asarray(store["step"]))
        self.vocabulary.restore(Entries(*(tf.constant(np.asarray(store[name])) for name in Entries._fields)))

    def _observe(self, keys: Any) -> tf.Operation:
        values = tf.concat([tf.reshape(values, [-1]) for values in _all_values(keys)], axis=0)
        # Each rank sends a key once, with its count.
        found = unique(values)
        seen = tf.stack([found.unique, found.counts], axis=1)
        if self.gather is not None:
            seen = tf.reshape(self.gather(seen), [-1, 2])
        evicted = self.vocabulary.observe(seen[:, 0], seen[:, 1], step=self.step.assign_add(1))
        if self.on_evicted is not None:
            self.on_evicted(evicted)
        return tf.no_op()


def _all_values(keys: Any) -> Iterator[tf.Tensor]:
    for tensor in tf.nest.flatten(keys):
        if isinstance(tensor, tf.RaggedTensor):
            yield _to_int64(tensor.flat_values)
        else:
            yield _to_int64(tensor.values if isinstance(tensor, tf.SparseTensor) else tensor)


def _map_values(function: Callable[[tf.Tensor], tf.Tensor], tensor: Any) -> Any:
    if isinstance(tensor, tf.RaggedTensor):
        return tensor.with_flat_values(function(_to_int64(tensor.flat_values)))
    if isinstance(tensor, tf.SparseTensor):
        return tf.SparseTensor(tensor.indices, function(_to_int64(tensor.values)), tensor.dense_shape)
    return function(_to_int64(tensor))


def _to_int64(keys: tf.Tensor) -> tf.Tensor:
    keys = tf.convert_to_tensor(keys)
    if keys.dtype not in (tf.int32, tf.int64):
        raise ArgumentError(f"keys are {keys.dtype.name}: expected int32 or int64")
    return tf.cast(keys, tf.int64)
