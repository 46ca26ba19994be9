"""The vocabularies of a compiled transform: which raw value of a table has which id.

Ids are NVTabular's, in every table: 0 padding, 1 a missing value, 2 an unknown one, 3 and on the known values by
falling frequency. Padding is never produced.

Vocabularies grow by layers: the first holds all values of the fit, each later one only what changed. A value keeps its
id until it is removed, which frees the id.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from rankhouse.embedding_cache.format.errors import TransformError
from rankhouse.embedding_cache.format.text_index import TextIndex, Texts, within

PADDING_ID, MISSING_ID, UNKNOWN_ID, FIRST_KNOWN_ID = 0, 1, 2, 3

# What stands for an id where a layer removes a value, and where it says nothing of one.
REMOVED, _UNTOLD = -1, -2
_NONE = np.empty(0, dtype=np.int64)
_CHUNK = 1 << 16  # Texts looked up at once: bounds the memory for what is computed of each byte.


@dataclass(frozen=True)
class TextValues:
    """Texts in some order, as that of their ids.

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

    def __len__(self) -> int:
        return len(self.offsets) - 1


Values = TextValues | npt.NDArray[np.int64]


def joined_values(parts: Sequence[Values]) -> Values:
    """One list of values out of one or more of the same type."""
    texts = [part for part in parts if isinstance(part, TextValues)]
    if not texts:
        return np.concatenate([part for part in parts if not isinstance(part, TextValues)])
    lengths = np.concatenate([np.diff(part.offsets) for part in texts])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return TextValues(np.concatenate([part.data[part.offsets[0] : part.offsets[-1]] for part in texts]), offsets)


