"""Whole tables of a layer, of either kind: with a row for each id, or with the keys that they have learnt."""

from collections.abc import Sequence
from typing import Any

from rankhouse.training.plan import Placement
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.keyed_tables import open_keyed_table, read_keyed_table, write_keyed_table
from rankhouse.training.tables.specs import EmbeddingSpec
from rankhouse.training.tables.table_shards import TableShard
from rankhouse.training.tables.whole_tables import BLOCK_BYTES, open_table, read_table, write_table

__all__ = ["BLOCK_BYTES", "TableWeights"]


class TableWeights:
    """One table of a layer."""

    def __init__(self, spec: EmbeddingSpec, placement: Placement, own: Sequence[TableShard], *, ranks: Ranks) -> None:
        """Takes the table, where it lies, what this rank holds of it, and the ranks."""
        self._spec, self._placement, self._ranks = spec, placement, ranks
        self._variables = {shard.rectangle(ranks.rank): shard.variable for shard in own}
        self._learnt = {shard.rectangle(ranks.rank): shard.learnt for shard in own if shard.learnt is not None}

    def read(self, *, name: str, wanted: bool) -> Any:
        """Returns floats [rows, dim], or `KeyedRows`; collective. The arguments: `whole_tables.read_table`."""
        how: dict[str, Any] = {"ranks": self._ranks, "name": name, "wanted": wanted}
        if self._spec.vocabulary is None:
            return read_table(self._spec, self._placement, self._variables, **how)
        return read_keyed_table(self._spec, self._placement, self._learnt, **how)

    def open(self, weights: Any) -> Any:
        """Checks what `write` is to take.

        Raises:
            EmbeddingError: It does not fit the table.
        """
        if self._spec.vocabulary is None:
            return open_table(self._spec, weights)
        return open_keyed_table(self._spec, weights, self._learnt, self._placement)

    def write(self, weights: Any, *, block_bytes: int = BLOCK_BYTES) -> None:
        """Overwrites what this rank holds by its part of what `open` returned."""
        if self._spec.vocabulary is None:
            write_table(self._variables, weights, block_bytes=block_bytes)
        else:
            write_keyed_table(self._learnt, weights, self._placement)
