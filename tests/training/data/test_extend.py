"""Days that extend a fitted dataset: against a truth in plain Python, and NVTabular's own for values it knows."""

import dataclasses
import json
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from rankhouse.embedding_cache.format.errors import CorruptFileError
from rankhouse.embedding_cache.format.files import file_record
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.vocabulary import FIRST_KNOWN_ID, MISSING_ID
from rankhouse.training.data import raw_parts
from rankhouse.training.data.extend import extend
from rankhouse.training.data.feature_spec import CategoricalFeature, FeatureSpec
from rankhouse.training.data.prepared import DATASET_NAME, PreparedDataset
from rankhouse.training.data.preprocess import add_split, preprocess
from rankhouse.training.data.raw_sample import load_raw_sample
from rankhouse.training.data.usage import USAGE_NAME
from rankhouse.training.errors import DatasetError, PreprocessError, RawFileError
from tests.training.data.growing_truth import TableTruth
from tests.training.data.logs import SPEC, raw_rows, write_parquet
from tests.training.data.test_preprocess import features_of, written

Rows = list[dict[str, Any]]


def values_of(row: dict[str, Any], feature: CategoricalFeature) -> list[Any]:
    value = row.get(feature.name)
    values = value if isinstance(value, list) else [value]
    return [each for each in values if each is not None and each != ""]


def day_of(rows: Rows, table: str) -> Counter[Any]:
    return Counter(value for row in rows for each in SPEC.tables[table] for value in values_of(row, each))


def expected_ids(rows: Rows, truths: dict[str, TableTruth]) -> list[int]:
    ids = []
    for feature in SPEC.categorical:
        for row in rows:
            values = values_of(row, feature)
            found = [truths[feature.table].find(value) for value in values]
            ids += found if feature.is_list or values else [MISSING_ID]
    return ids


def truth_of(dataset: PreparedDataset, rows: Rows) -> dict[str, TableTruth]:
    """What the fit knows, asked value by value; NVTabular's order of equally frequent values is its own."""
    vocabularies = dataset.transform().vocabularies
    truths = {}
    for table, features in SPEC.tables.items():
        day = day_of(rows, table)
        if features[0].dtype == "int64":
            ids = vocabularies.find_ints(table, np.array(list(day), dtype=np.int64)).tolist()
        else:
            raw = RawBatch.from_rows(dataset.transform().features, [{features[0].name: value} for value in day])
            place = [feature.name for feature in dataset.transform().categorical].index(features[0].name)
            batch = dataset.transform().apply(raw)
            begin = int(batch.lengths[:place].sum())
            ids = batch.ids[begin : begin + len(day)].tolist()
        known = sorted((id_, value) for id_, value in zip(ids, day, strict=True) if id_ >= FIRST_KNOWN_ID)
        assert [id_ for id_, _ in known] == list(range(FIRST_KNOWN_ID, dataset.tables[table].num_rows))
        truths[table] = TableTruth(
            [(value, day[value]) for _, value in known], features[0].frequency_threshold, features[0].max_size
        )
    return truths


@dataclass(frozen=True)
class Days:
    """A fitted dataset and those that extend it, one after the other, with the raw rows of each."""

    folder: Path
    datasets: list[PreparedDataset]
    rows: list[dict[str, Rows]]


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Days:
    folder = tmp_path_factory.mktemp("days")
    # The last day brings nothing new.
    shifts = [0, 25, 40, 10, 10]
    rows = [
        {"train": raw_rows(900, seed=day, unseen=shift), "valid": raw_rows(300, seed=100 + day, unseen=shift + 5)}
        for day, shift in enumerate(shifts)
    ]
    rows[4]["train"] = rows[3]["train"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_parts, "_PART_ROWS", 400)
        paths = [
            {name: write_parquet(folder / f"{day}-{name}.parquet", part) for name, part in splits.items()}
            for day, splits in enumerate(rows)
        ]
        datasets = [preprocess(folder / "day0", SPEC, paths[0])]
        for day in range(1, len(rows)):
            datasets.append(extend(folder / f"day{day - 1}", folder / f"day{day}", paths[day]))
    return Days(folder, datasets, rows)


