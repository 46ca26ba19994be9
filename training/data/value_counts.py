"""How often each raw value of a table stands in raw logs."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rankhouse.embedding_cache.format.vocabulary import Values
from rankhouse.training.data.arrow_transform import known_values, raw_values
from rankhouse.training.data.feature_spec import CategoricalFeature

# Counts of parts are put together when they are that many, or as many as there were different values.
_FEW = 1 << 20


@dataclass(frozen=True)
class ValueCounts:
    """Values and how often each was seen, by falling frequency, then by value (texts by their bytes).

    Attributes:
        values: n values, each once.
        counts: int64 [n].
    """

    values: Values
    counts: npt.NDArray[np.int64]


class ValueCounter:
    """Counts the values of one table, part by part. It holds each different value once. For one thread.

    Args:
        features: The features of the table.
    """

    def __init__(self, features: tuple[CategoricalFeature, ...]) -> None:
        self._features = features
        # All texts of a day together may have more bytes than an int32 counts.
        self._kind = pa.large_string() if features[0].dtype == "text" else pa.int64()
        self._counted = pa.table({"values": pa.array([], self._kind), "counts": pa.array([], pa.int64())})
        self._pending: list[pa.Table] = []
        self._num_pending = 0

    def add(self, table: pa.Table) -> None:
        """Counts the values of raw rows, as `read_raw` gives them."""
        for feature in self._features:
            counted = pc.drop_null(raw_values(table[feature.name], feature)).value_counts()
            values = counted.field("values").cast(self._kind)
            self._pending.append(pa.table({"values": values, "counts": counted.field("counts")}))
            self._num_pending += len(counted)
        if self._num_pending > max(_FEW, self._counted.num_rows):
            self._merge()

    def counts(self) -> ValueCounts:
        """What was counted so far."""
        self._merge()
        ordered = self._counted.sort_by([("counts", "descending"), ("values", "ascending")])
        return ValueCounts(known_values(ordered["values"].combine_chunks()), ordered["counts"].to_numpy())

    def _merge(self) -> None:
        joined = pa.concat_tables([self._counted, *self._pending])
        summed = joined.group_by("values").aggregate([("counts", "sum")])
        self._counted = pa.table({"values": summed["values"], "counts": summed["counts_sum"]})
        self._pending, self._num_pending = [], 0
