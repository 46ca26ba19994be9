"""The loader's promise: the same global batches on any number of ranks, from any step."""

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rankhouse.training.data import loader as loader_module
from rankhouse.training.data.feature_spec import FeatureSpec
from rankhouse.training.data.lanes import lane_blocks, lane_windows, rows_given
from rankhouse.training.data.loader import BatchLoader
from rankhouse.training.data.prepared import SPEC_NAME, PreparedDataset, Split, SplitFile, TableInfo
from rankhouse.training.data.rows import Batch
from rankhouse.training.errors import DatasetError

SPEC = FeatureSpec.from_document(
    {
        "name": "small",
        "label": "y",
        "features": [
            {"name": "a", "kind": "continuous"},
            {"name": "c", "kind": "categorical"},
            {"name": "b", "kind": "continuous"},
            {"name": "l", "kind": "categorical", "list": True},
        ],
    }
)


def make_dataset(folder: Path, num_rows: int, row_group_rows: int = 30, num_files: int = 2) -> PreparedDataset:
    """A split whose every value says which row it belongs to; list features have 0 to 3 ids."""
    (folder / "train").mkdir(parents=True)
    SPEC.save(folder / SPEC_NAME)
    (folder / "transform.json").write_text('{"format": "rankhouse.transform", "format_version": 1}')
    (folder / "transform.safetensors").touch()
    files = []
    for index in range(num_files):
        rows = np.arange(index * num_rows // num_files, (index + 1) * num_rows // num_files)
        columns = {
            "y": rows.astype(np.float32) % 2,
            "a": rows.astype(np.float32),
            "b": -rows.astype(np.float32),
            "c": rows + 3,
            "l": pa.array([[int(row) * 10 + k for k in range(row % 4)] for row in rows], pa.list_(pa.int64())),
        }
        pq.write_table(pa.table(columns), folder / "train" / f"{index}.parquet", row_group_size=row_group_rows)
        files.append(SplitFile(f"train/{index}.parquet", len(rows)))
    tables = {"c": TableInfo(num_rows + 3, 16), "l": TableInfo(num_rows * 10 + 3, 16)}
    PreparedDataset(folder, SPEC, {"train": Split(tuple(files), 0.5, {})}, tables).commit()
    return PreparedDataset.open(folder)


@pytest.fixture(autouse=True)
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_module, "_WINDOW_ROWS", 16)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return make_dataset(tmp_path_factory.mktemp("data") / "x", num_rows=1003)


def row_of(batch: Batch) -> np.ndarray:  # type: ignore[type-arg]
    return batch.dense[:, 0].astype(np.int64)


def check_rows(batch: Batch) -> None:
    """Every part of a batch belongs to the rows that its first column names."""
    rows = row_of(batch)
    np.testing.assert_array_equal(batch.dense[:, 1], -rows.astype(np.float32))
    np.testing.assert_array_equal(batch.labels, rows % 2)
    np.testing.assert_array_equal(batch.lengths, np.stack([np.ones(len(rows)), rows % 4]))
    lists = [row * 10 + k for row in rows.tolist() for k in range(row % 4)]
    assert batch.ids.tolist() == [*(rows + 3).tolist(), *lists]


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 5, 16])
def test_any_number_of_ranks_gives_the_same_batches(dataset: PreparedDataset, num_ranks: int, shuffle: bool) -> None:
    alone = list(BatchLoader(dataset, "train", batch_size=100, shuffle=shuffle, seed=4).batches(epoch=2))
    ranks = [
        list(
            BatchLoader(
                dataset, "train", batch_size=100, rank=rank, num_ranks=num_ranks, shuffle=shuffle, seed=4
            ).batches(epoch=2)
        )
        for rank in range(num_ranks)
    ]
    assert len(alone) == 11
    for step, whole in enumerate(alone):
        parts = [batches[step] for batches in ranks]
        np.testing.assert_array_equal(np.concatenate([row_of(part) for part in parts]), row_of(whole))
        assert whole.num_samples == (3 if step == 10 else 100)
        for part in parts:
            check_rows(part)


def test_an_epoch_visits_every_row_once(dataset: PreparedDataset) -> None:
    batches = list(BatchLoader(dataset, "train", batch_size=64).batches())
    assert sorted(np.concatenate([row_of(batch) for batch in batches]).tolist()) == list(range(1003))


def test_the_order_is_keyed_by_seed_and_epoch(dataset: PreparedDataset) -> None:
    def order(seed: int, epoch: int) -> list[int]:
        batches = BatchLoader(dataset, "train", batch_size=64, seed=seed).batches(epoch=epoch)
        return [row for batch in batches for row in row_of(batch).tolist()]

    assert order(0, 0) == order(0, 0)
    assert order(0, 0) != order(0, 1)
    assert order(0, 0) != order(1, 0)


@pytest.mark.parametrize("first_step", [0, 1, 4, 10, 11])
def test_a_resumed_run_goes_on_with_the_same_batches(dataset: PreparedDataset, first_step: int) -> None:
    loader = BatchLoader(dataset, "train", batch_size=100, rank=1, num_ranks=2, seed=3)
    expected, found = list(loader.batches())[first_step:], list(loader.batches(first_step))
    assert len(found) == len(expected)
    for batch, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(row_of(batch), row_of(other))