def test_all_days_have_the_ids_of_the_truth(days: Days) -> None:
    truths = truth_of(days.datasets[0], days.rows[0]["train"])
    for dataset, rows in zip(days.datasets[1:], days.rows[1:], strict=True):
        freed = {table: truth.live_through(day_of(rows["train"], table)) for table, truth in truths.items()}
        assert {table: info.num_rows for table, info in dataset.tables.items()} == {
            table: truth.num_rows for table, truth in truths.items()
        }
        assert {table: ids.tolist() for table, ids in dataset.freed_since(len(dataset.layers) - 1).items()} == freed
        for split in ("train", "valid"):
            assert written(dataset, split).ids.tolist() == expected_ids(rows[split], truths)
    # The days must have shown what this is about: tables at their limit, where values made way.
    assert truths["shop"].num_rows == 20
    assert len(days.datasets[4].freed_since(1)["shop"]) > 0
    assert len(days.datasets[4].freed_since(1)["item"]) == 0
    assert truths["item"].num_rows > days.datasets[0].tables["item"].num_rows


def test_what_was_known_before_is_what_nvtabular_makes_of_it(days: Days, tmp_path: Path) -> None:
    shutil.copytree(days.datasets[0].path, tmp_path / "parent")
    expected = written(add_split(tmp_path / "parent", "next", days.folder / "1-train.parquet"), "next")
    found = written(days.datasets[1], "train")
    np.testing.assert_array_equal(found.dense.view(np.uint32), expected.dense.view(np.uint32))
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_array_equal(found.labels, expected.labels)
    known = expected.ids >= FIRST_KNOWN_ID
    # No value of the new day makes way.
    np.testing.assert_array_equal(found.ids[known], expected.ids[known])
    assert (found.ids == MISSING_ID).tolist() == (expected.ids == MISSING_ID).tolist()
    assert (found.ids[~known] > 2).any()


def test_rows_are_those_of_the_compiled_transform(days: Days) -> None:
    dataset = days.datasets[3]
    transform = dataset.transform()
    for split in ("train", "valid"):
        rows = [features_of(row) for row in days.rows[3][split]]
        expected, found = transform.apply(RawBatch.from_rows(transform.features, rows)), written(dataset, split)
        np.testing.assert_array_equal(found.dense.view(np.uint32), expected.dense.view(np.uint32))
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_array_equal(found.lengths, expected.lengths)


def test_layers_are_shared_with_the_parent(days: Days) -> None:
    for day in range(1, 5):
        parent, child = days.datasets[day - 1], days.datasets[day]
        assert len(child.layers) == day + 1
        for ours, theirs in zip(child.layers, parent.layers, strict=False):
            assert file_record(ours) == file_record(theirs)
        assert child.noted_layers == tuple(map(file_record, child.layers))
    assert [dataset.is_extension for dataset in days.datasets] == [False, True, True, True, True]


def test_an_altered_layer_is_not_extended(days: Days, tmp_path: Path) -> None:
    shutil.copytree(days.datasets[1].path, tmp_path / "parent")
    layer = PreparedDataset.open(tmp_path / "parent").layers[0]
    layer.write_bytes(layer.read_bytes()[:-1] + b"?")
    with pytest.raises(CorruptFileError, match=f"{layer.name}: its content was altered"):
        extend(tmp_path / "parent", tmp_path / "out", {"train": days.folder / "2-train.parquet"})
    assert not (tmp_path / "out").exists()


def test_a_day_without_new_values_is_an_empty_layer(days: Days) -> None:
    layer = days.datasets[4].transform().vocabularies.layers[4]
    assert len(layer.texts.offsets) == 1
    assert [len(index.values) for index in layer.ints.values()] == [0, 0]
    assert days.datasets[4].tables == days.datasets[3].tables


