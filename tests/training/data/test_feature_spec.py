from pathlib import Path
from typing import Any

import pytest

from rankhouse.training.data.feature_spec import CategoricalFeature, ContinuousFeature, FeatureSpec
from rankhouse.training.errors import FeatureSpecError
from tests.training.data.logs import SPEC

CRITEO = Path(__file__).parents[3] / "training/data/specs/criteo.yaml"
NUMBER = {"name": "a", "kind": "continuous"}
TEXT = {"name": "b", "kind": "categorical"}


def spec_of(*features: dict[str, Any], **keys: Any) -> FeatureSpec:
    return FeatureSpec.from_document({"name": "x", "label": "y", "features": list(features), **keys})


def test_criteo_has_its_columns_in_order() -> None:
    spec = FeatureSpec.load(CRITEO)
    numbers, ids = [f"I{index}" for index in range(1, 14)], [f"C{index}" for index in range(1, 27)]
    assert spec.columns == ("label", *numbers, *ids)
    assert [feature.name for feature in spec.continuous] == numbers
    assert list(spec.tables) == ids


def test_a_saved_spec_reads_back_the_same(tmp_path: Path) -> None:
    SPEC.save(tmp_path / "spec.yaml")
    assert FeatureSpec.load(tmp_path / "spec.yaml") == SPEC


def test_a_timestamp_is_a_column_of_raw_files_alone(tmp_path: Path) -> None:
    spec = spec_of(NUMBER, timestamp="seen_at")
    assert spec.raw_columns == ("y", "a", "seen_at")
    assert spec.columns == ("y", "a")
    spec.save(tmp_path / "spec.yaml")
    assert FeatureSpec.load(tmp_path / "spec.yaml") == spec
    assert "timestamp" not in spec_of(NUMBER).document()


@pytest.mark.parametrize(
    ("timestamp", "message"),
    [
        ("a", "two columns have the name 'a'"),
        ("y", "two columns"),
        ("at noon", "no column name"),
        (None, "timestamp is"),
    ],
)
def test_a_wrong_timestamp_is_refused(timestamp: str | None, message: str) -> None:
    with pytest.raises(FeatureSpecError, match=message):
        spec_of(NUMBER, timestamp=timestamp)


def test_a_table_is_named_and_shaped_by_its_first_feature() -> None:
    # The sharer may stand before the owner.
    spec = spec_of(
        {"name": "clicked", "kind": "categorical", "list": True, "table": "item"},
        {"name": "item", "kind": "categorical", "dim": 32, "frequency_threshold": 5},
    )
    clicked, item = spec.categorical
    assert (clicked.table, clicked.dim, clicked.frequency_threshold) == ("item", 32, 5)
    assert (clicked.is_list, item.is_list) == (True, False)
    assert spec.tables == {"item": (clicked, item)}


def test_defaults() -> None:
    spec = spec_of({"name": "a", "kind": "continuous"}, {"name": "b", "kind": "categorical"})
    assert spec.features == (ContinuousFeature("a"), CategoricalFeature("b"))


def test_one_threshold_for_all() -> None:
    changed = SPEC.with_frequency_threshold(7)
    assert {feature.frequency_threshold for feature in changed.categorical} == {7}
    assert changed.continuous == SPEC.continuous


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([], "has no features"),
        ([{"name": "a"}], "kind is continuous or categorical"),
        ([{"kind": "continuous"}], "feature 1: the key 'name' is missing"),
        (["a"], "kind is continuous or categorical"),
        ([{**NUMBER, "clipmin": 0}], "'a': unknown key 'clipmin'; did you mean 'clip_min'"),
        ([{**NUMBER, "dim": 4}], "unknown key 'dim'"),
        ([{**NUMBER, "log": "yes"}], "log is bool, not str 'yes'"),
        ([{**NUMBER, "fill": True}], "fill is int or float, not bool True"),
        ([{**NUMBER, "dtype": "text"}], "int64 or float64"),
        ([{**NUMBER, "log": True}], "needs a clip_min above -1"),
        ([{**NUMBER, "log": True, "clip_min": -1}], "needs a clip_min above -1"),
        ([{**NUMBER, "clip_min": 2, "clip_max": 1}], "clip_min 2 is above clip_max 1"),
        ([{**TEXT, "dtype": "float64"}], "text or int64"),
        ([{**TEXT, "combiner": "max"}], "mean or sum"),
        ([{**TEXT, "dim": 0}], "dim is 1 or more"),
        ([{**TEXT, "frequency_threshold": -1}], "0 or more"),
        ([{**TEXT, "max_size": 3}], "at least 4"),
        ([{**TEXT, "name": "y"}], "two columns have the name 'y'"),
        ([TEXT, TEXT], "two columns have the name 'b'"),
        ([{**TEXT, "name": "a/b"}], "no column name"),
        ([{**TEXT, "table": "c"}], "table 'c' is no table"),
        ([TEXT, {**TEXT, "name": "c", "table": "b", "dim": 3}], "dim is set there"),
        ([TEXT, {**TEXT, "name": "c", "table": "b", "dtype": "int64"}], "cannot share"),
        ([TEXT, {**TEXT, "name": "c", "table": "b"}, {**TEXT, "name": "d", "table": "c"}], "table 'c' is no table"),
    ],
)
def test_a_wrong_feature_is_named(features: list[Any], message: str) -> None:
    with pytest.raises(FeatureSpecError, match=message):
        spec_of(*features)


def test_an_unknown_key_of_the_spec_is_refused() -> None:
    with pytest.raises(FeatureSpecError, match="'lable'; did you mean 'label'"):
        spec_of(NUMBER, lable="y")


@pytest.mark.parametrize("text", ["a: [", "- 1", "\tx", ""])
def test_a_file_that_is_no_spec_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text)
    with pytest.raises(FeatureSpecError, match=r"spec\.yaml"):
        FeatureSpec.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FeatureSpecError, match=r"nothing\.yaml"):
        FeatureSpec.load(tmp_path / "nothing.yaml")
