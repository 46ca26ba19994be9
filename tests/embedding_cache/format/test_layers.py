"""Vocabularies that grow: layers against a dictionary that has lived through the same days."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankhouse.embedding_cache.format.errors import CorruptFileError, ManifestError, TransformError
from rankhouse.embedding_cache.format.feature import Feature
from rankhouse.embedding_cache.format.files import file_record
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.tensors import read_tensors, write_tensors
from rankhouse.embedding_cache.format.text_index import Texts
from rankhouse.embedding_cache.format.transform import JSON_NAME, CompiledTransform, layer_files
from rankhouse.embedding_cache.format.vocabulary import (
    FIRST_KNOWN_ID,
    REMOVED,
    UNKNOWN_ID,
    TableChange,
    TextValues,
    Values,
    Vocabularies,
)

TABLES = ("t", "i", "u")
NONE = np.empty(0, np.int64)


def values_of(table: str, numbers: list[int]) -> list[Any]:
    """Raw values of a table; tables of texts share some of theirs, which must not be mixed up."""
    return [number * 10**15 - 3 for number in numbers] if table == "i" else [f"é{number}" for number in numbers]


def as_values(table: str, values: list[Any]) -> Values:
    return np.array(values, dtype=np.int64) if table == "i" else TextValues.of(values)


def as_list(values: Values) -> list[Any]:
    if not isinstance(values, TextValues):
        return values.tolist()
    ends = pairwise(values.offsets.tolist())
    return [values.data[begin:end].tobytes().decode() for begin, end in ends]


class Truth:
    """What each table knows, as dictionaries."""

    def __init__(self, base: dict[str, list[Any]]) -> None:
        self.known = {
            table: {value: FIRST_KNOWN_ID + place for place, value in enumerate(values)}
            for table, values in base.items()
        }
        self.num_rows = {table: FIRST_KNOWN_ID + len(values) for table, values in base.items()}
        self.freed: list[dict[str, list[int]]] = []

    def free(self, table: str) -> list[int]:
        return sorted(set(range(FIRST_KNOWN_ID, self.num_rows[table])) - set(self.known[table].values()))

    def live_through(self, gone: dict[str, list[Any]], come: dict[str, list[Any]]) -> dict[str, TableChange]:
        """Removes and adds values; new ones take what ids are free, one of three leaves them."""
        self.freed.append({})
        changes = {}
        for table in TABLES:
            freed = [self.known[table].pop(value) for value in gone[table]]
            self.freed[-1][table] = sorted(freed)
            free = self.free(table) if len(come[table]) % 3 else []
            fresh = range(self.num_rows[table], self.num_rows[table] + len(come[table]))
            given_ids = [*free, *fresh][: len(come[table])]
            self.known[table] |= dict(zip(come[table], given_ids, strict=True))
            self.num_rows[table] = max([self.num_rows[table], *(id_ + 1 for id_ in given_ids)])
            changes[table] = TableChange(
                as_values(table, [*come[table], *gone[table]]),
                np.array([*given_ids, *([REMOVED] * len(gone[table]))], dtype=np.int64),
                np.array(sorted(freed), dtype=np.int64),
            )
        return changes


def ids_in(vocabularies: Vocabularies, table: str, values: list[Any]) -> list[int]:
    if table == "i":
        return vocabularies.find_ints(table, np.array(values, dtype=np.int64)).tolist()
    number = vocabularies.text_tables.index(table)
    texts = Texts.of([value.encode() for value in values], np.full(len(values), number))
    return vocabularies.find_texts(texts).tolist()


def check(vocabularies: Vocabularies, truth: Truth) -> None:
    assert vocabularies.num_rows == truth.num_rows
    for table in TABLES:
        asked = values_of(table, list(range(40)))
        assert ids_in(vocabularies, table, asked) == [truth.known[table].get(value, UNKNOWN_ID) for value in asked]
        assert vocabularies.free_ids(table).tolist() == truth.free(table)
        ids = sorted(truth.known[table].values())[::2]
        found = as_list(vocabularies.values(table, np.array(ids, dtype=np.int64)))
        assert sorted(truth.known[table][value] for value in found) == ids
        freed = [layer.freed[table].tolist() for layer in vocabularies.layers[1:]]
        assert freed == [day[table] for day in truth.freed]


numbers = st.lists(st.integers(0, 39), unique=True, max_size=20)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_layers_are_a_dictionary_that_lived_through_the_same_days(data: st.DataObject) -> None:
    base = {table: values_of(table, data.draw(numbers)) for table in TABLES}
    truth, vocabularies = Truth(base), Vocabularies.build({t: as_values(t, base[t]) for t in TABLES})
    check(vocabularies, truth)
    for _ in range(data.draw(st.integers(1, 4))):
        touched = {table: values_of(table, data.draw(numbers)) for table in TABLES}
        # Of the values drawn those that are known may go, the others come; a value that went may come again later.
        gone = {table: [v for v in touched[table] if v in truth.known[table]] for table in TABLES}
        come = {table: [v for v in touched[table] if v not in truth.known[table]] for table in TABLES}
        vocabularies = vocabularies.extended(truth.live_through(gone, come))
        check(vocabularies, truth)


FEATURES = [
    Feature("t", "categorical", "text", table="t", dim=2, combiner="mean"),
    Feature("i", "categorical", "int64", table="i", dim=2, combiner="mean"),
    Feature("u", "categorical", "text", table="u", dim=2, combiner="mean"),
]
BASE = {"t": ["a", "b"], "i": [7, 9], "u": ["b"]}


@pytest.fixture
def grown() -> CompiledTransform:
    """Layer 1 gives b's id to c; layer 2 changes nothing; layer 3 brings b back."""
    vocabularies = Vocabularies.build({table: as_values(table, values) for table, values in BASE.items()})
    nothing = {table: TableChange(as_values(table, []), NONE, NONE) for table in TABLES}
    swap = TableChange(TextValues.of(["c", "b"]), np.array([4, REMOVED]), np.array([4]))
    back = TableChange(TextValues.of(["b"]), np.array([5]), NONE)
    for change in (swap, None, back):
        vocabularies = vocabularies.extended(nothing if change is None else nothing | {"t": change})
    return CompiledTransform(FEATURES, vocabularies)


