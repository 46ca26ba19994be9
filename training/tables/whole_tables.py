"""Whole tables, read from and written to the parts that the ranks hold, in blocks of bounded size."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from rankhouse.training.errors import EmbeddingError
from rankhouse.training.plan import Placement, ShardSpec
from rankhouse.training.ranks import Ranks
from rankhouse.training.tables.specs import EmbeddingSpec
from rankhouse.training.tables.variable_rows import read_rows, write_rows

# What is in memory at once beside the tables.
BLOCK_BYTES = 64 << 20

Variables = dict[ShardSpec, tf.Variable]


def read_table(
    spec: EmbeddingSpec, placement: Placement, own: Variables, *, ranks: Ranks, name: str, wanted: bool = True
) -> Any:
    """Puts a table together; collective, but for data-parallel ones.

    Args:
        spec: The table.
        placement: Where it lies.
        own: The rectangles of this rank.
        ranks: The ranks.
        name: Name of the exchange.
        wanted: Whether this rank gets the table; else it only sends its part, and takes no memory for the others.

    Returns:
        float32 [rows, dim]; [0, dim] where it is not wanted.
    """
    whole = np.empty((spec.input_dim if wanted else 0, spec.output_dim), np.float32)
    copies = placement.mode == "data_parallel"
    holders = list(own) if copies else sorted(placement.shards, key=lambda shard: shard.rank)
    for start, stop in _blocks(spec):
        parts = [
            np.ravel(read_rows(own[shard], first - shard.row_start, last - shard.row_start)).astype(np.float32)
            for shard, first, last in _within(holders, start, stop)
            if shard in own
        ]
        values = np.concatenate([np.empty(0, np.float32), *parts])
        if not copies:
            values = ranks.allgather(tf.constant(values), name=name).numpy()
        if not wanted:
            continue
        at = 0
        for shard, first, last in _within(holders, start, stop):
            size = (last - first) * shard.dim
            columns = slice(shard.column_start, shard.column_stop)
            whole[first:last, columns] = values[at : at + size].reshape(last - first, shard.dim)
            at += size
    return whole


def write_table(own: Variables, values: npt.NDArray[Any], *, block_bytes: int = BLOCK_BYTES) -> None:
    """Overwrites the rectangles of this rank with their part of a whole table [rows, dim], block by block."""
    for shard, variable in own.items():
        step = max(1, block_bytes // (4 * shard.dim))
        for start in range(shard.row_start, shard.row_stop, step):
            stop = min(start + step, shard.row_stop)
            rows = np.asarray(values[start:stop, shard.column_start : shard.column_stop], np.float32)
            write_rows(variable, start - shard.row_start, rows)


def open_table(spec: EmbeddingSpec, value: Any) -> npt.NDArray[Any]:
    """Opens a whole table, and checks it before it is used.

    Args:
        spec: The table.
        value: An array [rows, dim], or the path of a .npy file, which is mapped, not read.

    Raises:
        EmbeddingError: A file cannot be opened, or it is no table of this shape.
    """
    source = "its weights"
    if isinstance(value, str | os.PathLike):
        source = os.fspath(value)
        try:
            value = np.load(value, mmap_mode="r")
        except (OSError, EOFError, ValueError) as exc:
            raise EmbeddingError(f"table {spec.name!r}: {source} cannot be read ({exc}); expected a .npy file") from exc
    table: npt.NDArray[Any] = value if isinstance(value, np.ndarray) else np.asarray(value)
    if table.shape != (spec.input_dim, spec.output_dim) or table.dtype.kind != "f":
        raise EmbeddingError(
            f"table {spec.name!r}: {source} are {table.dtype} of shape {table.shape}; expected floats of shape "
            f"({spec.input_dim}, {spec.output_dim})"
        )
    return table


def _blocks(spec: EmbeddingSpec) -> Iterator[tuple[int, int]]:
    step = max(1, BLOCK_BYTES // (4 * spec.output_dim))
    for start in range(0, spec.input_dim, step):
        yield start, min(start + step, spec.input_dim)


def _within(shards: Sequence[ShardSpec], start: int, stop: int) -> Iterator[tuple[ShardSpec, int, int]]:
    """Yields the rectangles that have some of the rows [start, stop), and which."""
    for shard in shards:
        first, last = max(start, shard.row_start), min(stop, shard.row_stop)
        if first < last:
            yield shard, first, last