@pytest.mark.parametrize("num_rows", [1, 5, 16, 40])
def test_fewer_rows_than_ranks_leave_some_empty(tmp_path: Path, num_rows: int) -> None:
    dataset = make_dataset(tmp_path / "x", num_rows=num_rows, num_files=1)
    rows: list[int] = []
    for rank in range(16):
        loader = BatchLoader(dataset, "train", batch_size=8, rank=rank, num_ranks=16)
        batches = list(loader.batches())
        assert len(batches) == loader.num_steps == -(-num_rows // 8)
        for batch in batches:
            check_rows(batch)
            assert batch.lengths.shape == (2, batch.num_samples)
            rows += row_of(batch).tolist()
    assert sorted(rows) == list(range(num_rows))


def test_closing_early_ends_the_thread(dataset: PreparedDataset) -> None:
    batches = BatchLoader(dataset, "train", batch_size=1).batches()
    next(batches)
    assert any(thread.name == "batch-reader" for thread in threading.enumerate())
    batches.close()  # type: ignore[attr-defined]
    assert not any(thread.name == "batch-reader" for thread in threading.enumerate())


def test_a_file_that_disappears_is_named_where_the_batch_is_awaited(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "x", num_rows=100)
    loader = BatchLoader(dataset, "train", batch_size=10)
    (tmp_path / "x/train/1.parquet").unlink()
    with pytest.raises(DatasetError, match=r"1\.parquet cannot be read"):
        list(loader.batches())


def test_a_file_of_another_length_is_refused(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "x", num_rows=100)
    pq.write_table(pa.table({"y": [1.0]}), tmp_path / "x/train/0.parquet")
    with pytest.raises(DatasetError, match=r"0\.parquet has 1 rows, dataset\.json says 50"):
        BatchLoader(dataset, "train", batch_size=10)


def test_a_file_without_a_column_is_refused(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "x", num_rows=100)
    pq.write_table(pa.table({"y": np.zeros(50)}), tmp_path / "x/train/0.parquet")
    with pytest.raises(DatasetError, match="has no column 'a'"):
        list(BatchLoader(dataset, "train", batch_size=10).batches())


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "x", num_rows=100)
    path = tmp_path / "x/train/0.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DatasetError, match=r"0\.parquet cannot be read"):
        BatchLoader(dataset, "train", batch_size=10)


def test_more_ranks_than_lanes_are_refused(dataset: PreparedDataset) -> None:
    with pytest.raises(DatasetError, match="rank 0 of 17 ranks cannot read 16 lanes"):
        BatchLoader(dataset, "train", batch_size=10, num_ranks=17)


def test_an_unknown_split_is_refused(dataset: PreparedDataset) -> None:
    with pytest.raises(DatasetError, match="has no split 'valid'; it has train"):
        BatchLoader(dataset, "valid", batch_size=10)


def test_an_empty_batch_size_is_refused(dataset: PreparedDataset) -> None:
    with pytest.raises(DatasetError, match="at least 1, not 0"):
        BatchLoader(dataset, "train", batch_size=0)


@pytest.mark.parametrize("num_lanes", [1, 3, 16])
def test_lanes_share_any_number_of_rows(num_lanes: int) -> None:
    for num_rows in range(100):
        given = [rows_given(num_rows, lane, num_lanes) for lane in range(num_lanes)]
        assert sum(given) == num_rows
        assert max(given) - min(given) <= 1


def test_lanes_cut_row_groups_without_gap_or_overlap() -> None:
    row_groups, starts = [7, 1, 30, 5, 8], [0, 7, 8, 38, 43]
    rows = [
        starts[block.row_group] + row
        for lane in range(4)
        for block in lane_blocks(row_groups, lane, 4)
        for row in range(block.begin, block.end)
    ]
    assert rows == list(range(51))


def test_windows_hold_enough_rows_but_no_more_than_needed() -> None:
    blocks = lane_blocks([10] * 20, 0, 1)
    for seed in (None, (1, 2)):
        windows = list(lane_windows(blocks, window_rows=25, seed=seed))
        assert [window.num_rows for window in windows] == [30] * 6 + [20]
        assert sorted(block.row_group for window in windows for block in window.blocks) == list(range(20))


def test_a_dataset_without_lists_has_one_id_per_bag(tmp_path: Path) -> None:
    dataset = make_dataset(tmp_path / "x", num_rows=50)
    spec = replace(SPEC, features=SPEC.features[:2])
    batch = next(BatchLoader(replace(dataset, spec=spec), "train", batch_size=50).batches())
    assert batch.ids.shape == (50,)
    assert (batch.lengths == 1).all()


@pytest.mark.parametrize(
    ("table", "num_rows", "message"),
    [
        ("c", 102, r"1\.parquet: feature 'c' has the id 102, but its table 'c' has 102 rows"),
        ("l", 900, r"1\.parquet: feature 'l' has the id \d+, but its table 'l' has 900 rows"),
    ],
)
def test_an_id_that_its_table_has_not_is_named(tmp_path: Path, table: str, num_rows: int, message: str) -> None:
    dataset = make_dataset(tmp_path / "x", num_rows=100)
    dataset = replace(dataset, tables={**dataset.tables, table: TableInfo(num_rows, 16)})
    with pytest.raises(DatasetError, match=message):
        list(BatchLoader(dataset, "train", batch_size=10).batches())
