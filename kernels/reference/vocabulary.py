"""Unique keys and vocabularies in plain Python: the truth that tests hold all others against."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_MAX_COUNT = 2**63 - 1


def unique(keys: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Gives the distinct keys [U] in increasing order, where each key [N] is among them, and how often each came."""
    values, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    return values, inverse.reshape(-1).astype(np.int64), counts.astype(np.int64)


@dataclass
class Entry:
    """What is known of a key. A candidate has no id (None)."""

    id: int | None
    count: int
    last_step: int


class ReferenceVocabulary:
    """The exact semantics of rh_vocabulary, one key at a time."""

    def __init__(
        self,
        *,
        max_keys: int,
        first_id: int = 0,
        unknown_id: int = -1,
        min_count: int = 1,
        max_candidates: int = 0,
        eviction: str = "never",
    ) -> None:
        self.ids = range(first_id, first_id + max_keys)
        self.unknown_id = unknown_id
        self.min_count = max(1, min_count)
        self.max_candidates = max_candidates or max_keys
        self.eviction = eviction
        self.entries: dict[int, Entry] = {}

    def __len__(self) -> int:
        """The number of keys with an id."""
        return len(self._with_id())

    def lookup(self, keys: Iterable[int]) -> list[int]:
        """Gives the ids of keys, and `unknown_id` where a key has none."""
        ids = (self.entries[key].id if key in self.entries else None for key in keys)
        return [self.unknown_id if id_ is None else id_ for id_ in ids]

    def observe(self, keys: Iterable[int], counts: Iterable[int] | None, step: int) -> list[tuple[int, int]]:
        """Takes note of keys; returns the evicted (key, id) in the order in which they went."""
        keys = list(keys)
        totals: dict[int, int] = {}
        for key, count in zip(keys, [1] * len(keys) if counts is None else counts, strict=True):
            if count > 0:
                totals[key] = min(totals.get(key, 0) + count, _MAX_COUNT)
        known = {key for key in totals if key in self.entries}
        for key in known:
            entry = self.entries[key]
            entry.count = min(entry.count + totals[key], _MAX_COUNT)
            entry.last_step = step
        evicted: list[tuple[int, int]] = []
        remembered = []
        for key in sorted(totals):
            entry = self.entries.get(key, Entry(None, totals[key], step))
            if entry.id is not None:
                continue
            if entry.count >= self.min_count and (free := self._free_id(step, evicted)) is not None:
                entry.id = free
                self.entries[key] = entry
            elif key not in known:
                remembered.append((key, entry))
        if self.min_count > 1:
            self.entries.update(remembered)
            self._forget_candidates()
        return evicted

    def evict(self, *, min_step: int, min_count: int = 0) -> list[tuple[int, int]]:
        """Evicts keys last seen before `min_step` or fewer than `min_count` times; returns (key, id) by key."""
        gone = sorted(key for key, e in self.entries.items() if e.last_step < min_step or e.count < min_count)
        evicted = [(key, self.entries.pop(key).id) for key in gone]
        return [(key, id_) for key, id_ in evicted if id_ is not None]

    def export(self) -> list[tuple[int, int, int, int]]:
        """Gives (key, id, count, last step) of every entry, by key."""
        entries = sorted(self.entries.items())
        return [(k, self.unknown_id if e.id is None else e.id, e.count, e.last_step) for k, e in entries]

    def _with_id(self) -> dict[int, int]:
        return {key: entry.id for key, entry in self.entries.items() if entry.id is not None}

    def _free_id(self, step: int, evicted: list[tuple[int, int]]) -> int | None:
        taken = self._with_id()
        free = sorted(set(self.ids) - set(taken.values()))
        if free:
            return free[0]
        if self.eviction == "never":
            return None
        evictable = [key for key in taken if self.entries[key].last_step < step]
        if not evictable:
            return None
        victim = min(evictable, key=self._rank)
        del self.entries[victim]
        evicted.append((victim, taken[victim]))
        return taken[victim]

    def _rank(self, key: int) -> tuple[int, int, int]:
        entry = self.entries[key]
        if self.eviction == "rarest":
            return entry.count, entry.last_step, key
        return entry.last_step, entry.count, key

    def _forget_candidates(self) -> None:
        candidates = [(e.last_step, e.count, key) for key, e in self.entries.items() if e.id is None]
        for *_, key in sorted(candidates)[: max(0, len(candidates) - self.max_candidates)]:
            del self.entries[key]
