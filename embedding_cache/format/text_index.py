"""An index from (table, text) to position, as plain arrays: exact, memory-mapped, shared by all processes that open it.

Open addressing with linear probing over arrays that lie in a file, so opening it costs nothing and a text costs
its bytes plus about 32 more, where a Python dict would take over 150. A batch is looked up in a few NumPy passes.

A text's hash is a polynomial in its bytes modulo 2**64 (vectorizes over ragged texts), mixed with its table and length
by the finalizer of MurmurHash3. A hit is compared byte by byte, so a hash only ever decides where to look.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.errors import TransformError

ABSENT = -1

_ARRAYS = {"data": "uint8", "offsets": "int64", "slots": "uint64", "table_starts": "int64"}

_BASE = np.uint64(0x9E3779B97F4A7C15)  # Odd, so that its powers never vanish modulo 2**64.
_TABLE = np.uint64(0xD6E8FEB86659FD93)
_LENGTH = np.uint64(0xCA5A826395121157)
_HIGH = np.uint64(32)
_ENTRY = np.uint64(0xFFFFFFFF)
_WINDOW = np.arange(8, dtype=np.uint64)  # Slots read at once: nearly every search ends in them.
_CHUNK = 1 << 16  # Texts hashed at once while building: bounds the memory for the powers of each byte.


@dataclass(frozen=True)
class Texts:
    """Texts to look up, hashed once for all indexes.

    Attributes:
        data: uint8, the texts one after the other.
        begins: int64 [n], where each begins in `data`.
        lengths: int64 [n], the bytes of each; none is empty.
        table_of: int64 [n], the table of each.
        hashes: uint64 [n].
    """

    data: npt.NDArray[Any]
    begins: npt.NDArray[Any]
    lengths: npt.NDArray[Any]
    table_of: npt.NDArray[Any]
    hashes: npt.NDArray[Any]

    @classmethod
    def of(cls, texts: Sequence[bytes], table_of: npt.NDArray[Any]) -> "Texts":
        """Joins and hashes n texts, each of the table with this number.

        Raises:
            TransformError: A text is empty, which would be a missing value.
        """
        lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
        return cls.joined(np.frombuffer(b"".join(texts), dtype=np.uint8), lengths, table_of)

    @classmethod
    def joined(cls, data: npt.NDArray[Any], lengths: npt.NDArray[Any], table_of: npt.NDArray[Any]) -> "Texts":
        """Hashes n texts that lie one after the other in `data`.

        Raises:
            TransformError: A text is empty, which would be a missing value.
        """
        if not lengths.all():
            raise TransformError("an empty text stands for a missing value: give it the length 0 and no value")
        return cls(data, np.cumsum(lengths) - lengths, lengths, table_of, _hashes(data, lengths, table_of))


@dataclass(frozen=True)
class TextIndex:
    """Finds the number of a text among those of all tables. Immutable; any thread may use it.

    Attributes:
        data: uint8, the texts of all tables one after the other.
        offsets: int64 [n + 1], where each text begins in `data`.
        slots: uint64 [power of two], the upper half of a text's hash above the text's number plus one; 0 is empty.
        table_starts: int64 [num_tables + 1], the number of each table's first text.
    """

    data: npt.NDArray[Any]
    offsets: npt.NDArray[Any]
    slots: npt.NDArray[Any]
    table_starts: npt.NDArray[Any]

    @classmethod
    def build(cls, tables: Mapping[str, tuple[npt.NDArray[Any], npt.NDArray[Any]]]) -> "TextIndex":
        """Makes the index.

        Args:
            tables: For each table the bytes of its texts, uint8 [total], and their offsets, int64 [n + 1] from 0.

        Raises:
            TransformError: A table holds a text twice.
        """
        index = cls._of_parts([list(tables.values())])
        index._refuse_duplicates(tuple(tables))
        return index

    @classmethod
    def joined(cls, indexes: Sequence["TextIndex"]) -> "TextIndex":
        """Joins indexes of the same tables; of a text that several have, the first one's is found.

        The texts of a table stand side by side, those of the first index first.
        """
        return cls._of_parts(
            [[index._table(number) for number in range(len(index.table_starts) - 1)] for index in indexes]
        )

    @classmethod
    def _of_parts(cls, parts: Sequence[Sequence[tuple[npt.NDArray[Any], npt.NDArray[Any]]]]) -> "TextIndex":
        """Makes an index of the texts of parts; each gives bytes and offsets of every table."""
        in_order = [part for table in zip(*parts, strict=True) for part in table]
        sizes = np.array([len(offsets) - 1 for _, offsets in in_order], dtype=np.int64)
        lengths = np.concatenate([np.empty(0, np.int64), *(np.diff(offsets) for _, offsets in in_order)])
        data = np.concatenate([np.empty(0, np.uint8), *(data for data, _ in in_order)])
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        sizes_of_tables = sizes.reshape(-1, len(parts)).sum(axis=1)
        starts = np.concatenate([[0], np.cumsum(sizes_of_tables)]).astype(np.int64)
        table_of = np.repeat(np.arange(len(sizes_of_tables)), sizes_of_tables)
        hashes = np.empty(len(lengths), dtype=np.uint64)
        for begin in range(0, len(lengths), _CHUNK):
            part = slice(begin, min(begin + _CHUNK, len(lengths)))
            texts = data[offsets[part.start] : offsets[part.stop]]
            hashes[part] = _hashes(texts, lengths[part], table_of[part])
        part_of = np.repeat(np.arange(len(in_order)) % len(parts), sizes)
        return cls(data, offsets, _filled_slots(hashes, part_of, len(parts)), starts)

    def _table(self, number: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """The bytes and offsets of a table's texts."""
        offsets = self.offsets[self.table_starts[number] : self.table_starts[number + 1] + 1]
        return self.data[offsets[0] : offsets[-1]], offsets - offsets[0]

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, npt.NDArray[Any]]) -> "TextIndex":
        """Opens an index from the arrays that `tensors` gave.

        Raises:
            KeyError: An array is missing.
            TransformError: The arrays do not fit each other.
        """
        index = cls(**{name: tensors[f"text.{name}"] for name in _ARRAYS})
        for name, dtype in _ARRAYS.items():
            array = getattr(index, name)
            if array.dtype != dtype or array.ndim != 1:
                raise TransformError(
                    f"text.{name} is {array.dtype} {list(array.shape)}; expected {dtype} of one dimension"
                )
        num_texts, num_slots = len(index.offsets) - 1, len(index.slots)
        # With half of the slots empty, every search comes to an end.
        if num_slots & (num_slots - 1) or num_slots < max(2 * num_texts, 1):
            raise TransformError(
                f"text.slots has {num_slots} slots for {num_texts} texts; expected a power of two, 2 n or more"
            )
        for name, ends, last in (
            ("offsets", index.offsets, len(index.data)),
            ("table_starts", index.table_starts, num_texts),
        ):
            if not len(ends) or ends[0] != 0 or ends[-1] != last:
                raise TransformError(f"text.{name} does not run from 0 to {last}")
        return index

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """The index as named arrays."""
        return {f"text.{name}": getattr(self, name) for name in _ARRAYS}

    def numbers(self, texts: Texts, *, few: bool = False) -> npt.NDArray[Any]:
        """Looks texts up.

        Args:
            texts: The texts.
            few: Whether only few are expected to be found. It changes the time that this takes, and nothing else.

        Returns:
            int64 [n]: the number of each among the texts of all tables, or ABSENT.
        """
        found = np.full(len(texts.lengths), ABSENT, dtype=np.int64)
        hashes, mask = texts.hashes, np.uint64(len(self.slots) - 1)
        # A search whose first slot is empty is at its end.
        open_ = np.flatnonzero(self.slots[hashes & mask]) if few else np.arange(len(hashes))
        places = hashes[open_]
        while len(open_):
            # A window of slots each; what matters is the first that is empty or of the same hash, if any is.
            slots = self.slots[(places[:, None] + _WINDOW) & mask]
            stops = (slots == 0) | (slots >> _HIGH == hashes[open_, None] >> _HIGH)
            first = stops.argmax(axis=1)
            each = np.arange(len(open_))
            slots, stopped = slots[each, first], stops[each, first]
            settled = slots == 0
            alike = np.flatnonzero(stopped & ~settled)
            who, numbers = open_[alike], (slots[alike] & _ENTRY).astype(np.int64) - 1
            same = self._equal(numbers, texts, who)
            found[who[same]] = numbers[same]
            settled[alike[same]] = True
            # The rest goes on, behind a text that only had the same hash or behind the window.
            ahead = np.where(stopped, first + 1, len(_WINDOW)).astype(np.uint64)
            open_, places = open_[~settled], (places + ahead)[~settled]
        return found

    def _equal(self, numbers: npt.NDArray[Any], texts: Texts, who: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Compares the index's texts of these numbers with those at the places `who` of `texts`, byte by byte."""
        own_begins, lengths, table_of = self.offsets[numbers], texts.lengths[who], texts.table_of[who]
        equal: npt.NDArray[Any] = (
            (self.offsets[numbers + 1] - own_begins == lengths)
            & (numbers >= self.table_starts[table_of])
            & (numbers < self.table_starts[table_of + 1])
        )
        candidates = np.flatnonzero(equal)
        if len(candidates):
            sizes = lengths[candidates]
            own_begins = own_begins[candidates]
            own = within(own_begins, sizes)
            other = own + np.repeat(texts.begins[who[candidates]] - own_begins, sizes)
            same = self.data[own] == texts.data[other]
            equal[candidates] = np.logical_and.reduceat(same, np.cumsum(sizes) - sizes)
        return equal

    def _refuse_duplicates(self, tables: tuple[str, ...]) -> None:
        lengths, sizes = np.diff(self.offsets), np.diff(self.table_starts)
        table_of = np.repeat(np.arange(len(sizes)), sizes)
        for begin in range(0, len(lengths), _CHUNK):
            part = slice(begin, min(begin + _CHUNK, len(lengths)))
            data = self.data[self.offsets[part.start] : self.offsets[part.stop]]
            found = self.numbers(Texts.joined(data, lengths[part], table_of[part]))
            twice = np.flatnonzero(found != np.arange(part.start, part.stop))
            if len(twice):
                number = begin + int(twice[0])
                text = self.data[self.offsets[number] : self.offsets[number + 1]].tobytes()
                table = tables[table_of[number]]
                raise TransformError(f"the vocabulary of table {table!r} holds {text!r} twice")


def within(begins: npt.NDArray[Any], sizes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The places of all bytes of ranges, range by range."""
    firsts = np.cumsum(sizes) - sizes
    places: npt.NDArray[Any] = np.arange(sizes.sum()) + np.repeat(begins - firsts, sizes)
    return places


def _hashes(data: npt.NDArray[Any], lengths: npt.NDArray[Any], table_of: npt.NDArray[Any]) -> npt.NDArray[Any]:
    begins = np.cumsum(lengths) - lengths
    powers = _powers(int(lengths.max(initial=0)))
    within = np.arange(len(data)) - np.repeat(begins, lengths)
    terms = (data.astype(np.uint64) + np.uint64(1)) * powers[within]
    hashes: npt.NDArray[Any] = np.add.reduceat(terms, begins) if len(terms) else np.zeros(len(lengths), np.uint64)
    hashes ^= lengths.astype(np.uint64) * _LENGTH + (table_of.astype(np.uint64) + np.uint64(1)) * _TABLE
    for multiplier in (np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)):
        hashes ^= hashes >> np.uint64(33)
        hashes *= multiplier
    hashes ^= hashes >> np.uint64(33)
    return hashes


def _powers(count: int) -> npt.NDArray[Any]:
    return np.multiply.accumulate(np.full(count, _BASE, dtype=np.uint64))


def _filled_slots(hashes: npt.NDArray[Any], part_of: npt.NDArray[Any], num_parts: int) -> npt.NDArray[Any]:
    """Places every hash in the first free slot at or after its own, part by part, all of a part one at a time."""
    if len(hashes) >= 2**32 - 1:
        raise TransformError(f"{len(hashes)} texts are more than one index holds (2**32 - 2); lower max_size")
    slots = np.zeros(1 << max(int(2 * len(hashes) - 1).bit_length(), 1), dtype=np.uint64)
    mask = np.uint64(len(slots) - 1)
    all_entries = hashes >> _HIGH << _HIGH | np.arange(1, len(hashes) + 1, dtype=np.uint64)
    ends = np.cumsum(np.bincount(part_of, minlength=num_parts))
    for part in np.split(np.argsort(part_of, kind="stable"), ends[:-1]):
        # Equal texts have the same way through the slots, so that a search meets the one of the earlier part first.
        entries, places = all_entries[part], hashes[part] & mask
        while len(entries):
            free = slots[places] == 0
            slots[places[free]] = entries[free]
            # Of several that found the same slot one got it; the others, and those that found it taken, go on.
            lost = slots[places] != entries
            entries, places = entries[lost], (places[lost] + np.uint64(1)) & mask
    return slots
