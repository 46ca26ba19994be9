"""Unique keys, and vocabularies that live in TensorFlow."""

from dataclasses import asdict
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.framework.auto_control_deps_utils import register_read_only_resource_op

from rankhouse.kernels.tf_ops.native import check_not_compiled, ops
from rankhouse.kernels.vocabulary import EVICTIONS, VocabularyOptions

# In a tf.function these may run side by side, and in any order between two ops that change the vocabulary.
register_read_only_resource_op("RankhouseVocabularyLookup")
register_read_only_resource_op("RankhouseVocabularySize")
register_read_only_resource_op("RankhouseVocabularyExport")


class UniqueKeys(NamedTuple):
    """The distinct keys: keys[n] == unique[inverse[n]].

    unique: int64 [U], increasing. inverse: int64 [N]. counts: int64 [U], how often each came.
    """

    unique: tf.Tensor
    inverse: tf.Tensor
    counts: tf.Tensor


class Evicted(NamedTuple):
    """Keys that went, int64 [E], and the ids that they had, int64 [E]; the rows of these ids start anew."""

    keys: tf.Tensor
    ids: tf.Tensor


class Entries(NamedTuple):
    """All that a vocabulary knows, int64 [M] each, by increasing key; a candidate has the unknown id."""

    keys: tf.Tensor
    ids: tf.Tensor
    counts: tf.Tensor
    last_steps: tf.Tensor


def unique(keys: tf.Tensor) -> UniqueKeys:
    """Finds the distinct keys of int64 [N], in increasing order.

    Raises:
        UnsupportedError: XLA was to compile it.
    """
    check_not_compiled("unique")
    return UniqueKeys(*ops().rankhouse_unique(keys=keys))


class Vocabulary(tf.saved_model.experimental.TrackableResource):  # type: ignore[misc]
    """A map from keys to ids that learns keys as they come: `rankhouse.kernels.vocabulary.Vocabulary` in TensorFlow.

    Its methods also work in `tf.function`, where TensorFlow keeps those that change it in order. `tf.train.Checkpoint`
    and SavedModels save and restore it with what it knows. Any thread may call any method.

    Raises:
        tf.errors.InvalidArgumentError: An option is out of its range, or the unknown id is one that a key may get.
    """

    def __init__(self, options: VocabularyOptions) -> None:
        super().__init__(device="CPU:0")
        self.options = options
        # Here, and not at the first use, so that wrong options are refused here.
        _ = self.resource_handle

    def lookup(self, keys: tf.Tensor) -> tf.Tensor:
        """Gives the ids of int64 keys of any shape, and the unknown id where a key has none. Changes nothing.

        Raises:
            UnsupportedError: XLA was to compile it.
        """
        return ops().rankhouse_vocabulary_lookup(vocabulary=self._checked_handle(), keys=keys)

    def observe(self, keys: tf.Tensor, counts: tf.Tensor | None = None, *, step: int | tf.Tensor) -> Evicted:
        """Takes note of the keys of a step of training, and gives ids to those seen often enough.

        They get the smallest free ids in the order of their values; where there is none, keys that were not seen in
        this step go, as `eviction` says.

        Args:
            keys: int64 [N]. Duplicates add up.
            counts: int64 [N], how often each came; None: once each. A key that came 0 times was not seen.
            step: Not below that of any call before.

        Returns:
            What went, in the order in which it went.

        Raises:
            UnsupportedError: XLA was to compile it.
            tf.errors.InvalidArgumentError: The step goes back, or a count is negative; nothing changed.
        """
        return Evicted(
            *ops().rankhouse_vocabulary_observe(
                vocabulary=self._checked_handle(),
                step=tf.cast(step, tf.int64),
                keys=keys,
                counts=[] if counts is None else [counts],
            )
        )

    def evict(self, *, min_step: int | tf.Tensor, min_count: int | tf.Tensor = 0) -> Evicted:
        """Evicts every key last seen before `min_step`, and every one seen fewer than `min_count` times.

        Candidates go too, but are not reported.

        Returns:
            What went, by increasing key.

        Raises:
            UnsupportedError: XLA was to compile it.
        """
        return Evicted(
            *ops().rankhouse_vocabulary_evict(
                vocabulary=self._checked_handle(),
                min_step=tf.cast(min_step, tf.int64),
                min_count=tf.cast(min_count, tf.int64),
            )
        )

    def size(self) -> tf.Tensor:
        """Gives the number of keys with an id, int64 [].

        Raises:
            UnsupportedError: XLA was to compile it.
        """
        return ops().rankhouse_vocabulary_size(vocabulary=self._checked_handle()).size

    def export(self) -> Entries:
        """Gives all entries, candidates too.

        Raises:
            UnsupportedError: XLA was to compile it.
        """
        return Entries(*ops().rankhouse_vocabulary_export(vocabulary=self._checked_handle()))

    def restore(self, entries: Entries) -> tf.Operation | None:
        """Replaces all entries by those that `export` gave.

        Returns:
            The operation, in graphs; None where it ran at once.

        Raises:
            UnsupportedError: XLA was to compile it.
            tf.errors.InvalidArgumentError: Keys do not increase, an id is there twice or out of range, or there are
                more candidates than this vocabulary may have; nothing changed.
        """
        return ops().rankhouse_vocabulary_import(vocabulary=self._checked_handle(), **entries._asdict())

    def _checked_handle(self) -> tf.Tensor:
        """Returns the resource for an op that is about to be made."""
        check_not_compiled("a vocabulary")
        return self.resource_handle

    # What tf.saved_model and tf.train.Checkpoint call.

    def _create_resource(self) -> tf.Tensor:
        return ops().rankhouse_vocabulary(**{**asdict(self.options), "eviction": EVICTIONS[self.options.eviction]})

    def _initialize(self) -> None:
        pass

    def _destroy_resource(self) -> None:
        pass  # it goes with its handle

    def _serialize_to_tensors(self) -> dict[str, tf.Tensor]:
        return dict(self.export()._asdict())

    def _restore_from_tensors(self, restored_tensors: dict[str, tf.Tensor]) -> Any:
        return self.restore(Entries(**restored_tensors))
