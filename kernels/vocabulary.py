"""Unique keys, and vocabularies that learn keys as they come, on NumPy arrays.

A key is any int64 of the user's data, none is reserved; an id is a row of a table.
"""

import ctypes
import weakref
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rankhouse.kernels import library
from rankhouse.kernels.arguments import check_array
from rankhouse.kernels.errors import ArgumentError
from rankhouse.kernels.executor import Threads, executor_of

# The rh_eviction of each policy.
EVICTIONS = {"never": 0, "oldest": 1, "rarest": 2}


class UniqueKeys(NamedTuple):
    """The distinct keys of an array: keys[n] == unique[inverse[n]].

    unique: int64 [U], increasing. inverse: int64 [N]. counts: int64 [U], how often each came.
    """

    unique: NDArray[np.int64]
    inverse: NDArray[np.int64]
    counts: NDArray[np.int64]


class Evicted(NamedTuple):
    """Keys that went, int64 [E], and the ids that they had, int64 [E]; the rows of these ids start anew."""

    keys: NDArray[np.int64]
    ids: NDArray[np.int64]


class Entries(NamedTuple):
    """All that a vocabulary knows, int64 [M] each, by increasing key; a candidate has the unknown id."""

    keys: NDArray[np.int64]
    ids: NDArray[np.int64]
    counts: NDArray[np.int64]
    last_steps: NDArray[np.int64]


@dataclass(frozen=True)
class VocabularyOptions:
    """How a vocabulary learns.

    Attributes:
        max_keys: Most keys with an id at one time, 1 to 2^61.
        first_id: The ids given out are first_id to first_id + max_keys - 1.
        unknown_id: The id of keys that have none; outside these.
        min_count: A key gets an id once it was seen so often; 0 and 1: at once.
        max_candidates: Most keys remembered that have no id yet; beyond, the oldest are forgotten. 0: as many as
            max_keys.
        eviction: What makes room when all ids are given out: "never" (new keys stay unknown), "oldest" (the key seen
            last the longest ago goes) or "rarest" (the key seen the fewest times goes).
    """

    max_keys: int
    first_id: int = 0
    unknown_id: int = -1
    min_count: int = 1
    max_candidates: int = 0
    eviction: str = "never"

    def __post_init__(self) -> None:
        if self.eviction not in EVICTIONS:
            raise ArgumentError(f"eviction is {self.eviction!r}: expected one of {sorted(EVICTIONS)}")
        for name, value in asdict(self).items():
            if name != "eviction":
                _check_int64(value, name)

    def native(self) -> library.VocabularyOptions:
        """Gives the rh_vocabulary_options."""
        return library.VocabularyOptions(**{**asdict(self), "eviction": EVICTIONS[self.eviction]})


def unique(keys: NDArray[np.int64], *, num_threads: Threads = None) -> UniqueKeys:
    """Finds the distinct keys, in increasing order.

    Args:
        keys: int64 [N], any values.
        num_threads: Most threads to use; None: as many as there are processors.

    Raises:
        ArgumentError: keys is not a contiguous int64 [N].
    """
    check_array(keys, "keys", np.int64, 1)
    found = UniqueKeys(*(np.empty(len(keys), np.int64) for _ in range(3)))
    num_unique = ctypes.c_int64()
    pointers = [array.ctypes.data for array in found]
    library.check(
        library.load().rh_unique(
            keys.ctypes.data, len(keys), *pointers, ctypes.addressof(num_unique), executor_of(num_threads)
        )
    )
    return UniqueKeys(found.unique[: num_unique.value], found.inverse, found.counts[: num_unique.value])


