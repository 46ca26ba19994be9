"""The row cache in plain Python: the truth that its implementations are held against, operation by operation."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

LRU, LFU = 0, 1
MOST_USES = 255
EVICTIONS_PER_WAY = 8
WORD = 2**64


def set_of(key: int, num_sets: int) -> int:
    """The set of a key: the high half of SplitMix64's finalizer times the number of sets."""
    key = ((key ^ key >> 30) * 0xBF58476D1CE4E5B9) % WORD
    key = ((key ^ key >> 27) * 0x94D049BB133111EB) % WORD
    return ((key ^ key >> 31) * num_sets) >> 64


@dataclass
class Entry:
    key: int
    row: bytes
    uses: int = 0
    last_used: int = 0


@dataclass
class Set:
    entries: list[Entry] = field(default_factory=list)
    evictions: int = 0


class ReferenceCache:
    """Args as the library's: how many sets and ways there are follows from the capacity, and is given here."""

    def __init__(self, num_sets: int, ways: int, policy: int) -> None:
        self.ways, self.policy = ways, policy
        self.sets = [Set() for _ in range(num_sets)]
        self.clock = self.hits = self.misses = self.inserted = self.evicted = 0

    def find(self, keys: NDArray[np.uint64]) -> tuple[list[bytes | None], list[int]]:
        """Returns the row of each key (None: it is missing), and the positions of missing keys."""
        self.clock += 1
        rows = [self._find(key) for key in keys.tolist()]
        missing = [position for position, row in enumerate(rows) if row is None]
        self.hits += len(rows) - len(missing)
        self.misses += len(missing)
        return rows, missing

    def insert(self, keys: NDArray[np.uint64], rows: list[bytes]) -> None:
        self.clock += 1
        for key, row in zip(keys.tolist(), rows, strict=True):
            if self.sets:
                entry = self._entry(self.sets[set_of(key, len(self.sets))], key)
                entry.key, entry.row = key, row
                self._touch(entry)

    def _find(self, key: int) -> bytes | None:
        if not self.sets:
            return None
        for entry in self.sets[set_of(key, len(self.sets))].entries:
            if entry.key == key:
                self._touch(entry)
                return entry.row
        return None

    def _touch(self, entry: Entry) -> None:
        entry.uses = min(MOST_USES, entry.uses + 1)
        entry.last_used = self.clock

    def _entry(self, of: Set, key: int) -> Entry:
        found = [entry for entry in of.entries if entry.key == key]
        if found:
            return found[0]
        self.inserted += 1
        if len(of.entries) < self.ways:
            of.entries.append(Entry(key, b""))
            return of.entries[-1]
        self.evicted += 1
        of.evictions += 1
        if of.evictions % (EVICTIONS_PER_WAY * self.ways) == 0:
            for entry in of.entries:
                entry.uses //= 2
        by_use = (lambda entry: entry.last_used) if self.policy == LRU else (lambda e: (e.uses, e.last_used))
        gone = min(of.entries, key=by_use)
        gone.uses = 0
        return gone
