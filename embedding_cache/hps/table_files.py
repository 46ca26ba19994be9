"""A table in the files of HPS, read in the order of its keys.

A folder holds `key`, int64 [N], and `emb_vector`, float32 [N, D], row n of which is that of key n; both little-endian,
without a header, in any order. Keys lie as int64 also where HPS looks them up as 32 bits. Both files are mapped: the
keys are sorted in memory, rows pass through it a block at a time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.errors import HpsError
from rankhouse.embedding_cache.format.row_types import RowType
from rankhouse.embedding_cache.format.vocabulary import FIRST_KNOWN_ID, PADDING_ID
from rankhouse.embedding_cache.hps.external_order import ordered, parts
from rankhouse.embedding_cache.hps.ps_json import HpsTable

Keys = npt.NDArray[np.int64]
Rows = npt.NDArray[np.float32]

KEY_FILE, ROW_FILE = "key", "emb_vector"
_KEY, _ELEMENT = np.dtype("<i8"), np.dtype("<f4")


@dataclass(frozen=True)
class TableFiles:
    """A table's files, checked and mapped. Any thread may read it.

    Attributes:
        table: The table.
        keys: int64 [N], sorted.
        order: int64 [N], where each key's row lies in the file; None where the file is in the order of its keys.
        rows: float32 [N, D], mapped, in the order of the file.
    """

    table: HpsTable
    keys: Keys
    order: npt.NDArray[np.int64] | None
    rows: Rows

    @property
    def num_rows(self) -> int:
        """The rows of the version's table: those for padding, missing and unknown values, then one for each key."""
        return FIRST_KNOWN_ID + len(self.keys)

    @property
    def special_rows(self) -> Rows:
        """float32 [3, D]: padding is zeros; a missing and an unknown value have the table's default."""
        special = np.full((FIRST_KNOWN_ID, self.table.dim), self.table.default, np.float32)
        special[PADDING_ID] = 0.0
        return special

    def blocks(self, *, scratch: Path) -> Iterator[Rows]:
        """Yields the rows of the version's table in the order of their ids, some MiB at a time.

        Args:
            scratch: A folder for the rows of a large table that are put in order.
        """
        yield self.special_rows
        if self.order is not None:
            yield from ordered(self.rows, self.order, scratch=scratch)
            return
        for part in parts(len(self.rows), 4 * self.table.dim):
            yield self.rows[part]

    def find(self, keys: Keys) -> Rows:
        """Looks keys [n] up as HPS is meant to: their rows, float32 [n, D], or the default of one that is not there."""
        places = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        rows = self.rows[places if self.order is None else self.order[places]]
        return np.where((self.keys[places] == keys)[:, None], rows, np.float32(self.table.default))

    def check_values(self, row_type: RowType) -> Iterator[int]:
        """Reads all rows in the order of the file; yields the bytes of each block that a row type can hold.

        Raises:
            HpsError: A value is not finite or too large for the row type; the message names its key.
        """
        limit = row_type.limit
        if abs(np.float32(self.table.default)) >= limit:
            raise HpsError(
                f"table {self.table.name!r} has the default {self.table.default}, which {row_type.name} cannot hold; "
                "use another row type"
            )
        for part in parts(len(self.rows), 4 * self.table.dim):
            block = self.rows[part]
            # Written so that a NaN is refused.
            if not (block.max() < limit and block.min() > -limit):
                wrong = ~(np.abs(block) < limit)
                place = int(np.argmax(wrong.any(axis=1)))
                is_finite = np.isfinite(block[place]).all()
                raise HpsError(
                    f"{self.table.folder / ROW_FILE}: row {part.start + place}, of key "
                    f"{self._key_at(part.start + place)}, holds {block[place][wrong[place]][0]}, which {row_type.name} "
                    f"cannot; {'use another row type' if is_finite else 'export the table from a sound model'}"
                )
            yield block.nbytes

    def _key_at(self, place: int) -> int:
        where = place if self.order is None else np.flatnonzero(self.order == place)[0]
        return int(self.keys[where])


