"""Whole tables that learn their keys, read from and written to the parts that the ranks hold."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from rankhouse.kernels.tf_ops.vocabulary import Entries
from rankhouse.training.errors import EmbeddingError
from rankhouse.training.plan import Placement, ShardSpec
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.key_owners import owners
from rankhouse.training.tables.learnt_rows import LearntRows
from rankhouse.training.tables.specs import EmbeddingSpec
from rankhouse.training.tables.variable_rows import read_rows_at, write_rows
from rankhouse.training.tables.whole_tables import BLOCK_BYTES

Maps = Mapping[ShardSpec, LearntRows]


class KeyedRows(NamedTuple):
    """What a table that learns its keys knows: keys int64 [n] in rising order, and their rows float32 [n, dim]."""

    keys: npt.NDArray[np.int64]
    rows: npt.NDArray[np.float32]


def read_keyed_table(
    spec: EmbeddingSpec, placement: Placement, own: Maps, *, ranks: Ranks, name: str, wanted: bool = True
) -> KeyedRows:
    """Puts a table together; collective, but for data-parallel ones. The arguments: `whole_tables.read_table`."""
    copies = placement.mode == "data_parallel"
    shards = list(own) if copies else [shard for shard in placement.shards if shard.num_rows]
    known = {shard: own[shard].known() for shard in own}
    sizes = {f"{shard}": len(entries.keys) for shard, entries in known.items()}
    if not copies:
        every = ranks.exchange_json(sizes, name=f"{name}_sizes")
        sizes = {shard: size for found in every for shard, size in found.items()}
    total = sum(sizes[f"{shard}"] for shard in shards if shard.column_start == 0)
    keys = np.empty(total if wanted else 0, np.int64)
    rows = np.empty((len(keys), spec.output_dim), np.float32)
    at = 0
    for shard in shards:
        size, entries = sizes[f"{shard}"], known.get(shard)
        # Slices of columns have the same keys, each with a row in every slice.
        first = 0 if shard.column_stop - shard.column_start < spec.output_dim else at
        at = first + size
        for start, stop in _blocks(size, shard.dim):
            values, names = _read(own[shard], entries, start, stop) if entries else _nothing()
            if not copies:
                values, names = (ranks.allgather(part, name=name) for part in (values, names))
            if wanted:
                part = slice(first + start, first + stop)
                keys[part] = names
                rows[part, shard.column_start : shard.column_stop] = tf.reshape(values, [-1, shard.dim])
    order = np.argsort(keys)
    return KeyedRows(keys[order], rows[order])


def write_keyed_table(own: Maps, table: KeyedRows, placement: Placement) -> None:
    """Has the parts of this rank know these keys, with these rows, and none else.

    Args:
        own: The parts of this rank.
        table: What `read_keyed_table` returns.
        placement: Where the table lies.
    """
    for shard, learnt in own.items():
        part = keys_of(table.keys, shard, placement)
        learnt.start_all()
        learnt.know(table.keys[part])
        for start, stop in _blocks(len(part), shard.dim):
            values = table.rows[part[start:stop], shard.column_start : shard.column_stop]
            write_rows(learnt.variable, start, values)


def open_keyed_table(spec: EmbeddingSpec, value: Any, own: Maps, placement: Placement) -> KeyedRows:
    """Checks the weights of a table that learns its keys, before anything is changed.

    Raises:
        EmbeddingError: They are not keys, each once, with a row each, or more than fit.
    """
    where = f"table {spec.name!r} learns its keys"
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise EmbeddingError(f"{where}; its weights are KeyedRows(keys, rows), as get_weights returns them")
    keys, rows = np.asarray(value[0]), np.asarray(value[1])
    if keys.ndim != 1 or keys.dtype.kind not in "iu" or rows.shape != (len(keys), spec.output_dim):
        raise EmbeddingError(
            f"{where}; its weights are {keys.dtype} keys of shape {keys.shape} and rows of shape {rows.shape}; "
            f"expected integers of shape (n,) and floats of shape (n, {spec.output_dim})"
        )
    keys = keys.astype(np.int64)
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    if len(twice := keys[1:][keys[1:] == keys[:-1]]):
        raise EmbeddingError(f"{where}; key {twice[0]} comes twice in its weights; give each once")
    for shard in own:
        check_room(spec.name, len(keys_of(keys, shard, placement)), shard)
    return KeyedRows(keys, rows)


def keys_of(keys: npt.NDArray[np.int64], shard: ShardSpec, placement: Placement) -> npt.NDArray[np.int64]:
    """Returns where among some keys those are that belong to a rectangle, int64 [n]."""
    if placement.mode != "row_wise":
        return np.arange(len(keys))
    parts = [other for other in placement.shards if other.num_rows]
    found: npt.NDArray[np.int64] = np.flatnonzero(owners(tf.constant(keys), len(parts)).numpy() == parts.index(shard))
    return found


def check_room(table: str, num_keys: int, shard: ShardSpec) -> None:
    """Raises EmbeddingError where a rectangle has fewer rows than keys fall to it."""
    if num_keys > shard.num_rows:
        raise EmbeddingError(
            f"table {table!r}: {num_keys} keys fall to the {shard.num_rows} rows that rank {shard.rank} has for them; "
            "make input_dim larger"
        )


def _nothing() -> tuple[tf.Tensor, tf.Tensor]:
    # Not made when this is imported: with its first tensor TensorFlow takes no numbers of threads any more.
    return tf.zeros([0]), tf.zeros([0], tf.int64)


def _read(learnt: LearntRows, entries: Entries, start: int, stop: int) -> tuple[tf.Tensor, tf.Tensor]:
    values = tf.constant(read_rows_at(learnt.variable, entries.ids[start:stop].numpy()))
    return tf.cast(tf.reshape(values, [-1]), tf.float32), entries.keys[start:stop]


def _blocks(size: int, dim: int) -> Iterator[tuple[int, int]]:
    step = max(1, BLOCK_BYTES // (4 * dim))
    for start in range(0, size, step):
        yield start, min(start + step, size)