ROWS: list[dict[str, Any]] = [{"t": "a", "i": 7, "u": "b"}, {"t": "b", "i": 8}, {"t": "c", "u": "c"}]
IDS = [3, 5, 4, 3, UNKNOWN_ID, 1, 3, 1, UNKNOWN_ID]


def ids_of(transform: CompiledTransform) -> list[int]:
    ids: list[int] = transform.apply(RawBatch.from_rows(FEATURES, ROWS)).ids.tolist()
    return ids


def test_the_newest_layer_that_knows_a_value_decides(grown: CompiledTransform) -> None:
    assert ids_of(grown) == IDS


def test_what_is_saved_in_layers_loads_the_same(grown: CompiledTransform, tmp_path: Path) -> None:
    grown.save(tmp_path)
    files = layer_files(tmp_path)
    assert [file.name for file in files] == [
        "transform.safetensors",
        *(f"transform.{number}.safetensors" for number in (1, 2, 3)),
    ]
    assert ids_of(CompiledTransform.load(tmp_path)) == IDS
    elsewhere = [file.rename(tmp_path / f"segment-{number}") for number, file in enumerate(files)]
    assert ids_of(CompiledTransform.load(tmp_path, elsewhere)) == IDS


def test_layers_that_are_shared_have_the_same_bytes(grown: CompiledTransform, tmp_path: Path) -> None:
    parent, child = tmp_path / "parent", tmp_path / "child"
    parent.mkdir()
    child.mkdir()
    grown.save(parent)
    nothing = {table: TableChange(as_values(table, []), NONE, NONE) for table in TABLES}
    extended = CompiledTransform(FEATURES, grown.vocabularies.extended(nothing))
    extended.save(child, shared=layer_files(parent))
    assert len(layer_files(child)) == 5
    for ours, theirs in zip(layer_files(child), layer_files(parent), strict=False):
        assert file_record(ours) == file_record(theirs)
    assert ids_of(CompiledTransform.load(child)) == IDS


def test_a_single_layer_is_saved_as_ever(tmp_path: Path) -> None:
    vocabularies = Vocabularies.build({table: as_values(table, values) for table, values in BASE.items()})
    CompiledTransform(FEATURES, vocabularies).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [JSON_NAME, "transform.safetensors"]
    assert "layers" not in json.loads((tmp_path / JSON_NAME).read_text())
    assert not {"text.ids", "freed.t"} & set(read_tensors(tmp_path / "transform.safetensors"))


def test_a_missing_layer_is_named(grown: CompiledTransform, tmp_path: Path) -> None:
    grown.save(tmp_path)
    with pytest.raises(TransformError, match="has 4 layers of vocabularies, was given 3"):
        CompiledTransform.load(tmp_path, layer_files(tmp_path)[:3])
    (tmp_path / "transform.2.safetensors").unlink()
    with pytest.raises(CorruptFileError, match=r"transform\.2\.safetensors: is missing"):
        CompiledTransform.load(tmp_path)


@pytest.mark.parametrize("layers", [[], "x", ["transform.safetensors", "../x"], ["transform.1.safetensors"], [1]])
def test_other_names_of_layers_are_refused(grown: CompiledTransform, tmp_path: Path, layers: Any) -> None:
    grown.save(tmp_path)
    document = json.loads((tmp_path / JSON_NAME).read_text())
    (tmp_path / JSON_NAME).write_text(json.dumps(document | {"layers": layers}))
    with pytest.raises(ManifestError, match="expected the layers"):
        CompiledTransform.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("text.ids", np.array([4]), "text.ids is not an int64 array of 2 ids"),
        ("text.ids", np.array([4, 5]), "layer 1 of the vocabulary of table 't' frees 1 ids for 0 removed values"),
        ("text.ids", np.array([2, REMOVED]), "layer 1 .* has an id below 3"),
        ("text.ids", np.array([9, REMOVED]), "the vocabularies make num_rows"),
        ("freed.i", np.array([3]), "layer 1 of the vocabulary of table 'i' frees 1 ids for 0 removed values"),
        ("freed.t", np.array([4], np.int32), r"freed.t is int32 \[1\]; expected int64"),
        ("int.i.ids", np.array([3]), "int.i.values and .ids are not int64 arrays of one length"),
    ],
)
def test_a_layer_that_does_not_fit_is_refused(
    grown: CompiledTransform, tmp_path: Path, name: str, array: Any, message: str
) -> None:
    grown.save(tmp_path)
    file = layer_files(tmp_path)[1]
    tensors = {key: np.array(value) for key, value in read_tensors(file).items()}
    write_tensors(file, {**tensors, name: array})
    with pytest.raises(TransformError, match=message):
        CompiledTransform.load(tmp_path)


def test_a_value_that_stands_twice_in_a_layer_is_refused(grown: CompiledTransform) -> None:
    nothing = {table: TableChange(as_values(table, []), NONE, NONE) for table in TABLES}
    twice = TableChange(np.array([1, 1]), np.array([5, 6]), NONE)
    with pytest.raises(TransformError, match="the vocabulary of table 'i' holds 1 twice"):
        grown.vocabularies.extended(nothing | {"i": twice})
