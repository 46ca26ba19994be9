"""The vocabularies of a compiled transform: which raw value of a table has which id.

Ids are NVTabular's, in every table: 0 padding, 1 a missing value, 2 an unknown one, 3 and on the known values by
falling frequency. Padding is never produced.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.errors import TransformError
from rankhouse.embedding_cache.format.text_index import TextIndex

PADDING_ID, MISSING_ID, UNKNOWN_ID, FIRST_KNOWN_ID = 0, 1, 2, 3


@dataclass(frozen=True)
class TextValues:
    """The known texts of a table in the order of their ids.

    Attributes:
        data: uint8, the texts one after the other (UTF-8).
        offsets: int64 [n + 1], where each begins in `data`.
    """

    data: npt.NDArray[np.uint8]
    offsets: npt.NDArray[np.int64]

    @classmethod
    def of(cls, texts: Sequence[str]) -> "TextValues":
        """Makes the list from texts."""
        encoded = [text.encode() for text in texts]
        offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return cls(np.frombuffer(b"".join(encoded), dtype=np.uint8), offsets)


@dataclass(frozen=True)
class IntIndex:
    """The known integers of a table, sorted for binary search.

    Attributes:
        values: int64 [n], sorted.
        ids: int64 [n], the id of each.
    """

    values: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]

    @classmethod
    def build(cls, table: str, values: npt.NDArray[np.int64]) -> "IntIndex":
        """Sorts a table's integers, which stand in the order of their ids.

        Raises:
            TransformError: One stands there twice.
        """
        order = np.argsort(values, kind="stable")
        ordered = values[order]
        twice = np.flatnonzero(ordered[1:] == ordered[:-1])
        if len(twice):
            raise TransformError(f"the vocabulary of table {table!r} holds {int(ordered[twice[0]])} twice")
        return cls(ordered, order.astype(np.int64) + FIRST_KNOWN_ID)

    def find(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Looks values up: int64 [n] to ids, int64 [n]."""
        if not len(self.values):
            return np.full(len(values), UNKNOWN_ID, dtype=np.int64)
        places = np.searchsorted(self.values, values)
        places[places == len(self.values)] = 0
        return np.where(self.values[places] == values, self.ids[places], UNKNOWN_ID)


@dataclass(frozen=True)
class Vocabularies:
    """The vocabularies of all tables. Immutable; any thread may use them.

    Attributes:
        num_rows: For each table the rows that its ids need: 3 and its known values.
        ints: For each table of integers its index.
        text_tables: The tables of texts, in the order of the text index.
        texts: The index of all texts.
    """

    num_rows: Mapping[str, int]
    ints: Mapping[str, IntIndex]
    text_tables: tuple[str, ...]
    texts: TextIndex

    @classmethod
    def build(cls, tables: Mapping[str, TextValues | npt.NDArray[np.int64]]) -> "Vocabularies":
        """Makes the indexes.

        Args:
            tables: For each table its known values in the order of their ids.

        Raises:
            TransformError: A table holds a value twice.
        """
        texts = {name: values for name, values in tables.items() if isinstance(values, TextValues)}
        ints = {name: values for name, values in tables.items() if not isinstance(values, TextValues)}
        num_known = {name: len(values) for name, values in ints.items()}
        num_known |= {name: len(values.offsets) - 1 for name, values in texts.items()}
        return cls(
            num_rows={name: FIRST_KNOWN_ID + num_known[name] for name in tables},
            ints={name: IntIndex.build(name, values) for name, values in ints.items()},
            text_tables=tuple(texts),
            texts=TextIndex.build({name: (values.data, values.offsets) for name, values in texts.items()}),
        )

    @classmethod
    def from_parts(cls, document: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[Any]]) -> "Vocabularies":
        """Opens what `document` and `tensors` gave.

        Raises:
            KeyError: A part is missing.
            TransformError: The parts do not fit each other.
        """
        ints = {name: IntIndex(tensors[f"int.{name}.values"], tensors[f"int.{name}.ids"]) for name in document["ints"]}
        vocabularies = cls(
            num_rows=dict(document["num_rows"]),
            ints=ints,
            text_tables=tuple(document["texts"]),
            texts=TextIndex.from_tensors(tensors),
        )
        vocabularies._check_sizes()
        return vocabularies

    def _check_sizes(self) -> None:
        found = {name: FIRST_KNOWN_ID + len(index.values) for name, index in self.ints.items()}
        sizes = np.diff(self.texts.table_starts).tolist()
        if len(sizes) != len(self.text_tables):
            raise TransformError(f"the text index is of {len(sizes)} tables; expected {len(self.text_tables)}")
        found |= {name: FIRST_KNOWN_ID + size for name, size in zip(self.text_tables, sizes, strict=True)}
        if found != self.num_rows:
            raise TransformError(f"the vocabularies make num_rows {found}; expected {dict(self.num_rows)}")
        for name, index in self.ints.items():
            arrays = (index.values, index.ids)
            if any(array.dtype != np.int64 or array.shape != (len(index.values),) for array in arrays):
                raise TransformError(f"int.{name}.values and .ids are not int64 arrays of one length")

    def document(self) -> dict[str, Any]:
        """What of it stands in a JSON document."""
        return {"num_rows": dict(self.num_rows), "ints": list(self.ints), "texts": list(self.text_tables)}

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """What of it stands in a tensor file."""
        tensors = self.texts.tensors()
        for name, index in self.ints.items():
            tensors[f"int.{name}.values"], tensors[f"int.{name}.ids"] = index.values, index.ids
        return tensors

    def find_texts(self, texts: Sequence[bytes], table_of: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Looks up texts, each of the table with this number in `text_tables`; returns ids, int64 [n]."""
        positions = self.texts.positions(texts, table_of)
        return np.where(positions < 0, UNKNOWN_ID, positions + FIRST_KNOWN_ID)
