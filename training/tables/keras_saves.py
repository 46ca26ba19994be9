"""Keras would save a table's variable where that is not the table: all of its ways to do so are refused.

Rows of bfloat16, which its files do not know, it is given as float32.
"""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, NoReturn

import numpy as np

from rankhouse.training.errors import EmbeddingError
from rankhouse.training.tables.table_shards import TableShard


def refuse_variables(shards: Sequence[TableShard], layer: str) -> None:
    """Refuses to save the variables of a layer if one is not its table.

    Raises:
        EmbeddingError: A table lies on the host, and its variable has some of the rows only; or it learns its keys.
    """
    for shard in shards:
        if shard.row_map:
            _refuse(shard.table, layer)


def refuse_saved(shards: Sequence[TableShard], layer: str, *, save_type: str) -> None:
    """Refuses what TensorFlow cannot save: checkpoints of tables on the host, and SavedModels of either kind.

    A checkpoint of TensorFlow has the keys that a table has learnt, and so all of it.

    Raises:
        EmbeddingError: There is such a table.
    """
    for shard in shards:
        if shard.host_rows or (shard.learnt and save_type == "savedmodel"):
            _refuse(shard.table, layer)


def refuse_whole_reads(shard: TableShard, layer: str) -> None:
    """Has a variable that is not its table raise where Keras takes its values, for HDF5 or a model's `get_weights`."""
    if shard.row_map:
        shard.variable.numpy = lambda: _refuse(shard.table, layer)


def save_widened(save: Callable[[dict[str, Any]], Any], store: MutableMapping[str, Any]) -> None:
    """Puts into a store of Keras what `save` gives it, bfloat16 as float32: its files have no such numbers."""
    kept: dict[str, Any] = {}
    save(kept)
    for name, values in kept.items():
        store[name] = values.astype(np.float32) if values.dtype.name == "bfloat16" else values


def _refuse(table: str, layer: str) -> NoReturn:
    raise EmbeddingError(
        f"table {table!r} of {layer!r} lies in host memory or learns its keys, which Keras would leave out; save a "
        "checkpoint (CheckpointSaver), a plain model (save_standalone), or what this layer's get_weights returns"
    )