def test_a_day_without_any_value_of_some_features(days: Days, tmp_path: Path) -> None:
    rows = [{key: row[key] for key in ("clicked", "shop") if key in row} for row in raw_rows(50, seed=9)]
    dataset = extend(days.datasets[1].path, tmp_path / "out", {"train": write_parquet(tmp_path / "raw.parquet", rows)})
    assert {**dataset.tables, "shop": None} == {**days.datasets[1].tables, "shop": None}
    assert dataset.split("train").missing_rates["city"] == 1.0
    batch = written(dataset, "train")
    assert batch.lengths.sum(axis=1).tolist() == [50, 0, 50, 0, 50]
    assert set(batch.ids[-50:].tolist()) == {MISSING_ID}


def test_files_are_like_those_of_nvtabular(days: Days) -> None:
    def types(dataset: PreparedDataset) -> dict[str, str]:
        schema = pq.read_schema(dataset.path / dataset.split("train").files[0].name)
        return {name: str(schema.field(name).type) for name in schema.names}

    assert types(days.datasets[1]) == types(days.datasets[0])
    assert [file.num_rows for file in days.datasets[1].split("train").files] == [400, 400, 100]
    train, rows = days.datasets[1].split("train"), days.rows[1]["train"]
    assert train.positive_rate == sum(row["clicked"] for row in rows) / 900
    assert train.missing_rates["history"] == sum(not row.get("history") for row in rows) / 900
    assert load_raw_sample(days.datasets[1].path / "train")[0].keys() <= set(rows[0])


def test_a_later_split_of_an_extended_dataset(days: Days, tmp_path: Path) -> None:
    splits = {"train": days.folder / "1-train.parquet"}
    dataset = extend(days.datasets[0].path, tmp_path / "out", splits)
    more = add_split(dataset.path, "more", days.folder / "1-valid.parquet")
    assert more.noted_layers == dataset.noted_layers
    np.testing.assert_array_equal(written(more, "more").ids, written(days.datasets[1], "valid").ids)


def test_a_replaced_split_is_the_old_one_or_the_new_one_whatever_dies(
    days: Days, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(days.datasets[1].path, tmp_path / "out")
    old, new = (written(days.datasets[day], "valid").ids for day in (1, 2))

    def replace_it(day: int) -> PreparedDataset:
        return add_split(tmp_path / "out", "valid", days.folder / f"{day}-valid.parquet", overwrite=True)

    def die(_: PreparedDataset) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patches:
        patches.setattr(PreparedDataset, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            replace_it(2)
    left = PreparedDataset.open(tmp_path / "out")
    assert left.split("valid") == days.datasets[1].split("valid")
    np.testing.assert_array_equal(written(left, "valid").ids, old)
    known = days.datasets[1].transform()
    for day in (2, 1, 2):
        found = replace_it(day)
        rows = [features_of(row) for row in days.rows[day]["valid"]]
        expected = known.apply(RawBatch.from_rows(known.features, rows))
        np.testing.assert_array_equal(written(found, "valid").ids, expected.ids)
        sample = load_raw_sample(found.split_folder("valid"))
        assert len(sample) == min(len(rows), 1000)
        folders = {path.name for path in found.path.iterdir() if path.is_dir()}
        assert folders == {"train", found.split_folder("valid").name}
    assert list(found.splits) == list(left.splits)
    assert len(new) != len(old)


def changed(spec: FeatureSpec, name: str, **change: Any) -> FeatureSpec:
    features = tuple(
        dataclasses.replace(feature, **change) if feature.name == name else feature for feature in spec.features
    )
    return dataclasses.replace(spec, features=features)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (dataclasses.replace(SPEC, label="bought"), "label is 'bought', was 'clicked'"),
        (dataclasses.replace(SPEC, features=SPEC.features[1:]), "features are item, price"),
        (changed(SPEC, "shop", max_size=30), "feature 'shop' has max_size 30, had 20"),
        (changed(SPEC, "count", log=False), "feature 'count' has log False, had True"),
    ],
)
def test_another_feature_spec_is_refused(days: Days, tmp_path: Path, spec: FeatureSpec, message: str) -> None:
    with pytest.raises(PreprocessError, match=message):
        extend(days.datasets[0].path, tmp_path / "out", {"train": days.folder / "1-train.parquet"}, spec=spec)
    assert not list(tmp_path.iterdir())


