"""The initial values of the parts of tables that a rank holds: the same rows on any ranks and under any plan."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from rankhouse.training.plan import ShardSpec
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.distributions import distribution_of
from rankhouse.training.tables.initializers import table_key
from rankhouse.training.tables.specs import EmbeddingSpec

_BLOCK_BYTES = 64 << 20


class InitialValues:
    """Those of one table. Collective: every rank makes it, also one that holds nothing of the table.

    An initializer with a known distribution and no seed is drawn by position, rectangle by rectangle. Another one makes
    the whole table on each of its holders, which keep their part of it: from its own seed, or else from one that is
    made of the layer's seed and the table's name; or on rank 0, which sends it, if it takes no seed.
    """

    def __init__(self, spec: EmbeddingSpec, *, seed: int, ranks: Ranks, holds: bool, name: str) -> None:
        self._spec = spec
        self._key = table_key(seed, spec.name)
        initializer = spec.embeddings_initializer
        self._distribution = distribution_of(initializer, num_rows=spec.input_dim, dim=spec.output_dim)
        self._whole: npt.NDArray[np.float32] | None = None
        if self._distribution is not None:
            return
        config = initializer.get_config() if hasattr(initializer, "get_config") else {}
        if "seed" in config:
            if config["seed"] is None:
                initializer = type(initializer).from_config({**config, "seed": self._key % 2**31})
            self._whole = self._draw(initializer).numpy() if holds else None
            return
        values = self._draw(initializer) if ranks.rank == 0 else tf.zeros([spec.input_dim, spec.output_dim])
        self._whole = ranks.broadcast(values, name=name).numpy()

    def blocks(self, shard: ShardSpec) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
        """Yields (row within the rectangle, float32 [rows, columns]) for all of a rectangle, in blocks."""
        dim, columns = self._spec.output_dim, (shard.column_start, shard.column_stop)
        step = max(1, _BLOCK_BYTES // (4 * shard.dim))
        for start in range(shard.row_start, shard.row_stop, step):
            stop = min(start + step, shard.row_stop)
            if self._distribution is not None:
                rows = self._distribution.rows(self._key, dim=dim, start=start, stop=stop, columns=columns)
            else:
                assert self._whole is not None
                rows = self._whole[start:stop, slice(*columns)]
            yield start - shard.row_start, rows

    def _draw(self, initializer: Any) -> tf.Tensor:
        shape = (self._spec.input_dim, self._spec.output_dim)
        return tf.ensure_shape(tf.cast(initializer(shape, dtype=tf.float32), tf.float32), shape)