class Vocabulary:
    """A map from keys to ids that learns keys as they come.

    What it knows depends on the set of (key, count) of each step alone: not on the order of keys, nor on how many ranks
    gathered them. Any number of threads may look up at the same time, while none calls another method. `close` (or the
    end of a `with` block) frees it.

    Raises:
        ArgumentError: An option is out of its range, or the unknown id is one that a key may get.
    """

    def __init__(self, options: VocabularyOptions) -> None:
        handle = ctypes.c_void_p()
        kernels = library.load()
        library.check(kernels.rh_vocabulary_create(options.native(), handle))
        self.options = options
        self._handle = handle
        self._finalizer = weakref.finalize(self, kernels.rh_vocabulary_destroy, handle)

    def close(self) -> None:
        """Frees its memory; other methods raise ArgumentError from now on."""
        self._finalizer()

    def __enter__(self) -> "Vocabulary":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """The number of keys with an id."""
        return int(library.load().rh_vocabulary_size(self._open()))

    @property
    def num_entries(self) -> int:
        """The number of keys with an id and of candidates."""
        return int(library.load().rh_vocabulary_num_entries(self._open()))

    def lookup(self, keys: NDArray[np.int64], *, num_threads: Threads = None) -> NDArray[np.int64]:
        """Gives the ids [N] of keys [N], and the unknown id where a key has none. Changes nothing.

        Raises:
            ArgumentError: keys is not a contiguous int64 [N].
        """
        check_array(keys, "keys", np.int64, 1)
        ids = np.empty(len(keys), np.int64)
        library.check(
            library.load().rh_vocabulary_lookup(
                self._open(), keys.ctypes.data, len(keys), ids.ctypes.data, executor_of(num_threads)
            )
        )
        return ids

    def observe(self, keys: NDArray[np.int64], counts: NDArray[np.int64] | None = None, *, step: int) -> Evicted:
        """Takes note of the keys of a step of training, and gives ids to those seen often enough.

        They get the smallest free ids in the order of their values; where there is none, keys that were not seen in
        this step go, as `eviction` says.

        Args:
            keys: int64 [N]. Duplicates add up.
            counts: int64 [N], how often each came; None: once each. A key that came 0 times was not seen.
            step: Not below that of any call before.

        Returns:
            What went, in the order in which it went.

        Raises:
            ArgumentError: The step goes back, a count is negative, or an array is of another kind; nothing changed.
            OutOfMemoryError: Nothing changed.
        """
        check_array(keys, "keys", np.int64, 1)
        _check_int64(step, "step")
        if counts is not None:
            check_array(counts, "counts", np.int64, 1)
            if len(counts) != len(keys):
                raise ArgumentError(f"{len(counts)} counts for {len(keys)} keys: expected one each")
        return self._evicting(
            len(keys),
            lambda evicted, num_evicted: library.load().rh_vocabulary_observe(
                self._open(),
                keys.ctypes.data,
                None if counts is None else counts.ctypes.data,
                len(keys),
                step,
                evicted,
                num_evicted,
            ),
        )

    def evict(self, *, min_step: int, min_count: int = 0) -> Evicted:
        """Evicts every key last seen before `min_step`, and every one seen fewer than `min_count` times.

        Candidates go too, but are not reported.

        Returns:
            What went, by increasing key.
        """
        _check_int64(min_step, "min_step")
        _check_int64(min_count, "min_count")
        return self._evicting(
            len(self),
            lambda evicted, num_evicted: library.load().rh_vocabulary_evict(
                self._open(), min_step, min_count, evicted, num_evicted
            ),
        )

    def export(self) -> Entries:
        """Gives all entries, candidates too."""
        entries = Entries(*(np.empty(self.num_entries, np.int64) for _ in range(4)))
        library.check(library.load().rh_vocabulary_export(self._open(), *(array.ctypes.data for array in entries)))
        return entries

    def restore(self, entries: Entries) -> None:
        """Replaces all entries by those that `export` gave.

        Raises:
            ArgumentError: Keys do not increase, an id is there twice or out of range, or there are more candidates than
                this vocabulary may have; nothing changed.
        """
        for name, array in entries._asdict().items():
            check_array(array, name, np.int64, 1)
        if len({len(array) for array in entries}) != 1:
            raise ArgumentError(f"entries have {[len(array) for array in entries]} elements: expected as many of each")
        library.check(
            library.load().rh_vocabulary_import(
                self._open(), *(array.ctypes.data for array in entries), len(entries.keys)
            )
        )

    def _open(self) -> ctypes.c_void_p:
        if not self._finalizer.alive:
            raise ArgumentError("the vocabulary is closed")
        return self._handle

    def _evicting(self, most: int, call: Any) -> Evicted:
        evicted = np.empty((most, 2), np.int64)
        num_evicted = ctypes.c_int64()
        library.check(call(evicted.ctypes.data, ctypes.addressof(num_evicted)))
        return Evicted(*(np.ascontiguousarray(column) for column in evicted[: num_evicted.value].T))


def _check_int64(value: int, name: str) -> None:
    # ctypes would cut off what is too large.
    if not -(2**63) <= value < 2**63:
        raise ArgumentError(f"{name} is {value}: expected an int64")