def test_a_wrong_file_leaves_nothing_behind(days: Days, tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text("clicked,count\n1,2\n")
    good = days.folder / "1-train.parquet"
    with pytest.raises(RawFileError, match="no column 'item'"):
        extend(days.datasets[0].path, tmp_path / "out", {"train": good, "valid": tmp_path / "raw.csv"})
    assert [path.name for path in tmp_path.iterdir()] == ["raw.csv"]
    with pytest.raises(PreprocessError, match="no rows"):
        extend(days.datasets[0].path, tmp_path / "out", {"train": write_parquet(tmp_path / "none.parquet", [])})


def test_what_is_there_is_not_replaced_unasked(days: Days, tmp_path: Path) -> None:
    splits = {"train": days.folder / "1-train.parquet"}
    parent = days.datasets[0].path
    with pytest.raises(PreprocessError, match="--overwrite"):
        extend(parent, days.datasets[1].path, splits)
    with pytest.raises(PreprocessError, match="is the dataset to extend"):
        extend(parent, parent.parent / "day1" / ".." / "day0", splits, overwrite=True)
    with pytest.raises(PreprocessError, match="must be 'train'"):
        extend(parent, tmp_path / "out", {"valid": splits["train"]})
    with pytest.raises(DatasetError, match="is no folder"):
        extend(tmp_path / "nothing", tmp_path / "out", splits)
    first = extend(parent, tmp_path / "out", splits)
    layer = file_record(first.layers[-1])
    assert extend(parent, tmp_path / "out", splits, overwrite=True) == first
    assert file_record(first.layers[-1]) == layer


@pytest.mark.parametrize("name", ["transform.json", "transform.safetensors", "transform.1.safetensors"])
def test_a_missing_layer_is_named(days: Days, tmp_path: Path, name: str) -> None:
    shutil.copytree(days.datasets[1].path, tmp_path / "out")
    (tmp_path / "out" / name).unlink()
    with pytest.raises(DatasetError, match=f"{name} is missing"):
        PreparedDataset.open(tmp_path / "out")


def test_usage_that_does_not_fit_is_refused(days: Days, tmp_path: Path) -> None:
    splits = {"train": days.folder / "1-train.parquet"}
    dataset = extend(days.datasets[0].path, tmp_path / "one", splits)
    description = json.loads((dataset.path / DATASET_NAME).read_text())
    description["tables"]["shop"]["num_rows"] += 1
    (dataset.path / DATASET_NAME).write_text(json.dumps(description))
    with pytest.raises(DatasetError, match=f"{USAGE_NAME}: table 'shop' has 21 rows"):
        extend(dataset.path, tmp_path / "two", splits)


def test_a_dense_only_spec(tmp_path: Path) -> None:
    spec = dataclasses.replace(SPEC, features=SPEC.continuous)
    raw = write_parquet(tmp_path / "raw.parquet", raw_rows(50, seed=5))
    preprocess(tmp_path / "one", spec, {"train": raw})
    dataset = extend(tmp_path / "one", tmp_path / "two", {"train": raw})
    expected = written(PreparedDataset.open(tmp_path / "one"), "train").dense
    np.testing.assert_array_equal(written(dataset, "train").dense, expected)
    assert extend(tmp_path / "two", tmp_path / "three", {"train": raw}).split("train").num_rows == 50
