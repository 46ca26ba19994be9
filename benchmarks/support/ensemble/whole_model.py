"""The whole model as TensorFlow alone would serve it: raw columns to scores in one SavedModel.

What TensorFlow offers for it, each at its best: vocabularies are hash tables of strings in the graph, tables are
variables that `tf.gather` reads, the dense part is the trained Keras model in TensorFlow's own operations.
"""

from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import tensorflow as tf

from rankhouse.embedding_cache.format.feature import DenseSteps
from rankhouse.embedding_cache.format.version import Version
from rankhouse.embedding_cache.format.vocabulary import FIRST_KNOWN_ID, MISSING_ID, UNKNOWN_ID, TextValues, Vocabularies
from rankhouse.training.models.dlrm import DLRM


class WholeModel(tf.Module):
    """A version's model.

    Its `score` maps float64 [B, num_dense], NaN where missing, and texts [B, F], empty where missing, to scores,
    float32 [B].
    """

    def __init__(self, version: Version, dense: DLRM) -> None:
        """Takes tables and vocabularies from a version, and the dense part from the run that it was exported from.

        Raises:
            ValueError: The model has features that are no single texts; raw columns would have to be of other types.
        """
        super().__init__()
        transform = version.transform()
        if any(feature.is_list or feature.dtype != "text" for feature in transform.categorical):
            raise ValueError(f"version {version.name} has features that are no single texts; give one that has none")
        # Not the Keras model itself: it would be saved with its calls by our own operations, which TensorFlow has not.
        self._dense_weights = dense.named_variables()
        self._dense = partial(dense.__call__, portable=True)
        self._steps = [feature.steps for feature in transform.features if feature.steps is not None]
        self._tables = [str(feature.table) for feature in transform.categorical]
        self._vocabularies = {name: _hash_table(transform.vocabularies, name) for name in set(self._tables)}
        self._rows = {
            table.name: tf.Variable(np.concatenate(list(version.blocks(table.name))), trainable=False, name=table.name)
            for table in version.tables
        }
        signature = [
            tf.TensorSpec([None, len(self._steps)], tf.float64, name="float_values"),
            tf.TensorSpec([None, len(self._tables)], tf.string, name="texts"),
        ]
        self.score = tf.function(self._score, input_signature=signature)

    def save(self, folder: Path) -> None:
        """Writes the SavedModel."""
        tf.saved_model.save(self, str(folder), signatures=self.score)

    def _score(self, float_values: tf.Tensor, texts: tf.Tensor) -> dict[str, tf.Tensor]:
        columns = tf.unstack(float_values, axis=1)
        dense = tf.stack([_stepped(column, steps) for column, steps in zip(columns, self._steps, strict=True)], axis=1)
        rows = [
            tf.gather(self._rows[table], self._vocabularies[table].lookup(column))
            for table, column in zip(self._tables, tf.unstack(texts, axis=1), strict=True)
        ]
        return {"scores": tf.sigmoid(self._dense((dense, tf.concat(rows, axis=1))))}


def _hash_table(vocabularies: Vocabularies, table: str) -> tf.lookup.StaticHashTable:
    ids = np.arange(FIRST_KNOWN_ID, vocabularies.num_rows[table])
    values = vocabularies.values(table, ids)
    assert isinstance(values, TextValues)
    data, ends = values.data.tobytes(), values.offsets.tolist()
    texts = [data[begin:end] for begin, end in pairwise(ends)]
    return tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer([b"", *texts], [MISSING_ID, *ids.tolist()], tf.string, tf.int64),
        default_value=UNKNOWN_ID,
    )


def _stepped(values: tf.Tensor, steps: DenseSteps) -> tf.Tensor:
    """What `format.transform.stepped` does, in TensorFlow's operations."""
    values = tf.where(tf.math.is_nan(values), tf.constant(steps.fill, tf.float64), values)
    if steps.clip_min is not None:
        values = tf.maximum(values, tf.constant(steps.clip_min, tf.float64))
    if steps.clip_max is not None:
        values = tf.minimum(values, tf.constant(steps.clip_max, tf.float64))
    values = tf.cast(values, tf.float32)
    if steps.log:
        values = tf.math.log(values + 1)
    if steps.mean is not None:
        values = values - steps.mean
        if steps.std is not None and steps.std > 0:
            values = values / steps.std
    return values