def open_table(table: HpsTable, *, has_long_keys: bool) -> TableFiles:
    """Opens a table's files and sorts its keys, at about 24 bytes of memory for each unless the file is sorted.

    Args:
        table: The table.
        has_long_keys: Whether keys have 64 bits; else each must be within 32, unsigned.

    Raises:
        HpsError: A file is missing, empty, or of a size that the other does not fit, or a key stands twice or is too
            large.
    """
    sizes = {name: _size(table, name) for name in (KEY_FILE, ROW_FILE)}
    num_keys = sizes[KEY_FILE] // _KEY.itemsize
    if sizes[KEY_FILE] % _KEY.itemsize or sizes[ROW_FILE] != num_keys * table.dim * _ELEMENT.itemsize:
        raise _misfit(table, sizes)
    keys: Keys = np.memmap(table.folder / KEY_FILE, _KEY, mode="r", shape=(num_keys,))
    rows: Rows = np.memmap(table.folder / ROW_FILE, _ELEMENT, mode="r", shape=(num_keys, table.dim))
    order = None
    if not all((keys[part][1:] > keys[part][:-1]).all() for part in parts(num_keys, _KEY.itemsize, overlap=1)):
        order = np.argsort(keys)
        keys = keys[order]
        _refuse_twice(table, keys, order)
    if not has_long_keys:
        _refuse_long(table, keys, order)
    return TableFiles(table, keys, order, rows)


def _size(table: HpsTable, name: str) -> int:
    path = table.folder / name
    try:
        size = path.stat().st_size if path.is_file() else None
    except OSError:
        size = None
    if size is None:
        raise HpsError(
            f"{path}: there is no such file, for table {table.name!r}; put the folder's path on this machine into "
            f"{table.place} in a copy of ps.json"
        )
    if not size:
        raise HpsError(f"{path}: is empty, for table {table.name!r}; copy it again, or export the table again")
    return size


def _misfit(table: HpsTable, sizes: dict[str, int]) -> HpsError:
    num_keys, rest = divmod(sizes[KEY_FILE], _KEY.itemsize)
    row_bytes = table.dim * _ELEMENT.itemsize
    hints = []
    if not rest and not sizes[ROW_FILE] % (num_keys * _ELEMENT.itemsize):
        dim = sizes[ROW_FILE] // (num_keys * _ELEMENT.itemsize)
        hints.append(f"they fit an embedding_vecsize_per_table of {dim}: correct it in a copy of ps.json")
    if sizes[KEY_FILE] * row_bytes == 4 * sizes[ROW_FILE]:
        hints.append(
            "they fit keys of 32 bits, but HPS reads int64, also where supportlonglong is false: convert the file, for "
            "example with NumPy: fromfile(..., '<u4').astype('<i8').tofile(...)"
        )
    hint = "; or ".join(hints) or "was one cut off? Copy both again"
    return HpsError(
        f"table {table.name!r}: {table.folder / KEY_FILE} has {sizes[KEY_FILE]:,} bytes, {num_keys:,} keys of int64; "
        f"{table.folder / ROW_FILE} has {sizes[ROW_FILE]:,} bytes, {sizes[ROW_FILE] / row_bytes:,.10g} rows of "
        f"{table.dim} float32; {hint}"
    )


def _refuse_twice(table: HpsTable, keys: Keys, order: npt.NDArray[np.int64]) -> None:
    for part in parts(len(keys), _KEY.itemsize, overlap=1):
        twice = np.flatnonzero(keys[part][1:] == keys[part][:-1])
        if len(twice):
            first = part.start + int(twice[0])
            places = sorted(order[first : first + 2].tolist())
            raise HpsError(
                f"{table.folder / KEY_FILE}: key {keys[first]} stands twice, at {places[0]} and {places[1]}, for table "
                f"{table.name!r}; which row would be its own? Keep one of them in {KEY_FILE} and in {ROW_FILE}"
            )


def _refuse_long(table: HpsTable, keys: Keys, order: npt.NDArray[np.int64] | None) -> None:
    for number in (0, -1):
        key = int(keys[number])
        if not 0 <= key < 2**32:
            place = range(len(keys))[number] if order is None else int(order[number])
            raise HpsError(
                f"{table.folder / KEY_FILE}: key {key}, at {place}, for table {table.name!r}, is not within 32 bits "
                f"unsigned: where supportlonglong is false, HPS finds it as {key % 2**32}. Set supportlonglong to true "
                "in a copy of ps.json if requests hold the key as it stands here"
            )
