"""The rows of a table that learns its keys: a map from keys to rows of one variable.

Ranks agree without a word where they hold slices of one table: which row a key gets depends on the set of keys of each
step alone. So do initial values, on the key: neither ranks nor plan nor the order of keys matter.

Where the table lies on the host, its variable has some of its rows: keys become rows of the table, and these, once they
were brought, rows of the variable.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from rankhouse.kernels import tf_ops
from rankhouse.kernels.tf_ops.vocabulary import Entries
from rankhouse.kernels.vocabulary import VocabularyOptions
from rankhouse.training.plan import ShardSpec
from rankhouse.training.tables.distributions import distribution_of
from rankhouse.training.tables.host_rows import host_rows_of
from rankhouse.training.tables.initializers import keyed_bits, table_key
from rankhouse.training.tables.new_rows import make_renewable, start_rows
from rankhouse.training.tables.row_maps import NO_ROW
from rankhouse.training.tables.specs import EmbeddingSpec

# Initial values are drawn so many bytes at a time.
_BLOCK_BYTES = 64 << 20


class LearntRows:
    """The rows of one rectangle of a table with a vocabulary: a `RowMap`.

    Every training lookup is a step, in which no key that it was given goes: take one lookup for each update.

    Attributes:
        num_ids: None: every int64 is a key.
        vocabulary: The keys.
        num_rows: Rows of the rectangle.
        variable: [rows, columns] of the rectangle, in the table's dtype; of one on the host, [cached rows, columns].
        min_steps: In how many steps a key must be seen to get a row.
    """

    num_ids: int | None = None

    def __init__(
        self,
        spec: EmbeddingSpec,
        shard: ShardSpec,
        variable: tf.Variable,
        *,
        seed: int,
        step: tf.Variable,
        gather: Callable[[tf.Tensor], tf.Tensor] | None = None,
    ) -> None:
        """Begins without a key.

        Args:
            spec: The table, with a vocabulary.
            shard: The rectangle.
            variable: Of the rectangle, zeros.
            seed: Selects the initial values.
            step: int64 [], the number of training lookups, this one included.
            gather: Concatenates the keys of all ranks that hold the same rows; None: this rank's are all.
        """
        settings = spec.vocabulary
        assert settings is not None
        found = distribution_of(spec.embeddings_initializer, num_rows=spec.input_dim, dim=spec.output_dim)
        assert found is not None  # The spec has checked it.
        never = settings.when_full in ("error", "unknown")
        self.vocabulary = tf_ops.Vocabulary(
            VocabularyOptions(
                max_keys=shard.num_rows,
                first_id=0,
                unknown_id=NO_ROW,
                min_count=settings.min_steps,
                max_candidates=settings.max_candidates,
                eviction="never" if never else settings.when_full,
            )
        )
        self.variable, self.num_rows, self.min_steps = variable, shard.num_rows, settings.min_steps
        self._name, self._columns = spec.name, (shard.column_start, shard.column_stop)
        self._distribution, self._key = found, table_key(seed, spec.name)
        self._fails_when_full = settings.when_full == "error"
        self._step, self._gather = step, gather
        make_renewable(variable)

    def rows(self, ids: tf.Tensor, *, training: bool) -> tf.Tensor:
        """See `RowMap`. In training new keys get rows first, with initial values.

        Raises:
            tf.errors.InvalidArgumentError: All rows are taken, and the settings call that an error; or the table lies
                on the host, and its cache has too few rows.
        """
        if not training:
            return self._held(self.vocabulary.lookup(ids), training=False)
        new_keys, new_rows = self._learn(ids)
        with tf.control_dependencies([new_rows]):
            rows = self._held(self.vocabulary.lookup(ids), training=True)
        with tf.control_dependencies([self._start_new(new_keys, new_rows, after=rows)]):
            return tf.identity(rows)

    def known(self) -> Entries:
        """Returns the keys that have a row, in rising order."""
        entries = self.vocabulary.export()
        has_row = entries.ids != NO_ROW
        return Entries(*(tf.boolean_mask(column, has_row) for column in entries))

    def candidates(self) -> Entries:
        """Returns the keys that were seen, but have no row yet, in rising order."""
        entries = self.vocabulary.export()
        has_row = entries.ids != NO_ROW
        return Entries(*(tf.boolean_mask(column, ~has_row) for column in entries))

    def know(self, keys: npt.NDArray[np.int64]) -> None:
        """Has keys [n], in rising order, in rows 0 to n - 1, as if they were just learnt (only eagerly)."""
        num_keys = len(keys)
        self.vocabulary.restore(
            Entries(
                tf.constant(keys, tf.int64),
                tf.range(num_keys, dtype=tf.int64),
                tf.fill([num_keys], tf.constant(self.min_steps, tf.int64)),
                tf.fill([num_keys], self._step.read_value()),
            )
        )

    def start_all(self) -> None:
        """Has every row start anew, as zeros, and forgets all keys (only eagerly)."""
        self.vocabulary.restore(Entries(*(tf.zeros([0], tf.int64) for _ in Entries._fields)))
        if (host_rows := host_rows_of(self.variable)) is not None:
            host_rows.start_all()
            return
        num_rows, dim = self.variable.shape
        step = max(1, _BLOCK_BYTES // (4 * dim))
        for start in range(0, num_rows, step):
            rows = tf.range(start, min(start + step, num_rows), dtype=tf.int64)
            self.variable.scatter_update(tf.IndexedSlices(tf.zeros([len(rows), dim], self.variable.dtype), rows))
            start_rows(self.variable, rows)

    def _learn(self, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Takes note of the keys of a step; returns those that got a row, and their rows of the table."""
        keys = tf_ops.unique(ids).unique
        if self._gather is not None:
            keys = tf_ops.unique(self._gather(keys)).unique
        before = self.vocabulary.lookup(keys)
        self.vocabulary.observe(keys, step=self._step.read_value())
        after = self.vocabulary.lookup(keys)
        with tf.control_dependencies(self._fullness(keys, after)):
            is_new = before != after
            return tf.boolean_mask(keys, is_new), tf.boolean_mask(after, is_new)

    def _held(self, rows: tf.Tensor, *, training: bool) -> tf.Tensor:
        """Brings rows of the table where the variable has some of them only; returns rows of the variable."""
        host_rows = host_rows_of(self.variable)
        if host_rows is None:
            return rows
        there = tf.where(rows != NO_ROW)
        held = host_rows.rows(tf.gather_nd(rows, there), training=training)
        return tf.tensor_scatter_nd_update(rows, there, held)

    def _start_new(self, keys: tf.Tensor, rows: tf.Tensor, *, after: tf.Tensor) -> tf.Tensor:
        """Starts rows of new keys, after these rows were brought; returns what must be awaited before rows are read."""
        # With the handle TensorFlow starts rows after an update that stands before this in a function of several steps.
        return tf.cond(
            tf.size(rows) > 0,
            lambda: tf.py_function(self._start, [keys, rows, self.variable.handle, after], tf.bool),
            lambda: tf.constant(True),
        )

    def _fullness(self, keys: tf.Tensor, rows: tf.Tensor) -> list[tf.Operation]:
        if not self._fails_when_full:
            return []
        homeless = tf.boolean_mask(keys, rows == NO_ROW)
        is_full = (self.vocabulary.size() == self.num_rows) & (tf.size(homeless) > 0)
        # No quotes: an Assert in a graph escapes them.
        message = tf.strings.join(
            [
                f"table {self._name}: all {self.num_rows} rows of this rank are taken, and there is none for the key ",
                tf.strings.reduce_join(tf.strings.as_string(homeless[:1])),
                "; make input_dim larger (the capacity of a KeyedEmbedding, or of model.vocabularies in a recipe), or "
                "let other keys go by when_full",
            ]
        )
        check = tf.debugging.Assert(~is_full, [message])
        return [] if check is None else [check]

    def _start(self, keys: tf.Tensor, rows: tf.Tensor, *_: tf.Tensor) -> bool:
        """Gives new rows their initial values, and starts anew what optimizers keep beside them."""
        if (host_rows := host_rows_of(self.variable)) is not None:
            rows = tf.constant(host_rows.start(rows.numpy()))
        step = max(1, _BLOCK_BYTES // (4 * (self._columns[1] - self._columns[0])))
        for at in range(0, len(rows), step):
            part = slice(at, at + step)
            bits = keyed_bits(self._key, np.asarray(keys[part]), self._columns)
            values = tf.cast(self._distribution.of_bits(bits), self.variable.dtype)
            self.variable.scatter_update(tf.IndexedSlices(values, rows[part]))
            start_rows(self.variable, rows[part])
        return True
