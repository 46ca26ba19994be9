import math
from typing import Any

import numpy as np
import pytest

from rankhouse.embedding_cache.format.errors import RawValueError, TransformError
from rankhouse.embedding_cache.format.feature import DenseSteps, Feature
from rankhouse.embedding_cache.format.raw import RawBatch

FEATURES = [
    Feature("n", "continuous", "int64", steps=DenseSteps()),
    Feature("t", "categorical", "text", table="t", dim=4, combiner="mean"),
    Feature("f", "continuous", "float64", steps=DenseSteps()),
    Feature("i", "categorical", "int64", table="i", dim=4, combiner="mean"),
    Feature("tl", "categorical", "text", is_list=True, table="t", dim=4, combiner="mean"),
    Feature("il", "categorical", "int64", is_list=True, table="i", dim=4, combiner="mean"),
]
PLAIN = [feature for feature in FEATURES if not feature.is_list]


def test_rows_become_arrays() -> None:
    raw = RawBatch.from_rows(
        FEATURES,
        [
            {"n": 2, "f": 0.5, "t": "a", "i": -5, "tl": ["é", "b"], "il": [7, 2**63 - 1]},
            {},
            {"n": 2**62, "f": 1, "t": "c", "i": 9, "tl": ("x",), "il": []},
        ],
    )
    np.testing.assert_array_equal(raw.float_values, [[2, 0.5], [math.nan, math.nan], [2.0**62, 1]])
    assert raw.text_values.tolist() == [b"a", "é".encode(), b"b", b"c", b"x"]
    assert raw.text_lengths.tolist() == [[1, 2], [0, 0], [1, 1]]
    assert raw.int_values.tolist() == [-5, 7, 2**63 - 1, 9]
    assert raw.int_lengths.tolist() == [[1, 2], [0, 0], [1, 0]]
    assert (raw.float_values.dtype, raw.int_values.dtype, raw.text_lengths.dtype) == (np.float64, np.int64, np.int32)
    assert raw.num_rows == 3


@pytest.mark.parametrize("features", [FEATURES, PLAIN])
@pytest.mark.parametrize("missing", [None, ""])
def test_none_and_empty_texts_are_missing(features: list[Feature], missing: Any) -> None:
    raw = RawBatch.from_rows(features, [{feature.name: missing for feature in features}])
    assert np.isnan(raw.float_values).all()
    assert raw.text_lengths.sum() == raw.int_lengths.sum() == 0


def test_missing_values_inside_lists_are_left_out() -> None:
    raw = RawBatch.from_rows(FEATURES, [{"tl": [None, "a", ""], "il": [None, 3]}])
    assert raw.text_values.tolist() == [b"a"]
    assert raw.int_values.tolist() == [3]


def test_nan_is_missing_and_numpy_numbers_are_numbers() -> None:
    raw = RawBatch.from_rows(PLAIN, [{"f": math.nan, "i": np.int64(4), "n": np.int32(3)}, {"f": np.float32(0.5)}])
    np.testing.assert_array_equal(raw.float_values, [[3, math.nan], [math.nan, 0.5]])
    assert raw.int_values.tolist() == [4]


def test_no_rows_and_no_features() -> None:
    assert RawBatch.from_rows(FEATURES, []).float_values.shape == (0, 2)
    assert RawBatch.from_rows([], [{}, {}]).float_values.shape == (2, 0)


@pytest.mark.parametrize("features", [FEATURES, PLAIN])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n", 1.0, "expects a 64-bit integer, got float 1.0"),
        ("n", True, "expects a 64-bit integer, got bool True"),
        ("n", "1", "expects a 64-bit integer, got str '1'"),
        ("n", 2**63, "expects a 64-bit integer, got int 9223372036854775808"),
        ("n", 10**400, "expects a 64-bit integer, got int"),
        ("n", [1], "this is no list feature"),
        ("f", "0.5", "expects a finite number, got str"),
        ("f", False, "expects a finite number, got bool"),
        ("f", math.inf, "expects a finite number, got float inf"),
        ("f", -(10**400), "expects a finite number, got int"),
        ("i", 1.5, "expects a 64-bit integer, got float"),
        ("i", True, "expects a 64-bit integer, got bool"),
        ("i", -(2**63) - 1, "expects a 64-bit integer"),
        ("t", 5, "expects a text, got int 5"),
        ("t", b"x", "expects a text, got bytes"),
        ("t", "\ud800", "expects a text, got str"),
        ("t", ["x"], "this is no list feature"),
        ("t", "x" * 100 + "\ud800", r"\.\.\.$"),
    ],
)
def test_a_wrong_value_is_named(features: list[Feature], name: str, value: Any, message: str) -> None:
    with pytest.raises(RawValueError, match=message) as error:
        RawBatch.from_rows(features, [{}, {name: value}])
    assert (error.value.row, error.value.feature, error.value.position) == (1, name, None)
    assert str(error.value).startswith(f"row 1, feature '{name}': ")


@pytest.mark.parametrize(
    ("name", "value", "position", "message"),
    [
        ("tl", "a", None, "expects a list whose elements are each a text, got str 'a'"),
        ("tl", ["a", 5], 1, "expects a text, got int 5"),
        ("il", [1, None, "2"], 2, "expects a 64-bit integer, got str '2'"),
        ("il", {"a": 1}, None, "expects a list"),
    ],
)
def test_a_wrong_element_is_named(name: str, value: Any, position: int | None, message: str) -> None:
    with pytest.raises(RawValueError, match=message) as error:
        RawBatch.from_rows(FEATURES, [{name: value}])
    assert (error.value.row, error.value.feature, error.value.position) == (0, name, position)


@pytest.mark.parametrize(("name", "hint"), [("ttl", "did you mean 'tl'"), ("zzz", "known are f, i, il, n, t, tl")])
def test_an_unknown_feature_names_the_nearest(name: str, hint: str) -> None:
    with pytest.raises(RawValueError, match=hint) as error:
        RawBatch.from_rows(FEATURES, [{}, {"n": 1, name: 1}])
    assert (error.value.row, error.value.feature) == (1, name)


@pytest.mark.parametrize(
    "wrong",
    [
        {"float_values": np.zeros(2)},
        {"int_lengths": np.zeros((3, 1), np.int32)},
        {"int_values": np.zeros(1, np.int64)},
        {"int_lengths": np.array([[2], [-2]], np.int32)},
        {"text_values": np.empty((0, 1), object)},
    ],
)
def test_arrays_that_contradict_each_other_are_refused(wrong: dict[str, Any]) -> None:
    right = {
        "float_values": np.zeros((2, 1)),
        "int_values": np.zeros(0, np.int64),
        "int_lengths": np.zeros((2, 1), np.int32),
        "text_values": np.empty(0, object),
        "text_lengths": np.zeros((2, 1), np.int32),
    }
    RawBatch(**right)
    with pytest.raises(TransformError, match="expected"):
        RawBatch(**{**right, **wrong})
