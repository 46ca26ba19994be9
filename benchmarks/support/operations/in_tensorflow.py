"""TensorFlow's own ways, in tf.function."""

import os
from collections.abc import Callable

import numpy as np

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf

from benchmarks.support.operations.candidate import NUM_COMPARED, Candidate, rebuilt
from benchmarks.support.operations.cases import NUM_EMBEDDINGS, Case

tf.get_logger().setLevel("ERROR")


class TensorflowOperations:
    """Candidates in TensorFlow."""

    def __init__(self, num_threads: int) -> None:
        tf.config.threading.set_intra_op_parallelism_threads(num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(num_threads)

    def make(self, case: Case, arrays: dict[str, np.ndarray]) -> list[Candidate]:
        """Returns the candidates for a case, none where TensorFlow has nothing for it."""
        makers: dict[str, Callable[[dict[str, np.ndarray]], list[Candidate]]] = {
            "unique": self._unique,
            "vocabulary-lookup": self._lookup,
            "vocabulary-observe": self._insert,
            "interaction": lambda arrays: self._interaction(arrays, backward=False),
            "interaction-backward": lambda arrays: self._interaction(arrays, backward=True),
        }
        return makers[case.operation](arrays) if case.operation in makers else []

    def _unique(self, arrays: dict[str, np.ndarray]) -> list[Candidate]:
        keys, last = [tf.constant(batch) for batch in arrays["keys"]], []
        function = tf.function(lambda batch: tf.unique(batch, out_idx=tf.int64))

        def run(batch: int) -> None:
            last[:] = function(keys[batch])

        return [Candidate("tf.unique", run, lambda: rebuilt(last[0].numpy(), last[1].numpy()))]

    def _lookup(self, arrays: dict[str, np.ndarray]) -> list[Candidate]:
        known, keys, last = np.sort(arrays["known"]), [tf.constant(batch) for batch in arrays["keys"]], []
        table = self._table(known)
        function = tf.function(table.lookup)

        def run(batch: int) -> None:
            last[:] = [function(keys[batch])]

        return [Candidate("tf.lookup's DenseHashTable", run, lambda: last[0].numpy())]

    def _insert(self, arrays: dict[str, np.ndarray]) -> list[Candidate]:
        keys, table = [tf.constant(batch) for batch in arrays["keys"]], self._table(arrays["known"][:0])

        @tf.function
        def function(batch: tf.Tensor) -> None:
            table.insert(batch, table.lookup(batch) + 1)

        return [
            Candidate(
                "tf.lookup's DenseHashTable", lambda batch: function(keys[batch]), lambda: np.array([int(table.size())])
            )
        ]

    def _table(self, known: np.ndarray) -> tf.lookup.experimental.DenseHashTable:
        # Two keys are reserved; that random keys of 64 bits hit them is out of the question.
        table = tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, 0, empty_key=-1, deleted_key=-2)
        if len(known):
            table.insert(known, np.arange(1, len(known) + 1))
        return table

    def _interaction(self, arrays: dict[str, np.ndarray], *, backward: bool) -> list[Candidate]:
        bottoms, embeddings = ([tf.constant(batch) for batch in arrays[name]] for name in ("bottom", "embeddings"))
        grad, dim, last = tf.constant(arrays["grad"]), arrays["bottom"].shape[2], []
        rows, columns = np.tril_indices(NUM_EMBEDDINGS + 1, -1)
        pairs = tf.constant(rows * (NUM_EMBEDDINGS + 1) + columns)

        def interaction(bottom: tf.Tensor, embedded: tf.Tensor) -> tf.Tensor:
            vectors = tf.reshape(tf.concat([bottom, embedded], axis=1), (-1, NUM_EMBEDDINGS + 1, dim))
            products = tf.reshape(tf.matmul(vectors, vectors, transpose_b=True), (-1, (NUM_EMBEDDINGS + 1) ** 2))
            return tf.concat([bottom, tf.gather(products, pairs, axis=1)], axis=1)

        @tf.function
        def function(bottom: tf.Tensor, embedded: tf.Tensor) -> tuple[tf.Tensor, ...]:
            with tf.GradientTape() as tape:
                tape.watch([bottom, embedded])
                out = interaction(bottom, embedded)
            return (out, *tape.gradient(out, [bottom, embedded], output_gradients=grad)) if backward else (out,)

        def run(batch: int) -> None:
            last[:] = function(bottoms[batch], embeddings[batch])

        def result() -> np.ndarray:
            return np.concatenate([array[:NUM_COMPARED] for array in (last[1:] if backward else last)], axis=1)

        return [Candidate("TensorFlow matmul, gather", run, result)]
