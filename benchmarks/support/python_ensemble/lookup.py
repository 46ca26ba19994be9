"""The engine that looks embeddings up in a version.

Shapes: B samples, F features, N ids in all, U unique ids, D a table's width, E the sum of the widths of all features.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.errors import BatchError
from rankhouse.embedding_cache.format.errors import ContentError
from rankhouse.embedding_cache.format.version import Version
from rankhouse.kernels import arrays

Rows = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]


class EmbeddingEngine:
    """Pools embedding rows of one version, reading them from its mapped segments and deltas.

    Rows that are not in memory are loaded from the disk when touched; the system's page cache is the only cache. The
    engine changes nothing after it is made, so any number of threads may call `lookup` at the same time.
    """

    def __init__(self, version: Version) -> None:
        """Maps the version's rows.

        Raises:
            CorruptFileError: A file is missing or not what the manifest says.
        """
        index = {table.name: number for number, table in enumerate(version.tables)}
        self._features = version.features
        self._tables = [version.table_rows(table.name) for table in version.tables]
        self._feature_tables = [index[feature.table] for feature in version.features]
        self._combiners = [feature.combiner for feature in version.features]

    def lookup(self, ids_N: Ids, lengths_FB: npt.NDArray[np.int32]) -> Rows:
        """Pools the rows of each bag.

        Args:
            ids_N: int64 [N], feature-major: all ids of feature 0, sample by sample, then of feature 1, ...
            lengths_FB: int32 [F, B], ids per bag; an empty bag pools to zeros.

        Returns:
            float32 [B, E], the features side by side.

        Raises:
            BatchError: The lengths have another number of features, or do not add up to the number of ids.
            BatchError, KernelError: An id is outside its table.
        """
        if lengths_FB.ndim != 2 or len(lengths_FB) != len(self._features):
            raise BatchError(
                f"lengths has shape {list(lengths_FB.shape)}; expected [{len(self._features)}, B], one row for each of "
                "the version's features"
            )
        if lengths_FB.min(initial=0) < 0 or lengths_FB.sum(dtype=np.int64) != len(ids_N):
            raise BatchError(
                f"lengths add up to {lengths_FB.sum(dtype=np.int64)}, there are {len(ids_N)} ids; expected one length "
                "of 0 or more for each bag"
            )
        offsets = np.zeros(lengths_FB.size + 1, np.int64)
        np.cumsum(lengths_FB.ravel(), out=offsets[1:])
        tables, ids_N = self._as_arrays(ids_N, lengths_FB)
        return arrays.pooled_lookup(
            tables, ids_N, offsets, feature_tables=self._feature_tables, combiners=self._combiners
        )

    def _as_arrays(self, ids_N: Ids, lengths_FB: npt.NDArray[np.int32]) -> tuple[list[npt.NDArray[Any]], Ids]:
        """Gives each table as one array, and ids that point into these.

        A table of one segment alone is that segment. Of any other the rows that the batch needs are gathered once each,
        in the order of their ids: pooling adds the same rows in the same order, so its result is the same.
        """
        tables = [table.segments[0] for table in self._tables]
        cut = [number for number, table in enumerate(self._tables) if len(table.segments) > 1 or table.deltas]
        if not cut:
            return tables, ids_N
        table_of_id = np.repeat(self._feature_tables, lengths_FB.sum(axis=1))
        ids_N = ids_N.copy()
        for number in cut:
            chosen = table_of_id == number
            ids_U, positions = np.unique(ids_N[chosen], return_inverse=True)
            if len(ids_U):
                try:
                    tables[number] = self._tables[number].gather(ids_U)
                except ContentError as exc:
                    raise BatchError(f"the batch has an id outside its table: {exc}") from exc
                ids_N[chosen] = positions
        return tables, ids_N
