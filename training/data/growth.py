"""How a table's vocabulary takes in a new day: which values come, which go, and which ids the new ones get."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.vocabulary import (
    FIRST_KNOWN_ID,
    REMOVED,
    UNKNOWN_ID,
    TableChange,
    Vocabularies,
    chosen_values,
    joined_values,
)
from rankhouse.training.data.usage import Usage
from rankhouse.training.data.value_counts import ValueCounts

# Of the 63 that order values which may make way; no value is seen more often than that in all days.
_COUNT_BITS = 40


@dataclass(frozen=True)
class Growth:
    """What a new day makes of a table.

    Attributes:
        change: The values that come and go.
        usage: That of all its ids afterwards.
    """

    change: TableChange
    usage: Usage


def grown(
    vocabularies: Vocabularies,
    table: str,
    day: ValueCounts,
    usage: Usage,
    *,
    frequency_threshold: int,
    max_size: int,
) -> Growth:
    """Takes a new day's values into a table.

    Values that are known keep their ids. New ones come by falling frequency, then by value, and get first the ids that
    are free, then new rows up to `max_size`, then the ids of values that make way. Of the values that the new day has
    not, those go first that were last seen longest ago; among these the rarest, then the lowest id; only as many as are
    needed.

    Args:
        vocabularies: The vocabularies so far; the new day is the generation of their number of layers.
        table: The table.
        day: How often the new day has each value.
        usage: That of the table's ids so far.
        frequency_threshold: New values seen less often stay unknown; 0 takes all.
        max_size: Most rows of the table; 0 is no limit.
    """
    generation, num_rows = len(vocabularies.layers), vocabularies.num_rows[table]
    ids = vocabularies.find(table, day.values)
    known = ids != UNKNOWN_ID
    counts, last_seen = usage.counts.copy(), usage.last_seen.copy()
    counts[ids[known]] += day.counts[known]
    last_seen[ids[known]] = generation

    candidates = np.flatnonzero(~known & (day.counts >= frequency_threshold))
    free = vocabularies.free_ids(table)
    room = len(free) + (max(max_size - num_rows, 0) if max_size else len(candidates))
    leaving = _leaving(counts, last_seen, free, generation, len(candidates) - room)
    coming = candidates[: room + len(leaving)]
    fresh = np.arange(num_rows, num_rows + max(len(coming) - len(free) - len(leaving), 0))
    given = np.concatenate([free, fresh, leaving])[: len(coming)]

    counts = np.append(counts, np.zeros(len(fresh), dtype=np.int64))
    last_seen = np.append(last_seen, np.zeros(len(fresh), dtype=np.int32))
    counts[given], last_seen[given] = day.counts[coming], generation
    return Growth(
        TableChange(
            values=joined_values([chosen_values(day.values, coming), vocabularies.values(table, leaving)]),
            ids=np.concatenate([given, np.full(len(leaving), REMOVED)]),
            freed=leaving,
        ),
        Usage(counts, last_seen),
    )


def _leaving(
    counts: npt.NDArray[np.int64],
    last_seen: npt.NDArray[np.int32],
    free: npt.NDArray[np.int64],
    generation: int,
    num_needed: int,
) -> npt.NDArray[np.int64]:
    """The ids whose values make way, sorted: as many as are needed, or all that may go."""
    if num_needed <= 0:
        return np.empty(0, dtype=np.int64)
    may_go = last_seen < generation
    may_go[:FIRST_KNOWN_ID] = False
    may_go[free] = False
    ids = np.flatnonzero(may_go)
    num_leaving = min(num_needed, len(ids))
    if num_leaving == 0:
        return ids[:0]
    # One number that orders as (last seen, count) does; selecting by it is linear, where sorting a large table is not.
    keys = last_seen[ids].astype(np.int64) << _COUNT_BITS | np.minimum(counts[ids], (1 << _COUNT_BITS) - 1)
    last = np.partition(keys, num_leaving - 1)[num_leaving - 1]
    before, ties = ids[keys < last], ids[keys == last]
    return np.sort(np.concatenate([before, ties[: num_leaving - len(before)]]))
