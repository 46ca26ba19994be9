"""Tables that learn their keys, in checkpoints: three more arrays of their rows say which key each row holds.

    keys, key_counts, key_steps    int64 [rows]: the key, in how many steps it was seen, and in which lookup last; where
                                   the count is 0 the row is free
    tables/<table>.candidates.*    the keys that were seen, but have no row yet: `keys`, `counts`, `last_steps`

A rank that loads one goes through all keys, takes those that fall to it, and reads their rows alone.
"""

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from rankhouse.kernels.tf_ops.vocabulary import Entries
from rankhouse.training.checkpoint.files import KEY_ARRAYS, TOUCHED, Checkpoint
from rankhouse.training.errors import CheckpointError, EmbeddingError
from rankhouse.training.plan import Placement, ShardSpec
from rankhouse.training.tables.keyed_tables import check_room, keys_of
from rankhouse.training.tables.learnt_rows import LearntRows
from rankhouse.training.tables.row_maps import NO_ROW
from rankhouse.training.tables.table_shards import TableShard
from rankhouse.training.tables.variable_rows import write_rows

_BLOCK_BYTES = 64 << 20

Ints = npt.NDArray[np.int64]


def key_arrays(learnt: LearntRows) -> dict[str, tf.Variable]:
    """Returns a copy of what a table knows of the key in each of its rows, by the name of the array."""
    known, num_rows = learnt.known(), learnt.num_rows
    columns = (known.keys, known.counts, known.last_steps)
    return {
        name: tf.Variable(tf.scatter_nd(known.ids[:, tf.newaxis], column, [num_rows]), trainable=False)
        for name, column in zip(KEY_ARRAYS, columns, strict=True)
    }


def candidates_file(table: str, shard: TableShard) -> str:
    """Returns the name of the file that holds the candidates of a rectangle."""
    return f"{_candidates_prefix(table)}{shard.row_start}-{shard.row_stop}.safetensors"


def candidates_of(learnt: LearntRows) -> dict[str, Ints]:
    """Returns the keys that have no row yet; nothing where there are none."""
    found = learnt.candidates()
    columns = {"keys": found.keys, "counts": found.counts, "last_steps": found.last_steps}
    return {name: np.array(column) for name, column in columns.items()} if len(found.keys) else {}


def load_learnt_rows(
    checkpoint: Checkpoint, shard: TableShard, placement: Placement, arrays: dict[str, tf.Variable]
) -> None:
    """Puts a table's keys that fall to a rectangle, and their rows, in the place of what it knows.

    Args:
        checkpoint: Has the table, with keys.
        shard: The rectangle, of a table that learns its keys.
        placement: Where the table lies now.
        arrays: Its variables by name: rows, slots, and the steps that last wrote them.

    Raises:
        CheckpointError: A file is damaged, or there are more keys than the rectangle has rows.
    """
    assert shard.learnt is not None
    rectangle = next(
        part
        for part in placement.shards
        if part.num_rows and (part.row_start, part.column_start) == (shard.row_start, shard.column_start)
    )
    rows, keys, counts, steps = _read_keys(checkpoint, rectangle, placement)
    try:
        check_room(shard.table, len(keys), rectangle)
    except EmbeddingError as exc:
        raise CheckpointError(f"{checkpoint.path}: {exc}") from exc
    shard.learnt.start_all()
    for array in [name for name in arrays if name in checkpoint.tables[shard.table].arrays]:
        columns = None if array == TOUCHED else (shard.column_start, shard.column_stop)
        for at, values in _pick(checkpoint, shard.table, array, rows, columns):
            write_rows(arrays[array], at, values)
    waiting = _read_candidates(checkpoint, rectangle, placement, shard.learnt.vocabulary.options.max_candidates)
    ids = np.concatenate([np.arange(len(keys)), np.full(len(waiting[0]), NO_ROW)])
    keys, counts, steps = (np.concatenate(pair) for pair in zip((keys, counts, steps), waiting, strict=True))
    order = np.argsort(keys)
    shard.learnt.vocabulary.restore(Entries(*(tf.constant(column[order]) for column in (keys, ids, counts, steps))))


def _read_keys(checkpoint: Checkpoint, rectangle: ShardSpec, placement: Placement) -> tuple[Ints, Ints, Ints, Ints]:
    """Returns of the keys that fall to a rectangle where they lie in the checkpoint, themselves, counts and steps."""
    found: list[tuple[Ints, ...]] = []
    table = placement.table
    num_rows = checkpoint.tables[table].num_rows
    step = max(1, _BLOCK_BYTES // (8 * len(KEY_ARRAYS)))
    for start in range(0, num_rows, step):
        stop = min(start + step, num_rows)
        keys, counts, steps = (_range(checkpoint, table, array, start, stop) for array in KEY_ARRAYS)
        used = np.flatnonzero(counts)
        own = used[keys_of(keys[used], rectangle, placement)]
        found.append((start + own, keys[own], counts[own], steps[own]))
    rows, keys, counts, steps = (np.concatenate(column) for column in zip(*found, strict=True))
    return rows, keys, counts, steps


def _read_candidates(checkpoint: Checkpoint, rectangle: ShardSpec, placement: Placement, most: int) -> list[Ints]:
    """Returns keys, counts and steps of the candidates that fall to a rectangle, at most so many of the latest."""
    empty = np.empty(0, np.int64)
    columns = [[empty], [empty], [empty]]
    pattern = re.compile(re.escape(_candidates_prefix(placement.table)) + r"\d+-\d+\.safetensors")
    for file in sorted(checkpoint.files):
        if pattern.fullmatch(file):
            tensors = checkpoint.tensors(file)
            for column, name in zip(columns, ("keys", "counts", "last_steps"), strict=True):
                column.append(tensors[name])
    keys, counts, steps = (np.concatenate(column) for column in columns)
    own = keys_of(keys, rectangle, placement)
    own = own[np.argsort(-steps[own], kind="stable")][: most or rectangle.num_rows]
    return [keys[own], counts[own], steps[own]]


def _pick(
    checkpoint: Checkpoint, table: str, array: str, rows: Ints, columns: tuple[int, int] | None
) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yields the rows, which rise, in blocks: (how many came before, [n, columns] or [n])."""
    info = checkpoint.tables[table]
    step = max(1, _BLOCK_BYTES // (4 * info.dim))
    for start in range(0, info.num_rows, step):
        begin, end = np.searchsorted(rows, [start, start + step])
        if begin < end:
            own = rows[begin:end]
            yield int(begin), _range(checkpoint, table, array, own[0], own[-1] + 1, columns)[own - own[0]]


def _range(
    checkpoint: Checkpoint, table: str, array: str, start: int, stop: int, columns: tuple[int, int] | None = None
) -> npt.NDArray[Any]:
    first, last = columns or (0, checkpoint.tables[table].dim)
    blocks = checkpoint.rows(table, array, start=int(start), stop=int(stop), column_start=first, column_stop=last)
    return np.concatenate([block.rows for block in blocks])


def _candidates_prefix(table: str) -> str:
    return f"tables/{quote(table, safe='')}.candidates."
