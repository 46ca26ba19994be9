"""The initial values of embedding tables: a pure function of (seed, table, row, column).

So a row starts alike whoever holds it, on any number of ranks and under any plan, and no rank makes rows that it does
not own. The generator is counter-based: SplitMix64's finalizer (Steele et al., "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014) of the element's position, under a key made of the seed and the table's name. It is written
out here, in integer arithmetic, so that no library's upgrade can change the values.
"""

import hashlib

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

# Pairs of values made at once: 64 KiB of 64-bit words stay in a core's cache through all passes, and are few enough for
# malloc to have them at hand; twice as many come from the kernel, page by page, and halve the speed.
_BLOCK_PAIRS = 1 << 13


def table_key(seed: int, table: str) -> int:
    """Returns the 64-bit key under which the values of one table are drawn."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{table}".encode(), digest_size=8).digest(), "little")


def uniform_rows(
    key: int, *, bound: float, dim: int, start: int, stop: int, columns: tuple[int, int] | None = None
) -> npt.NDArray[np.float32]:
    """Draws rows [start, stop) of a table, uniform between -bound and bound.

    Args:
        key: The table's key, of `table_key`.
        bound: Where the values end; DLRM takes 1/sqrt(number of rows of the table).
        dim: Width of a row.
        start: First row.
        stop: One behind the last row.
        columns: The first column and one behind the last one; None: all.

    Returns:
        float32 [stop - start, number of columns].
    """
    values = centred_rows(key, dim=dim, start=start, stop=stop, columns=columns)
    values *= np.float32(bound * 2.0**-23)
    return values


def centred_rows(
    key: int, *, dim: int, start: int, stop: int, columns: tuple[int, int] | None = None
) -> npt.NDArray[np.float32]:
    """Draws odd multiples of 1/2, each as likely as any other, in (-2**23, 2**23); see `uniform_rows`."""
    if columns is not None and columns != (0, dim):
        return centred(_bits(_positions(dim, start, stop, columns), key))
    first, last = start * dim, stop * dim
    pairs_from, pairs_to = first // 2, (last + 1) // 2
    values = np.empty(2 * (pairs_to - pairs_from), np.float32)
    for at in range(pairs_from, pairs_to, _BLOCK_PAIRS):
        until = min(at + _BLOCK_PAIRS, pairs_to)
        words = _mix(np.arange(at, until, dtype=np.uint64), key)
        halves = words.astype("<u8", copy=False).view("<u4")
        values[2 * (at - pairs_from) : 2 * (until - pairs_from)] = centred(halves)
    return values[first - 2 * pairs_from : last - 2 * pairs_from].reshape(stop - start, dim)


def random_bits(
    key: int, *, dim: int, start: int, stop: int, columns: tuple[int, int] | None = None
) -> npt.NDArray[np.uint32]:
    """Draws 32 bits for each element, of which `centred_rows` takes the upper 24; see `uniform_rows`."""
    return _bits(_positions(dim, start, stop, columns or (0, dim)), key)


def keyed_bits(key: int, keys: npt.NDArray[np.int64], columns: tuple[int, int]) -> npt.NDArray[np.uint32]:
    """Draws 32 bits for each element of rows that belong to keys, whatever the place of a row in its table.

    Each row has a stream of its own: SplitMix64, seeded with its key's word.

    Args:
        key: The table's key, of `table_key`.
        keys: int64 [n], any values.
        columns: The first column and one behind the last one.

    Returns:
        uint32 [n, number of columns].
    """
    seeds = _mix(keys.astype(np.uint64), key)[:, np.newaxis]
    return _bits(np.broadcast_to(np.arange(*columns, dtype=np.uint64), (len(keys), columns[1] - columns[0])), seeds)


def _positions(dim: int, start: int, stop: int, columns: tuple[int, int]) -> npt.NDArray[np.uint64]:
    rows = np.arange(start, stop, dtype=np.uint64)[:, np.newaxis]
    return rows * np.uint64(dim) + np.arange(*columns, dtype=np.uint64)


def _bits(positions: npt.NDArray[np.uint64], key: int | npt.NDArray[np.uint64]) -> npt.NDArray[np.uint32]:
    """Returns the lower half of the word of an even position's pair, and the upper half of an odd one's."""
    words = _mix(positions >> np.uint64(1), key)
    return (words >> ((positions & np.uint64(1)) << np.uint64(5))).astype(np.uint32)


def _mix(word: npt.NDArray[np.uint64], key: int | npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Returns the words of some counters, in place; `key` may be one for each row of them."""
    word *= _GOLDEN
    word += np.asarray(key, np.uint64)
    shifted = np.empty_like(word)
    for shift, factor in ((30, _MIX_1), (27, _MIX_2), (31, None)):
        np.right_shift(word, np.uint64(shift), out=shifted)
        word ^= shifted
        if factor is not None:
            word *= factor
    return word


def centred(bits: npt.NDArray[np.uint32]) -> npt.NDArray[np.float32]:
    """Returns what `centred_rows` makes of 32 bits each."""
    # The upper 24 of each 32 bits: float32 holds every one of these integers exactly, so no two round together.
    return (bits >> np.uint32(8)).astype(np.float32) - np.float32(2.0**23 - 0.5)
