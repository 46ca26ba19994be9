"""Rows of a mapped file in another order than the file's, in bounded memory.

A file of a few GiB is gathered from directly. Of a larger one, rows in any order would each cost a read of their own
from the disk. So it is read once from front to back, and each row is written to the bucket that holds its place in the
new order: the buckets lie one after the other in a scratch file. Then each bucket is read and put in order in memory.
That costs the disk one more write and read of the file, all of them in long pieces.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]

# What is gathered from directly: it fits the page cache of any machine that serves such tables.
DIRECT_BYTES = 4 << 30

_BUCKET_BYTES = 64 << 20
_BLOCK_BYTES = 16 << 20


def parts(count: int, item_bytes: int, *, part_bytes: int = 0, overlap: int = 0) -> Iterator[slice]:
    """Cuts `count` items into parts of `part_bytes` (0: 16 MiB), each with the first `overlap` items of the next."""
    step = max(1, (part_bytes or _BLOCK_BYTES) // item_bytes)
    for begin in range(0, count, step):
        yield slice(begin, min(begin + step + overlap, count))


def ordered(rows: Rows, order: Places, *, scratch: Path) -> Iterator[Rows]:
    """Yields `rows[order]` some MiB at a time.

    Args:
        rows: float32 [N, D], mapped.
        order: int64 [N], a permutation.
        scratch: A folder with room for as many bytes as `rows` has, where these are over DIRECT_BYTES.
    """
    row_bytes = rows[:1].nbytes
    if rows.nbytes <= DIRECT_BYTES:
        for part in parts(len(rows), row_bytes):
            yield rows[order[part]]
        return
    buckets = list(parts(len(rows), row_bytes, part_bytes=_BUCKET_BYTES))
    with tempfile.TemporaryFile(dir=scratch) as file:
        _scatter(file, rows, order, buckets)
        for bucket in buckets:
            content = os.pread(file.fileno(), (bucket.stop - bucket.start) * row_bytes, bucket.start * row_bytes)
            # Rows came into the bucket in the order of the file.
            block = np.empty((bucket.stop - bucket.start, rows.shape[1]), np.float32)
            block[np.argsort(order[bucket])] = np.frombuffer(content, np.float32).reshape(block.shape)
            yield block


def _scatter(file: IO[bytes], rows: Rows, order: Places, buckets: list[slice]) -> None:
    bucket_of = np.empty(len(rows), np.int32)
    for number, bucket in enumerate(buckets):
        bucket_of[order[bucket]] = number
    row_bytes = rows[:1].nbytes
    ends = np.array([bucket.start for bucket in buckets])  # Up to where each bucket is filled.
    for part in parts(len(rows), row_bytes, part_bytes=_BUCKET_BYTES):
        chosen, by_bucket = bucket_of[part], np.argsort(bucket_of[part], kind="stable")
        counts = np.bincount(chosen, minlength=len(buckets))
        block = rows[part][by_bucket]
        begin = 0
        for number in np.flatnonzero(counts).tolist():
            end = begin + int(counts[number])
            _write(file, block[begin:end], int(ends[number]) * row_bytes)
            ends[number] += end - begin
            begin = end


def _write(file: IO[bytes], rows: Rows, offset: int) -> None:
    content = rows.reshape(-1).view(np.uint8).data
    while len(content):
        written = os.pwrite(file.fileno(), content, offset)
        content, offset = content[written:], offset + written
