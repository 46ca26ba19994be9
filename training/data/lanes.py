"""Lanes: which rows make which batch, the same on any number of ranks. Pure arithmetic, no files.

A split's rows are cut into contiguous lanes. After any number of rows, every lane has given the same number of them, to
within one; so a data position is one number, and a rank that reads some lanes needs to know nothing of the others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

# There can be at most as many ranks; a batch of 2048 samples still takes 128 rows in a row from each lane.
NUM_LANES = 16


@dataclass(frozen=True)
class Block:
    """Consecutive rows of one row group.

    Attributes:
        row_group: The row group's number in the split.
        begin: First row, counted in the row group.
        end: Row after the last.
    """

    row_group: int
    begin: int
    end: int

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return self.end - self.begin


@dataclass(frozen=True)
class Window:
    """Rows of a lane that are in memory together and are visited in a random order.

    Attributes:
        blocks: What is read, in this order.
        seed: Keys the order of the rows; None keeps them as they are.
    """

    blocks: tuple[Block, ...]
    seed: tuple[int, ...] | None

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return sum(block.num_rows for block in self.blocks)

    def order(self) -> npt.NDArray[np.int64] | None:
        """The order in which the rows are visited, int64 [num_rows]; None is as they are."""
        return None if self.seed is None else np.random.default_rng(self.seed).permutation(self.num_rows)


def rows_given(num_rows: int, lane: int, num_lanes: int) -> int:
    """How many of the first `num_rows` rows come from this lane.

    Over all lanes these add up to `num_rows` for every `num_rows` (Hermite's identity), so the same formula says how
    many rows a lane holds, how many it has given before a step, and how uneven the last batch is.
    """
    return (num_rows + lane) // num_lanes


def lane_blocks(row_groups: Sequence[int], lane: int, num_lanes: int) -> list[Block]:
    """Finds the parts of row groups that make a lane.

    Args:
        row_groups: Rows in each row group of the split.
        lane: The lane.
        num_lanes: Lanes in all.

    Returns:
        The lane's blocks in the order of the rows.
    """
    total = sum(row_groups)
    begin = sum(rows_given(total, earlier, num_lanes) for earlier in range(lane))
    end = begin + rows_given(total, lane, num_lanes)
    blocks, first = [], 0
    for index, num_rows in enumerate(row_groups):
        low, high = max(begin, first), min(end, first + num_rows)
        if low < high:
            blocks.append(Block(index, low - first, high - first))
        first += num_rows
    return blocks


def lane_windows(blocks: Sequence[Block], *, window_rows: int, seed: tuple[int, ...] | None) -> Iterator[Window]:
    """Puts a lane's blocks into windows.

    Args:
        blocks: The lane's blocks.
        window_rows: Rows that a window has at least, unless it is the last.
        seed: Keys the order of the blocks and of the rows in a window; None keeps both.

    Yields:
        The windows in the order in which they are visited.
    """
    order = range(len(blocks)) if seed is None else np.random.default_rng((*seed, 0)).permutation(len(blocks))
    pending: list[Block] = []
    num_windows = 0
    for position, index in enumerate(order):
        pending.append(blocks[index])
        num_rows = sum(block.num_rows for block in pending)
        if num_rows >= window_rows or position == len(blocks) - 1:
            num_windows += 1
            yield Window(tuple(pending), None if seed is None else (*seed, num_windows))
            pending = []
