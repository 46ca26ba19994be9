"""TensorFlow's own ways, Keras' optimizers on their IndexedSlices, and our operations as TensorFlow users call them.

All are in tf.function and take ids that lie ready as TensorFlow likes them. Lookups give [B, F * D].
"""

import os
from collections.abc import Callable, Sequence

import numpy as np

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["TF_USE_LEGACY_KERAS"] = "1"

import tensorflow as tf
import tf_keras as keras

from benchmarks.support.embedding.candidate import (
    EPSILON,
    FIRST_ACCUMULATOR,
    LEARNING_RATE,
    Candidate,
    compared_samples,
)
from benchmarks.support.embedding.cells import Cell, Pattern, TableShape
from rankhouse.kernels import tf_ops
from rankhouse.kernels.bags import FixedHotness
from rankhouse.kernels.optimizer_settings import Adagrad

ROWS_AT_ONCE = 100_000
# Both lookups that Keras' users write; the faster one is measured.
KERAS = ("gather", "sparse")
# A function for each cell is no mistake here.
tf.get_logger().setLevel("ERROR")


class TensorflowCandidates:
    """Candidates in TensorFlow."""

    def __init__(self, num_threads: int) -> None:
        tf.config.threading.set_intra_op_parallelism_threads(num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(num_threads)

    def set_tables(self, tables: TableShape) -> None:
        """Makes the tables as variables."""
        self._rows: list[tf.Variable] = []
        self._tables, self._pattern = tables, Pattern(tables)
        buffer = np.empty((ROWS_AT_ONCE, tables.dim), np.float32)
        for table in range(tables.num_tables):
            rows = tf.Variable(tf.zeros((tables.rows, tables.dim)))
            for start in range(0, tables.rows, ROWS_AT_ONCE):
                part = buffer[: tables.rows - start]
                self._pattern.fill(part.reshape(-1), table, start)
                # Not rows[start:...].assign(): it reads all rows first, and then writes into a copy.
                tf.raw_ops.ResourceStridedSliceAssign(
                    ref=rows.handle, begin=[start, 0], end=[start + len(part), tables.dim], strides=[1, 1], value=part
                )
            self._rows.append(rows)
        if tables.training:
            settings = {"learning_rate": LEARNING_RATE, "epsilon": EPSILON}
            self._legacy = keras.optimizers.legacy.Adagrad(initial_accumulator_value=FIRST_ACCUMULATOR, **settings)
            self._legacy._create_all_weights(self._rows)
            self._keras = keras.optimizers.Adagrad(initial_accumulator_value=FIRST_ACCUMULATOR, **settings)
            self._keras.build(self._rows)

    def make(self, cell: Cell, ids: np.ndarray, gradient: np.ndarray) -> list[Candidate]:
        """Returns the candidates for a cell."""
        self._bag_shape = (cell.batch_size, cell.hotness)
        self._pairs = tf.constant(np.indices(self._bag_shape).reshape(2, -1).T)
        matrices = [[tf.constant(feature) for feature in batch] for batch in ids]
        self._inputs = {
            "gather": matrices,
            "sparse": matrices,
            "ours": [tf.constant(batch.reshape(-1)) for batch in ids],
        }
        self._lookups = {"gather": self._gather, "sparse": self._lookup_sparse, "ours": self._pooled_lookup}
        self._gradient = tf.constant(gradient)
        return self._training() if cell.tables.training else self._forward(cell)

    def _gather(self, ids: list[tf.Tensor]) -> tf.Tensor:
        return _side_by_side(
            [tf.reduce_sum(tf.gather(rows, matrix), axis=1) for rows, matrix in zip(self._rows, ids, strict=True)]
        )

    def _lookup_sparse(self, ids: list[tf.Tensor]) -> tf.Tensor:
        bags = [tf.SparseTensor(self._pairs, tf.reshape(matrix, [-1]), self._bag_shape) for matrix in ids]
        return _side_by_side(
            [
                tf.nn.embedding_lookup_sparse(rows, bag, None, combiner="sum")
                for rows, bag in zip(self._rows, bags, strict=True)
            ]
        )

    def _pooled_lookup(self, ids: tf.Tensor) -> tf.Tensor:
        num_tables = len(self._rows)
        bags = FixedHotness((self._bag_shape[1],) * num_tables)
        return tf_ops.pooled_lookup(
            self._rows, ids, bags, feature_tables=range(num_tables), combiners=["sum"] * num_tables
        )

    # -- Lookup

    def _forward(self, cell: Cell) -> list[Candidate]:
        names = {"lookup_sparse": "sparse", "tf.gather": "gather", "Rankhouse TF op": "ours"}
        return [self._lookup(name, way, cell) for name, way in names.items()]

    def _lookup(self, name: str, way: str, cell: Cell) -> Candidate:
        function, inputs, last = tf.function(self._lookups[way]), self._inputs[way], []

        def run(batch: int) -> None:
            last[:] = [function(inputs[batch])]

        def result(_: Sequence[np.ndarray]) -> np.ndarray:
            return tf.gather(last[0], compared_samples(cell.batch_size)).numpy()

        return Candidate(name, run, result, lambda _: None)

    # -- Lookup, backward and one step of the optimizer

    def _training(self) -> list[Candidate]:
        legacy_slots = [self._legacy.get_slot(rows, "accumulator") for rows in self._rows]

        def keras_step(optimizer: keras.optimizers.Optimizer) -> Callable[[list[tf.IndexedSlices]], None]:
            return lambda gradients: optimizer.apply_gradients(zip(gradients, self._rows, strict=True))

        settings = Adagrad(epsilon=EPSILON)

        def our_step(gradients: list[tf.IndexedSlices]) -> None:
            for rows, slot, gradient in zip(self._rows, legacy_slots, gradients, strict=True):
                tf_ops.apply(rows, tf_ops.Slots((slot,)), gradient, settings, learning_rate=LEARNING_RATE)

        legacy = [self._trained("Keras legacy Adagrad", way, keras_step(self._legacy), legacy_slots) for way in KERAS]
        faster = min(range(len(KERAS)), key=lambda index: _seconds(legacy[index]))
        return [
            legacy[faster],
            self._trained("Keras Adagrad", KERAS[faster], keras_step(self._keras), self._keras._accumulators),
            self._trained("Rankhouse TF ops, Adagrad", "ours", our_step, legacy_slots),
        ]

    def _trained(
        self,
        name: str,
        way: str,
        apply: Callable[[list[tf.IndexedSlices]], object],
        slots: Sequence[tf.Variable],
    ) -> Candidate:
        lookup, inputs = self._lookups[way], self._inputs[way]

        @tf.function
        def step(ids: object) -> tf.Tensor:
            with tf.GradientTape() as tape:
                pooled = lookup(ids)
            apply(tape.gradient(pooled, self._rows, output_gradients=self._gradient))
            return pooled  # else the lookup itself would be optimized away

        def reset(touched: Sequence[np.ndarray]) -> None:
            for table, ids in enumerate(touched):
                self._rows[table].scatter_update(tf.IndexedSlices(self._pattern.rows(table, ids), ids))
                first = np.full((len(ids), self._tables.dim), FIRST_ACCUMULATOR, np.float32)
                slots[table].scatter_update(tf.IndexedSlices(first, ids))

        def result(compared: Sequence[np.ndarray]) -> np.ndarray:
            return np.concatenate([tf.gather(rows, ids) for rows, ids in zip(self._rows, compared, strict=True)])

        note = {"gather": "tf.gather and sum", "sparse": "embedding_lookup_sparse"}.get(way, "")
        return Candidate(name, lambda batch: step(inputs[batch]), result, reset, note)


def _side_by_side(pooled: list[tf.Tensor]) -> tf.Tensor:
    return pooled[0] if len(pooled) == 1 else tf.concat(pooled, axis=1)


def _seconds(candidate: Candidate) -> float:
    candidate.run(0)
    start = tf.timestamp()
    candidate.run(1)
    return float(tf.timestamp() - start)
