"""The initial values of embedding tables: a pure function of (seed, table, row, column).

So a row starts alike whoever holds it, on any number of ranks and under any plan, and no rank makes rows that it does
not own. The generator is counter-based: SplitMix64's finalizer (Steele et al., "Fast Splittable Pseudorandom Number
Generators", OOPSLA 2014) of the element's position, under a key made of the seed and the table's name. It is written
out here, in integer arithmetic, so that no library's upgrade can change the values.
"""

import hashlib
from collections.abc import Iterator

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


def uniform_rows(key: int, *, bound: float, dim: int, start: int, stop: int) -> npt.NDArray[np.float32]:
    """Draws rows [start, stop) of a table, uniform between -bound and bound.

    Args:
        key: The table's key, of `table_key`.
        bound: Where the values end; DLRM takes 1/sqrt(number of rows of the table).
        dim: Width of a row.
        start: First row.
        stop: One behind the last row.

    Returns:
        float32 [stop - start, dim].
    """
    first, last = start * dim, stop * dim
    pairs_from, pairs_to = first // 2, (last + 1) // 2
    values = np.empty(2 * (pairs_to - pairs_from), np.float32)
    for at in range(pairs_from, pairs_to, _BLOCK_PAIRS):
        until = min(at + _BLOCK_PAIRS, pairs_to)
        values[2 * (at - pairs_from) : 2 * (until - pairs_from)] = _centred_pairs(key, at, until)
    values *= np.float32(bound * 2.0**-23)
    return values[first - 2 * pairs_from : last - 2 * pairs_from].reshape(stop - start, dim)


def uniform_row_blocks(
    key: int, *, bound: float, num_rows: int, dim: int, block_bytes: int = 64 << 20
) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """Yields (first row, rows) of a whole table in blocks of bounded size, with the arguments of `uniform_rows`."""
    step = max(1, block_bytes // (4 * dim))
    for start in range(0, num_rows, step):
        stop = min(start + step, num_rows)
        yield start, uniform_rows(key, bound=bound, dim=dim, start=start, stop=stop)


def _centred_pairs(key: int, start: int, stop: int) -> npt.NDArray[np.float32]:
    """Returns two values for each counter in [start, stop): odd multiples of 1/2 in (-2**23, 2**23), centred at 0."""
    word = np.arange(start, stop, dtype=np.uint64)
    word *= _GOLDEN
    word += np.uint64(key)
    shifted = np.empty_like(word)
    for shift, factor in ((30, _MIX_1), (27, _MIX_2), (31, None)):
        np.right_shift(word, np.uint64(shift), out=shifted)
        word ^= shifted
        if factor is not None:
            word *= factor
    # The upper 24 of each 32 bits: float32 holds every one of these integers exactly, so no two round together.
    bits = word.astype("<u8", copy=False).view("<u4") >> np.uint32(8)
    return bits.astype(np.float32) - np.float32(2.0**23 - 0.5)
