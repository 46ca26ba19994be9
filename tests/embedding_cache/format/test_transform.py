"""The compiled transform on its own; tests/training/data/test_preprocess.py holds it against NVTabular."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankhouse.embedding_cache.format import text_index
from rankhouse.embedding_cache.format.errors import CorruptFileError, ManifestError, TransformError
from rankhouse.embedding_cache.format.feature import DenseSteps, Feature
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.tensors import write_tensors
from rankhouse.embedding_cache.format.text_index import ABSENT, TextIndex, Texts
from rankhouse.embedding_cache.format.transform import JSON_NAME, TENSORS_NAME, CompiledTransform
from rankhouse.embedding_cache.format.vocabulary import (
    FIRST_KNOWN_ID,
    MISSING_ID,
    UNKNOWN_ID,
    TextValues,
    Vocabularies,
)

TEXTS = ["a", "b", "aa", "é", "a" * 300, "\0"]
INTS = [5, -1, 2**62, 2**62 + 1]


def categorical(name: str, dtype: Any, table: str, is_list: bool = False) -> Feature:
    return Feature(name, "categorical", dtype, is_list=is_list, table=table, dim=4, combiner="mean")


FEATURES = [
    categorical("t", "text", "t"),
    Feature("n", "continuous", "int64", steps=DenseSteps(2.0, 0.0, 50.0, True, 1.5, 0.5)),
    categorical("il", "int64", "i", is_list=True),
    categorical("i", "int64", "i"),
    categorical("tl", "text", "t", is_list=True),
    categorical("u", "text", "u"),
    Feature("f", "continuous", "float64", steps=DenseSteps(fill=-1.0)),
]


@pytest.fixture
def transform() -> CompiledTransform:
    vocabularies = {"t": TextValues.of(TEXTS), "i": np.array(INTS), "u": TextValues.of(["b", "x"])}
    return CompiledTransform(FEATURES, Vocabularies.build(vocabularies))


def raw_of(*rows: dict[str, Any]) -> RawBatch:
    return RawBatch.from_rows(FEATURES, rows)


def test_a_batch_is_feature_major(transform: CompiledTransform) -> None:
    batch = transform.apply(
        raw_of(
            {"t": "b", "il": [2**62 + 1, 7], "i": 5, "tl": ["é", "no", "a"], "u": "x", "n": 9, "f": 0.5},
            {},
            {"t": "\0", "il": [-1], "i": 8, "tl": ["a" * 300], "u": "a"},
        )
    )
    assert batch.lengths.tolist() == [[1, 1, 1], [2, 0, 1], [1, 1, 1], [3, 0, 1], [1, 1, 1]]
    t, il, i = [4, MISSING_ID, 8], [6, UNKNOWN_ID, 4], [3, MISSING_ID, UNKNOWN_ID]
    tl, u = [6, UNKNOWN_ID, 3, 7], [4, MISSING_ID, UNKNOWN_ID]
    assert batch.ids.tolist() == [*t, *il, *i, *tl, *u]
    assert (batch.ids.dtype, batch.lengths.dtype, batch.dense.dtype) == (np.int64, np.int32, np.float32)


CATEGORICAL = [feature for feature in FEATURES if feature.kind == "categorical"]
KNOWN: dict[str, list[Any]] = {"t": TEXTS, "i": INTS, "u": ["b", "x"]}


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    row = {}
    for feature in CATEGORICAL:
        value = st.sampled_from([*KNOWN[str(feature.table)], "no" if feature.dtype == "text" else 9, None])
        row[feature.name] = draw(st.lists(value, max_size=4) if feature.is_list else value)
    return row


@settings(max_examples=60, deadline=None)
@given(st.lists(rows(), max_size=9))
def test_ids_are_those_of_each_value_by_itself(batch: list[dict[str, Any]]) -> None:
    vocabularies = {"t": TextValues.of(TEXTS), "i": np.array(INTS), "u": TextValues.of(KNOWN["u"])}
    found = CompiledTransform(FEATURES, Vocabularies.build(vocabularies)).apply(raw_of(*batch))
    bags = []
    for feature in CATEGORICAL:
        known = KNOWN[str(feature.table)]
        ids = {value: known.index(value) + FIRST_KNOWN_ID for value in known}
        for row in batch:
            value = row[feature.name]
            if feature.is_list:
                bags.append([ids.get(one, UNKNOWN_ID) for one in value if one is not None])
            else:
                bags.append([MISSING_ID if value is None else ids.get(value, UNKNOWN_ID)])
    assert found.ids.tolist() == [id_ for bag in bags for id_ in bag]
    assert found.lengths.ravel().tolist() == [len(bag) for bag in bags]


def test_numbers_are_filled_clipped_logged_and_normalized_in_float32(transform: CompiledTransform) -> None:
    batch = transform.apply(raw_of({"n": 9}, {"n": -4}, {"n": 2**62}, {"f": 0.1}))
    logs = np.log(np.array([9, 0, 50, 2], np.float32) + 1)
    np.testing.assert_array_equal(batch.dense[:, 0], (logs - np.float32(1.5)) / np.float32(0.5))
    np.testing.assert_array_equal(batch.dense[:, 1], np.array([-1, -1, -1, 0.1], np.float32))


def test_a_deviation_of_zero_divides_by_nothing(transform: CompiledTransform) -> None:
    constant = replace(FEATURES[6], steps=DenseSteps(mean=3.0, std=0.0))
    only = CompiledTransform([constant], Vocabularies.build({}))
    batch = only.apply(RawBatch.from_rows([constant], [{"f": 4.0}]))
    assert batch.dense.tolist() == [[1.0]]
    assert batch.lengths.shape == (0, 1)


def test_an_empty_batch(transform: CompiledTransform) -> None:
    batch = transform.apply(raw_of())
    assert (batch.dense.shape, batch.ids.shape, batch.lengths.shape) == ((0, 2), (0,), (5, 0))


def test_what_is_saved_loads_the_same(transform: CompiledTransform, tmp_path: Path) -> None:
    transform.save(tmp_path)
    loaded = CompiledTransform.load(tmp_path)
    assert loaded.features == transform.features
    assert loaded.vocabularies.num_rows == {"t": 9, "i": 7, "u": 5}
    raw = raw_of(*({"t": text, "tl": TEXTS, "i": value, "n": 3} for text in TEXTS for value in INTS))
    for name in ("dense", "ids", "lengths"):
        np.testing.assert_array_equal(getattr(loaded.apply(raw), name), getattr(transform.apply(raw), name))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(min_size=1, max_size=12), unique=True, max_size=60), st.lists(st.text(min_size=1), max_size=60))
def test_the_text_index_is_a_dictionary(known: list[str], asked: list[str]) -> None:
    values, other = TextValues.of(known), TextValues.of(["other"])
    index = TextIndex.build({"other": (other.data, other.offsets), "known": (values.data, values.offsets)})
    texts = [text.encode() for text in known + asked]
    expected = [1 + known.index(text) if text in known else ABSENT for text in known + asked]
    assert index.numbers(Texts.of(texts, np.ones(len(texts), np.int64))).tolist() == expected


def test_a_crowded_text_index_finds_all() -> None:
    texts = [f"{number:x}" for number in range(70_000)]
    values = TextValues.of(texts)
    index = TextIndex.build({"t": (values.data, values.offsets)})
    asked = [text.encode() for text in texts] + [b"no", b"70000"]
    expected = [*range(70_000), ABSENT, ABSENT]
    assert index.numbers(Texts.of(asked, np.zeros(len(asked), np.int64))).tolist() == expected


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, max_size=60),
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=60),
)
def test_the_integer_index_is_a_dictionary(known: list[int], asked: list[int]) -> None:
    vocabularies = Vocabularies.build({"i": np.array(known, np.int64)})
    expected = [known.index(value) + FIRST_KNOWN_ID if value in known else UNKNOWN_ID for value in known + asked]
    assert vocabularies.find_ints("i", np.array(known + asked, np.int64)).tolist() == expected


@pytest.mark.parametrize("values", [TextValues.of(["a", "b", "a"]), np.array([1, 2, 1])])
def test_a_value_that_stands_twice_is_refused(values: Any) -> None:
    with pytest.raises(TransformError, match=r"the vocabulary of table 'x' holds (b'a'|1) twice"):
        Vocabularies.build({"x": values})


def test_an_empty_text_is_refused(transform: CompiledTransform) -> None:
    raw = raw_of({"t": "a"})
    raw.text_values[0] = b""
    with pytest.raises(TransformError, match="an empty text stands for a missing value"):
        transform.apply(raw)


def test_several_values_of_a_plain_feature_are_refused(transform: CompiledTransform) -> None:
    raw = raw_of({"t": "a", "tl": ["b"]})
    with pytest.raises(TransformError, match="'t' has 2 values in a row"):
        transform.apply(replace(raw, text_lengths=np.array([[2, 0, 0]], np.int32)))


@pytest.mark.parametrize("name", ["float_values", "int_lengths", "text_lengths"])
def test_a_batch_of_another_model_is_refused(transform: CompiledTransform, name: str) -> None:
    raw = raw_of({})
    narrow = replace(raw, **{name: getattr(raw, name)[:, 1:]})
    with pytest.raises(TransformError, match=f"{name} has . columns"):
        transform.apply(narrow)


@pytest.mark.parametrize(
    "feature",
    [
        Feature("n", "continuous", "int64"),
        categorical("t", "text", "nothing"),
        categorical("t", "int64", "t"),
        categorical("i", "text", "i"),
        replace(categorical("t", "text", "t"), kind="categoric"),
        replace(categorical("t", "text", "t"), dtype="string"),
    ],
)
def test_a_feature_without_its_parts_is_refused(feature: Feature) -> None:
    vocabularies = Vocabularies.build({"t": TextValues.of(TEXTS), "i": np.array(INTS)})
    with pytest.raises(TransformError, match=f"feature '{feature.name}'"):
        CompiledTransform([feature], vocabularies)


def test_a_feature_that_stands_twice_is_refused() -> None:
    with pytest.raises(TransformError, match="feature 't' stands twice"):
        CompiledTransform([FEATURES[0], FEATURES[0]], Vocabularies.build({"t": TextValues.of(TEXTS)}))


def test_a_missing_file_is_named(transform: CompiledTransform, tmp_path: Path) -> None:
    with pytest.raises(TransformError, match=JSON_NAME):
        CompiledTransform.load(tmp_path)
    transform.save(tmp_path)
    (tmp_path / TENSORS_NAME).unlink()
    with pytest.raises(CorruptFileError, match=TENSORS_NAME):
        CompiledTransform.load(tmp_path)


def test_a_file_of_another_kind_or_release_is_refused(transform: CompiledTransform, tmp_path: Path) -> None:
    transform.save(tmp_path)
    document = json.loads((tmp_path / JSON_NAME).read_text())
    for change in ({"format": "rankhouse.version"}, {"format_version": 99}):
        (tmp_path / JSON_NAME).write_text(json.dumps(document | change))
        with pytest.raises(ManifestError, match=JSON_NAME):
            CompiledTransform.load(tmp_path)
    (tmp_path / JSON_NAME).write_text(json.dumps(document | {"feature": []}))
    with pytest.raises(ManifestError, match=r"has the unknown key 'feature'; did you mean 'features'"):
        CompiledTransform.load(tmp_path)
    (tmp_path / JSON_NAME).write_text(json.dumps({k: v for k, v in document.items() if k != "vocabularies"}))
    with pytest.raises(TransformError, match="vocabularies"):
        CompiledTransform.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "array", "message"),
    [
        ("text.slots", np.ones(8, np.uint64), r"text.slots has 8 slots for 8 texts; expected a power of two"),
        ("text.slots", np.zeros(24, np.uint64), r"text.slots has 24 slots for 8 texts; expected a power of two"),
        ("text.slots", np.zeros(16, np.int64), r"text.slots is int64 \[16\]; expected uint64"),
        ("text.offsets", np.arange(9), "text.offsets does not run from 0"),
        ("text.table_starts", np.array([0, 8]), "the text index is of 1 tables; expected 2"),
        ("text.table_starts", np.array([0, 5, 8]), "the vocabularies make num_rows"),
        ("int.i.values", np.arange(3), "int.i.values and .ids are not int64 arrays of one length"),
        ("int.i.ids", np.arange(3), "int.i.values and .ids are not int64 arrays of one length"),
    ],
)
def test_vocabularies_that_do_not_fit_are_refused(
    transform: CompiledTransform, tmp_path: Path, name: str, array: Any, message: str
) -> None:
    transform.save(tmp_path)
    write_tensors(tmp_path / TENSORS_NAME, {**transform.vocabularies.layers[0].tensors(), name: array})
    with pytest.raises(TransformError, match=message):
        CompiledTransform.load(tmp_path)


def test_texts_of_the_same_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_index, "_hashes", lambda data, lengths, table_of: np.full(len(lengths), 7, np.uint64))
    values = TextValues.of([f"{number}" for number in range(40)])
    index = TextIndex.build({"t": (values.data, values.offsets)})
    asked = [f"{number}".encode() for number in range(42)]
    assert index.numbers(Texts.of(asked, np.zeros(42, np.int64))).tolist() == [*range(40), ABSENT, ABSENT]
