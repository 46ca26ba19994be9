"""Which rank gets which part of the tables, once it is known how each is cut."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rankhouse.training.errors import NoRoomError
from rankhouse.training.plan import Placement, ShardSpec
from rankhouse.training.planner.choices import Choice
from rankhouse.training.planner.units import gibibytes
from rankhouse.training.planner.workload import Vector


def fair_seconds(choices: Sequence[Choice]) -> float:
    """Returns what a rank would be busy with its tables if all had the same share."""
    total = sum(float(choice.part_seconds.sum()) for choice in choices)
    return max(total / choices[0].num_ranks, 1e-12)


def balance(choices: Sequence[Choice], names: Sequence[str], *, num_ranks: int, budget_bytes: float) -> list[Placement]:
    """Gives each part to the rank that is then the least busy; the largest table goes first.

    Ranks wait for each other in every exchange, so that the time on a rank itself and the time of its exchanges must
    be even each by itself.

    Args:
        choices: How each table is cut.
        names: The tables' names.
        num_ranks: How many ranks there are.
        budget_bytes: What parts may take of a rank's memory.

    Raises:
        NoRoomError: A part has no rank with room for it.
    """
    if budget_bytes <= 0:
        raise NoRoomError("dense layers, activations and buffers leave no memory for tables")
    ranks = _Ranks(choices, num_ranks, budget_bytes)
    order = sorted(range(len(choices)), key=lambda number: (-ranks.size_of(choices[number]), number))
    owners: dict[int, list[int]] = {}
    for number in sorted(order, key=lambda number: not choices[number].is_everywhere):
        choice = choices[number]
        try:
            if choice.is_everywhere:
                ranks.add_everywhere(choice)
            elif choice.placement.mode == "row_wise":
                owners[number] = ranks.give_rows(choice)
            else:
                owners[number] = []
                for position in range(len(choice.placement.shards)):
                    owners[number].append(ranks.give(choice, position, apart_from=owners[number]))
        except NoRoomError as error:
            raise NoRoomError(f"table {names[number]!r} ({choice.placement.mode}): {error}") from error
    # Only now: most attempts at a cluster that is nearly full end above, and hundreds of ranks have a million parts.
    return [_placed(choice, name, owners.get(at)) for at, (choice, name) in enumerate(zip(choices, names, strict=True))]


def _placed(choice: Choice, name: str, owners: Sequence[int] | None) -> Placement:
    placement = replace(choice.placement, table=name)
    if owners is None:
        return placement
    moved = tuple(_moved(shard, rank) for shard, rank in zip(placement.shards, owners, strict=True))
    return replace(placement, shards=moved) if placement.mode == "row_wise" else _joined(placement, moved)


class _Ranks:
    """How busy the ranks are, by themselves and in exchanges, as shares of the mean; and how full, of the memory."""

    def __init__(self, choices: Sequence[Choice], num_ranks: int, budget_bytes: float) -> None:
        totals = sum((choice.part_seconds.sum(axis=1) for choice in choices), np.zeros(2))
        self._mean = np.maximum(totals / num_ranks, 1e-12)[:, None]
        self._weights = self._mean / self._mean.sum()
        self._budget = budget_bytes
        # Memory counts the more, the scarcer it is.
        total_bytes = sum(float(choice.part_bytes.sum()) for choice in choices)
        self._mean_full = max(total_bytes / num_ranks / budget_bytes, 1e-12)
        self._memory_weight = max(0.01, self._mean_full**2)
        self._busy: Vector = np.zeros((2, num_ranks))
        self._full: Vector = np.zeros(num_ranks)

    def size_of(self, choice: Choice) -> float:
        """Returns how large a table's largest part is, in its largest measure."""
        return max(float((choice.part_seconds / self._mean).max()), choice.peak_bytes / self._budget)

    def add_everywhere(self, choice: Choice) -> None:
        """Gives every rank a copy."""
        self._busy += choice.part_seconds / self._mean
        self._full += choice.part_bytes / self._budget
        if self._full.max() > 1:
            raise NoRoomError(f"no room for {gibibytes(choice.peak_bytes)} on every rank beside the others")

    def give(self, choice: Choice, position: int, *, apart_from: Sequence[int] = ()) -> int:
        """Gives a part to the best rank, and returns that; not to some, as long as others have room."""
        busy = self._busy + choice.part_seconds[:, position, None] / self._mean
        full = self._full + choice.part_bytes[position] / self._budget
        # A high power comes near to the largest of all ranks.
        score = (self._weights * busy**4).sum(axis=0) + self._memory_weight * (full / self._mean_full) ** 4
        score[full > 1] = np.inf
        if choice.allowed is not None:
            score[np.setdiff1d(np.arange(len(score)), choice.allowed)] = np.inf
        others = score.copy()
        others[list(apart_from)] = np.inf
        rank = int(np.argmin(others if np.isfinite(others).any() else score))
        if not np.isfinite(score[rank]):
            raise NoRoomError(self._no_room(choice, position))
        self._busy[:, rank], self._full[rank] = busy[:, rank], full[rank]
        return rank

    def give_rows(self, choice: Choice) -> list[int]:
        """Gives each of some ranks one range of rows: frequent ids may all lie in the first, so the idlest takes it.

        Returns the ranks in the order of the ranges.
        """
        shards = choice.placement.shards
        ranks = np.array(choice.placement.ranks if len(shards) < len(self._full) else range(len(self._full)))
        ranks = ranks[np.argsort((self._weights * self._busy[:, ranks]).sum(axis=0), kind="stable")]
        parts = np.argsort(-choice.part_seconds.sum(axis=0), kind="stable")
        self._busy[:, ranks] += choice.part_seconds[:, parts] / self._mean
        self._full[ranks] += choice.part_bytes[parts] / self._budget
        if self._full.max() > 1:
            raise NoRoomError(self._no_room(choice, int(np.argmax(choice.part_bytes))))
        owners = np.empty(len(shards), np.int64)
        owners[parts] = ranks
        return [int(rank) for rank in owners]

    def _no_room(self, choice: Choice, position: int) -> str:
        return (
            f"no rank has room for {gibibytes(choice.part_bytes[position])} of it beside the others, of "
            f"{gibibytes(self._budget)} that a rank has for tables"
        )


def _moved(shard: ShardSpec, rank: int) -> ShardSpec:
    return ShardSpec(rank, shard.row_start, shard.row_stop, shard.column_start, shard.column_stop)


def _joined(placement: Placement, shards: Sequence[ShardSpec]) -> Placement:
    """Joins slices of columns that follow each other on one rank; a table of one slice is not cut."""
    joined = [shards[0]]
    for shard in shards[1:]:
        if shard.rank == joined[-1].rank:
            joined[-1] = replace(joined[-1], column_stop=shard.column_stop)
        else:
            joined.append(shard)
    mode = placement.mode if len(joined) > 1 else "table_wise"
    return replace(placement, mode=mode, shards=tuple(joined))
