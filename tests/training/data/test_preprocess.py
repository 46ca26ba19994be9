"""Preprocessing runs the real NVTabular; the compiled transform is held against what it wrote, to the bit."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest

from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.transform import CompiledTransform
from rankhouse.embedding_cache.format.vocabulary import FIRST_KNOWN_ID, MISSING_ID, UNKNOWN_ID
from rankhouse.training.data import raw_parts
from rankhouse.training.data.lanes import Block
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.data.preprocess import Workers, add_split, preprocess
from rankhouse.training.data.row_groups import RowGroups
from rankhouse.training.data.rows import Batch, joined
from rankhouse.training.errors import PreprocessError, RawFileError
from tests.training.data.logs import SPEC, raw_rows, write_parquet


def features_of(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != SPEC.label}


def written(dataset: PreparedDataset, split: str) -> Batch:
    """All rows that NVTabular wrote, in their order."""
    row_groups = RowGroups(dataset, split)
    blocks = [Block(index, 0, num_rows) for index, num_rows in enumerate(row_groups.num_rows)]
    return joined(dataset.spec, [row_groups.read(blocks)])


@pytest.fixture(autouse=True)
def small_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw_parts, "_PART_ROWS", 400)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreparedDataset, dict[str, list[dict[str, Any]]]]:
    """A dataset of all kinds of features with three splits, and its raw rows."""
    folder = tmp_path_factory.mktemp("small")
    rows = {"train": raw_rows(1000, seed=1), "valid": raw_rows(500, seed=2), "later": raw_rows(300, seed=3, unseen=40)}
    paths = {name: write_parquet(folder / f"{name}.parquet", part) for name, part in rows.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(raw_parts, "_PART_ROWS", 400)
        preprocess(folder / "out", SPEC, {"train": paths["train"], "valid": paths["valid"]})
        dataset = add_split(folder / "out", "later", paths["later"])
    return dataset, rows


@pytest.mark.parametrize("split", ["train", "valid", "later"])
def test_the_compiled_transform_gives_what_nvtabular_gives(
    small: tuple[PreparedDataset, dict[str, list[dict[str, Any]]]], split: str
) -> None:
    dataset, rows = small
    expected = written(dataset, split)
    transform = CompiledTransform.load(dataset.path)
    raw = RawBatch.from_rows(transform.features, [features_of(row) for row in rows[split]])
    found = transform.apply(raw)
    np.testing.assert_array_equal(found.dense.view(np.uint32), expected.dense.view(np.uint32))
    np.testing.assert_array_equal(found.lengths, expected.lengths)
    np.testing.assert_array_equal(found.ids, expected.ids)
    assert expected.labels.tolist() == [row["clicked"] for row in rows[split]]


def test_the_data_shows_every_kind_of_id(small: tuple[PreparedDataset, dict[str, list[dict[str, Any]]]]) -> None:
    dataset, _ = small
    ids = written(dataset, "valid").ids
    assert {MISSING_ID, UNKNOWN_ID, FIRST_KNOWN_ID} <= set(ids.tolist())
    assert ids.min() == MISSING_ID
    assert ids.max() < max(table.num_rows for table in dataset.tables.values())


def test_tables_keep_their_limits(small: tuple[PreparedDataset, dict[str, list[dict[str, Any]]]]) -> None:
    dataset, _ = small
    assert list(dataset.tables) == ["item", "shop", "shops", "city"]
    assert dataset.tables["shop"].num_rows == 20
    assert dataset.tables["city"].num_rows <= 9
    assert dataset.tables["item"].dim == 4


def test_statistics_count_what_is_missing(small: tuple[PreparedDataset, dict[str, list[dict[str, Any]]]]) -> None:
    dataset, rows = small
    train = dataset.split("train")
    assert train.num_rows == 1000
    for name in ("item", "history"):
        assert train.missing_rates[name] == sum(not row.get(name) for row in rows["train"]) / 1000
    assert train.positive_rate == sum(row["clicked"] for row in rows["train"]) / 1000


def test_ids_do_not_depend_on_the_workers(
    small: tuple[PreparedDataset, dict[str, list[dict[str, Any]]]], tmp_path: Path
) -> None:
    dataset, rows = small
    train = write_parquet(tmp_path / "train.parquet", rows["train"])
    other = preprocess(tmp_path / "out", SPEC, {"train": train}, workers=Workers(num_workers=2))
    np.testing.assert_array_equal(written(other, "train").ids, written(dataset, "train").ids)
    np.testing.assert_allclose(written(other, "train").dense, written(dataset, "train").dense, rtol=1e-6)


def test_a_partition_without_any_value_of_a_feature(tmp_path: Path) -> None:
    rows = raw_rows(900, seed=5)
    for row in rows[400:800]:
        for name in ("item", "history", "shop", "city", "count"):
            row.pop(name, None)
    dataset = preprocess(tmp_path / "out", SPEC, {"train": write_parquet(tmp_path / "raw.parquet", rows)})
    expected = written(dataset, "train")
    found = dataset.transform().apply(RawBatch.from_rows(dataset.transform().features, [features_of(r) for r in rows]))
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.dense, expected.dense)


def test_a_vocabulary_below_the_threshold_is_empty(tmp_path: Path) -> None:
    spec = SPEC.with_frequency_threshold(10_000)
    dataset = preprocess(
        tmp_path / "out", spec, {"train": write_parquet(tmp_path / "raw.parquet", raw_rows(50, seed=5))}
    )
    assert {table.num_rows for table in dataset.tables.values()} == {3}
    assert set(written(dataset, "train").ids.tolist()) == {MISSING_ID, UNKNOWN_ID}


def test_one_row_is_enough(tmp_path: Path) -> None:
    row = {"clicked": 1, "count": 7, "item": "a", "price": 2.0, "history": ["a"], "age": 3, "shop": 5, "shops": [1]}
    raw = write_parquet(tmp_path / "raw.parquet", [{**row, "city": "x", "ratio": 0.0}])
    dataset = preprocess(tmp_path / "out", SPEC, {"train": raw})
    assert np.isfinite(written(dataset, "train").dense).all()
    CompiledTransform.load(dataset.path)


def test_a_dense_only_spec(tmp_path: Path) -> None:
    spec = replace(SPEC, features=SPEC.continuous)
    dataset = preprocess(
        tmp_path / "out", spec, {"train": write_parquet(tmp_path / "raw.parquet", raw_rows(50, seed=5))}
    )
    batch = written(dataset, "train")
    assert batch.dense.shape == (50, 4)
    assert batch.lengths.shape == (0, 50)


def test_a_feature_without_values_is_refused(tmp_path: Path) -> None:
    rows = [{**row, "city": None} for row in raw_rows(20, seed=5)]
    with pytest.raises(PreprocessError, match="'city' has no value in any row"):
        preprocess(tmp_path / "out", SPEC, {"train": write_parquet(tmp_path / "raw.parquet", rows)})
    assert not (tmp_path / "out").exists()


def test_a_wrong_file_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "raw.csv").write_text("clicked,count\n1,2\n")
    with pytest.raises(RawFileError, match="no column 'item'"):
        preprocess(tmp_path / "out", SPEC, {"train": tmp_path / "raw.csv"})
    assert [path.name for path in tmp_path.iterdir()] == ["raw.csv"]


def test_a_file_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PreprocessError, match="no rows"):
        preprocess(tmp_path / "out", SPEC, {"train": write_parquet(tmp_path / "raw.parquet", [])})


def test_train_is_needed(tmp_path: Path) -> None:
    with pytest.raises(PreprocessError, match="must be 'train'"):
        preprocess(tmp_path / "out", SPEC, {"valid": tmp_path})


def test_a_split_name_stays_in_the_folder(tmp_path: Path) -> None:
    with pytest.raises(PreprocessError, match=r"'\.\./x'"):
        preprocess(tmp_path / "out", SPEC, {"train": tmp_path, "../x": tmp_path})
    for name in ("workflow", "vocabularies", "staged"):
        with pytest.raises(PreprocessError, match=f"none of workflow, vocabularies, staged; got '{name}'"):
            preprocess(tmp_path / "out", SPEC, {"train": tmp_path, name: tmp_path})


def test_what_is_there_is_not_replaced_unasked(
    small: tuple[PreparedDataset, dict[str, list[dict[str, Any]]]], tmp_path: Path
) -> None:
    dataset, _ = small
    with pytest.raises(PreprocessError, match="--overwrite"):
        preprocess(dataset.path, SPEC, {"train": tmp_path})
    with pytest.raises(PreprocessError, match="has a split 'valid'"):
        add_split(dataset.path, "valid", tmp_path)
    with pytest.raises(PreprocessError, match="the workflow was fitted on 'train'"):
        add_split(dataset.path, "train", tmp_path, overwrite=True)
    (tmp_path / "precious").touch()
    with pytest.raises(PreprocessError, match="no prepared dataset"):
        preprocess(tmp_path, SPEC, {"train": tmp_path}, overwrite=True)


def test_a_scheduler_that_does_not_answer(tmp_path: Path) -> None:
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        pytest.raises(PreprocessError, match="does not answer"),
    ):
        preprocess(tmp_path / "out", SPEC, {"train": tmp_path}, workers=Workers(scheduler="tcp://127.0.0.1:1"))


def test_workers_and_scheduler_exclude_each_other() -> None:
    with pytest.raises(PreprocessError, match="either"):
        Workers(num_workers=2, scheduler="tcp://127.0.0.1:8786")