def chosen_values(values: Values, places: npt.NDArray[np.int64]) -> Values:
    """The values at some places, in their order."""
    if not isinstance(values, TextValues):
        return values[places]
    lengths = np.diff(values.offsets)[places]
    data = values.data[within(values.offsets[places], lengths)]
    return TextValues(data, np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


@dataclass(frozen=True)
class TableChange:
    """What a new layer changes in a table.

    Attributes:
        values: Values that get an id, and values that lose theirs; none stands twice.
        ids: int64 [n], the id of each; REMOVED where it loses its own.
        freed: int64 [m], the ids of the values that lose theirs, sorted. `ids` may give them out again.
    """

    values: Values
    ids: npt.NDArray[np.int64]
    freed: npt.NDArray[np.int64]


@dataclass(frozen=True)
class IntIndex:
    """Integers of a table, sorted for binary search.

    Attributes:
        values: int64 [n], sorted.
        ids: int64 [n], the id of each, or REMOVED.
    """

    values: npt.NDArray[np.int64]
    ids: npt.NDArray[np.int64]

    @classmethod
    def build(cls, table: str, values: npt.NDArray[np.int64], ids: npt.NDArray[np.int64]) -> "IntIndex":
        """Sorts a table's integers.

        Raises:
            TransformError: One stands there twice.
        """
        order = np.argsort(values, kind="stable")
        ordered = values[order]
        twice = np.flatnonzero(ordered[1:] == ordered[:-1])
        if len(twice):
            raise TransformError(f"the vocabulary of table {table!r} holds {int(ordered[twice[0]])} twice")
        return cls(ordered, ids[order])

    @classmethod
    def joined(cls, indexes: Sequence["IntIndex"]) -> "IntIndex":
        """Joins indexes; of an integer that several have, the first one's id stays."""
        values, first = np.unique(np.concatenate([index.values for index in indexes]), return_index=True)
        return cls(values, np.concatenate([index.ids for index in indexes])[first])

    def find(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Looks values up: int64 [n] to ids, int64 [n]; negative where there is none."""
        if not len(self.values):
            return np.full(len(values), _UNTOLD, dtype=np.int64)
        places = np.searchsorted(self.values, values)
        places[places == len(self.values)] = 0
        return np.where(self.values[places] == values, self.ids[places], _UNTOLD)


@dataclass(frozen=True)
class Layer:
    """What one tensor file holds of the vocabularies.

    Attributes:
        ints: For each table of integers its index.
        texts: The index of the texts of all tables.
        text_ids: int64 [n], the id of each text, or REMOVED; None in the first layer, where the texts of each table
            stand in the order of their ids.
        freed: For each table the ids that lost their value in this layer, int64 [m], sorted; empty in the first one.
    """

    ints: Mapping[str, IntIndex]
    texts: TextIndex
    text_ids: npt.NDArray[np.int64] | None
    freed: Mapping[str, npt.NDArray[np.int64]]

    @classmethod
    def from_tensors(
        cls, document: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[Any]], *, is_first: bool
    ) -> "Layer":
        """Opens what `tensors` gave.

        Raises:
            KeyError: A part is missing.
            TransformError: The parts do not fit each other.
        """
        layer = cls(
            ints={
                name: IntIndex(tensors[f"int.{name}.values"], tensors[f"int.{name}.ids"]) for name in document["ints"]
            },
            texts=TextIndex.from_tensors(tensors),
            text_ids=None if is_first else tensors["text.ids"],
            freed={} if is_first else {name: tensors[f"freed.{name}"] for name in document["num_rows"]},
        )
        layer._check(len(document["texts"]))
        return layer

    def _check(self, num_text_tables: int) -> None:
        if len(self.texts.table_starts) - 1 != num_text_tables:
            raise TransformError(
                f"the text index is of {len(self.texts.table_starts) - 1} tables; expected {num_text_tables}"
            )
        for name, index in self.ints.items():
            if not all(_is_ids(array, len(index.values)) for array in (index.values, index.ids)):
                raise TransformError(f"int.{name}.values and .ids are not int64 arrays of one length")
        num_texts = len(self.texts.offsets) - 1
        if self.text_ids is not None and not _is_ids(self.text_ids, num_texts):
            raise TransformError(f"text.ids is not an int64 array of {num_texts} ids, one for each text")
        for name, freed in self.freed.items():
            if not _is_ids(freed, len(freed)):
                raise TransformError(
                    f"freed.{name} is {freed.dtype} {list(freed.shape)}; expected int64 of one dimension"
                )

    def tensors(self) -> dict[str, npt.NDArray[Any]]:
        """The layer as named arrays."""
        tensors = self.texts.tensors()
        for name, index in self.ints.items():
            tensors[f"int.{name}.values"], tensors[f"int.{name}.ids"] = index.values, index.ids
        if self.text_ids is not None:
            tensors["text.ids"] = self.text_ids
        return tensors | {f"freed.{name}": freed for name, freed in self.freed.items()}

    def find_texts(self, texts: Texts) -> npt.NDArray[np.int64]:
        """Looks texts up: n texts to ids, int64 [n]; negative where there is none."""
        numbers = self.texts.numbers(texts, few=self.text_ids is not None)
        if self.text_ids is None:
            ids = numbers - self.texts.table_starts[texts.table_of] + FIRST_KNOWN_ID
        else:
            ids = self.text_ids[numbers] if len(self.text_ids) else numbers
        return np.where(numbers < 0, _UNTOLD, ids)

    def ids(self, table: str, text_tables: Sequence[str]) -> npt.NDArray[np.int64]:
        """The ids of a table's values in a later layer, int64 [n]; REMOVED where one loses its own."""
        if table in self.ints:
            return self.ints[table].ids
        assert self.text_ids is not None
        begin, end = self.texts.table_starts[text_tables.index(table) :][:2].tolist()
        return self.text_ids[begin:end]

    def values(self, table: str, text_tables: Sequence[str], places: npt.NDArray[np.int64]) -> Values:
        """The values of a table at places of `ids`."""
        if table in self.ints:
            return self.ints[table].values[places]
        texts = TextValues(self.texts.data, self.texts.offsets)
        return chosen_values(texts, self.texts.table_starts[text_tables.index(table)] + places)

    @classmethod
    def joined(cls, layers: Sequence["Layer"]) -> "Layer":
        """Joins later layers, the newest first, into one that gives what the first that knows a value gives."""
        if len(layers) == 1:
            return layers[0]
        num_text_tables = len(layers[0].texts.table_starts) - 1
        ids_by_table = [
            layer.text_ids[slice(*layer.texts.table_starts[table : table + 2])]
            for table in range(num_text_tables)
            for layer in layers
            if layer.text_ids is not None
        ]
        return cls(
            ints={name: IntIndex.joined([layer.ints[name] for layer in layers]) for name in layers[0].ints},
            texts=TextIndex.joined([layer.texts for layer in layers]),
            text_ids=np.concatenate([_NONE, *ids_by_table]),
            freed={},
        )


@dataclass(frozen=True)
class Vocabularies:
    """The vocabularies of all tables. Immutable; any thread may use it.

    Attributes:
        num_rows: For each table the rows that its ids need: 3 and all that were ever given.
        text_tables: The tables of texts, in the order of the text index.
        layers: What the fit found, and what changed since, the oldest first.
    """

    num_rows: Mapping[str, int]
    text_tables: tuple[str, ...]
    layers: tuple[Layer, ...]

    @classmethod
    def build(cls, tables: Mapping[str, Values]) -> "Vocabularies":
        """Makes the indexes of a fit.

        Args:
            tables: For each table its known values in the order of their ids.

        Raises:
            TransformError: A table holds a value twice.
        """
        ids = {name: np.arange(len(values), dtype=np.int64) + FIRST_KNOWN_ID for name, values in tables.items()}
        return cls(
            num_rows={name: FIRST_KNOWN_ID + len(values) for name, values in tables.items()},
            text_tables=tuple(name for name, values in tables.items() if isinstance(values, TextValues)),
            layers=(Layer(*_indexes(tables, ids), text_ids=None, freed={}),),
        )

    def extended(self, changes: Mapping[str, TableChange]) -> "Vocabularies":
        """Adds a layer.

        Args:
            changes: What changes in each table, for all tables.

        Raises:
            TransformError: A table holds a value twice, or ids and freed ids contradict each other.
        """
        ids = {name: changes[name].ids for name in self.num_rows}
        num_rows = {name: max(count, ids[name].max(initial=0) + 1) for name, count in self.num_rows.items()}
        layer = Layer(
            *_indexes({name: changes[name].values for name in (*self.int_tables, *self.text_tables)}, ids),
            text_ids=np.concatenate([_NONE, *(ids[name] for name in self.text_tables)]),
            freed={name: changes[name].freed for name in self.num_rows},
        )
        extended = Vocabularies({name: int(n) for name, n in num_rows.items()}, self.text_tables, (*self.layers, layer))
        extended._check()
        return extended

    @classmethod
    def from_parts(
        cls, document: Mapping[str, Any], layers: Sequence[Mapping[str, npt.NDArray[Any]]]
    ) -> "Vocabularies":
        """Opens what `document` and the `tensors` of each layer gave.

        Raises:
            KeyError: A part is missing.
            TransformError: The parts do not fit each other.
        """
        opened = [Layer.from_tensors(document, tensors, is_first=index == 0) for index, tensors in enumerate(layers)]
        vocabularies = cls(dict(document["num_rows"]), tuple(document["texts"]), tuple(opened))
        vocabularies._check()
        return vocabularies

    def _check(self) -> None:
        """Checks that the layers make `num_rows` and that each frees the ids of the values that it removes."""
        found = self._fitted_rows()
        for number, layer in enumerate(self.layers[1:], start=1):
            for name, freed in layer.freed.items():
                ids = layer.ids(name, self.text_tables)
                found[name] = max(found[name], int(ids.max(initial=0)) + 1)
                given = np.concatenate([ids[ids != REMOVED], freed])
                if len(freed) != (ids == REMOVED).sum() or given.min(initial=FIRST_KNOWN_ID) < FIRST_KNOWN_ID:
                    raise TransformError(
                        f"layer {number} of the vocabulary of table {name!r} frees {len(freed)} ids for "
                        f"{(ids == REMOVED).sum()} removed values, or has an id below {FIRST_KNOWN_ID}"
                    )
        if found != self.num_rows:
            raise TransformError(f"the vocabularies make num_rows {found}; expected {dict(self.num_rows)}")

    def _fitted_rows(self) -> dict[str, int]:
        """For each table the rows that its first layer needs."""
        base = self.layers[0]
        ints = {name: FIRST_KNOWN_ID + len(index.values) for name, index in base.ints.items()}
        sizes = np.diff(base.texts.table_starts).tolist()
        return ints | {name: FIRST_KNOWN_ID + size for name, size in zip(self.text_tables, sizes, strict=True)}

    def document(self) -> dict[str, Any]:
        """What of it stands in a JSON document."""
        ints = list(self.layers[0].ints)
        return {"num_rows": dict(self.num_rows), "ints": ints, "texts": list(self.text_tables)}

    @property
    def int_tables(self) -> tuple[str, ...]:
        """The tables of integers."""
        return tuple(self.layers[0].ints)

    @cached_property
    def _changes(self) -> Layer | None:
        """All later layers as one, so that many cost a batch what one does."""
        return Layer.joined(self.layers[:0:-1]) if len(self.layers) > 1 else None

    def find_ints(self, table: str, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Looks up integers of a table, int64 [n]; returns ids, int64 [n]."""
        ids = self.layers[0].ints[table].find(values)
        return _settled(ids, self._changes.ints[table].find(values) if self._changes else None)

    def find_texts(self, texts: Texts) -> npt.NDArray[np.int64]:
        """Looks up n texts, each of the table with this number in `text_tables`; returns ids, int64 [n]."""
        ids = self.layers[0].find_texts(texts)
        return _settled(ids, self._changes.find_texts(texts) if self._changes else None)

    def find(self, table: str, values: Values) -> npt.NDArray[np.int64]:
        """Looks up values of a table, none of them an empty text; returns ids, int64 [n]."""
        if not isinstance(values, TextValues):
            return self.find_ints(table, values)
        number, lengths = self.text_tables.index(table), np.diff(values.offsets)
        ids = np.empty(len(values), dtype=np.int64)
        for begin in range(0, len(values), _CHUNK):
            part = slice(begin, min(begin + _CHUNK, len(values)))
            data = values.data[values.offsets[part.start] : values.offsets[part.stop]]
            texts = Texts.joined(data, lengths[part], np.full(part.stop - begin, number))
            ids[part] = self.find_texts(texts)
        return ids

    def free_ids(self, table: str) -> npt.NDArray[np.int64]:
        """The ids of a table that have no value: int64 [m], sorted, of those from 3 to below `num_rows`."""
        is_free = np.ones(self.num_rows[table], dtype=np.bool_)
        is_free[: self._fitted_rows()[table]] = False
        for layer in self.layers[1:]:
            ids = layer.ids(table, self.text_tables)
            is_free[layer.freed[table]] = True
            is_free[ids[ids != REMOVED]] = False
        return np.flatnonzero(is_free)

    def given_since(self, table: str, num_layers: int) -> npt.NDArray[np.int64]:
        """The ids that the layers after the first `num_layers`, 1 or more, gave to values: int64 [m], sorted."""
        given = [layer.ids(table, self.text_tables) for layer in self.layers[num_layers:]]
        return np.setdiff1d(np.concatenate([_NONE, *given]), [REMOVED])

    def values(self, table: str, ids: npt.NDArray[np.int64]) -> Values:
        """The values that have these ids of a table, int64 [n], each of which has one: n values in any order."""
        found: list[Values] = []
        for layer in self.layers[:0:-1]:
            own = layer.ids(table, self.text_tables)
            here = np.flatnonzero(np.isin(own, ids))
            found.append(layer.values(table, self.text_tables, here))
            ids = np.setdiff1d(ids, own[here])
        base = self.layers[0]
        here = np.flatnonzero(np.isin(base.ints[table].ids, ids)) if table in base.ints else ids - FIRST_KNOWN_ID
        return joined_values([*found, base.values(table, self.text_tables, here)])


def _indexes(
    tables: Mapping[str, Values], ids: Mapping[str, npt.NDArray[np.int64]]
) -> tuple[dict[str, IntIndex], TextIndex]:
    texts = {name: (values.data, values.offsets) for name, values in tables.items() if isinstance(values, TextValues)}
    ints = {
        name: IntIndex.build(name, values, ids[name])
        for name, values in tables.items()
        if not isinstance(values, TextValues)
    }
    return ints, TextIndex.build(texts)


def _settled(ids: npt.NDArray[np.int64], newer: npt.NDArray[np.int64] | None) -> npt.NDArray[np.int64]:
    """The ids that the first layer gave, where the changes say nothing newer; negative ones are of unknown values."""
    if newer is not None:
        ids = np.where(newer == _UNTOLD, ids, newer)
    return np.where(ids < 0, UNKNOWN_ID, ids)


def _is_ids(array: npt.NDArray[Any], length: int) -> bool:
    return array.dtype == np.int64 and array.shape == (length,)
