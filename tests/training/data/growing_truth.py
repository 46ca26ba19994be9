"""How a table's vocabulary should grow, value by value in plain Python."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rankhouse.embedding_cache.format.vocabulary import FIRST_KNOWN_ID, UNKNOWN_ID


class TableTruth:
    """What a table knows after some days.

    Args:
        known: The values of the fit, in the order of their ids, with how often each was seen.
        frequency_threshold: New values seen less often on a day stay unknown.
        max_size: Most rows; 0 is no limit.
    """

    def __init__(self, known: Sequence[tuple[Any, int]], frequency_threshold: int, max_size: int) -> None:
        self.ids = {value: FIRST_KNOWN_ID + place for place, (value, _) in enumerate(known)}
        self.counts = {FIRST_KNOWN_ID + place: count for place, (_, count) in enumerate(known)}
        self.last_seen = dict.fromkeys(self.counts, 0)
        self.num_rows = FIRST_KNOWN_ID + len(known)
        self.threshold, self.max_size = frequency_threshold, max_size
        self.generation = 0

    def find(self, value: Any) -> int:
        return self.ids.get(value, UNKNOWN_ID)

    def live_through(self, day: Counter[Any]) -> list[int]:
        """Takes in a day; returns the ids whose values made way, sorted."""
        self.generation += 1
        for value in day.keys() & self.ids.keys():
            self.counts[self.ids[value]] += day[value]
            self.last_seen[self.ids[value]] = self.generation
        new = [value for value in day if value not in self.ids and day[value] >= self.threshold]
        new.sort(key=lambda value: (-day[value], value.encode() if isinstance(value, str) else value))
        free = sorted(set(range(FIRST_KNOWN_ID, self.num_rows)) - set(self.ids.values()))
        places = free + list(range(self.num_rows, self.max_size or self.num_rows + len(new)))
        value_of = {id_: value for value, id_ in self.ids.items()}
        idle = [id_ for id_ in value_of if self.last_seen[id_] < self.generation]
        idle.sort(key=lambda id_: (self.last_seen[id_], self.counts[id_], id_))
        leaving = sorted(idle[: max(len(new) - len(places), 0)])
        for id_ in leaving:
            del self.ids[value_of[id_]]
        for value, id_ in zip(new, places + leaving, strict=False):
            self.ids[value], self.counts[id_], self.last_seen[id_] = id_, day[value], self.generation
            self.num_rows = max(self.num_rows, id_ + 1)
        return leaving
