"""The parts of the engine's benchmark that a wrong figure could come from."""

import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.support.embedding.cells import Cell, TableShape
from benchmarks.support.engine.c_stores import STORES, CStore, StoreMissingError
from benchmarks.support.engine.candidate import row_numbers
from benchmarks.support.engine.dataset import NUM_FEATURES, Dataset, make_dataset
from benchmarks.support.engine.engine_candidates import GatherLimit, ThroughC
from benchmarks.support.engine.page_cache import drop, warm
from benchmarks.support.engine.report import COLD, HOT, NEW, Place, Timing, aims_sheet, sheets
from benchmarks.support.engine.timed_calls import Caller
from benchmarks.support.engine.version_calls import NativeEngine, VersionCalls, make_executor

TABLES = TableShape(NUM_FEATURES, 70, 16, training=False)
WHOSE_TIME = dict.fromkeys((HOT, COLD, NEW), "Rankhouse map")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    made = Dataset(tmp_path_factory.mktemp("tables"), TABLES, (0.1, 0.2))
    make_dataset(made, lambda text: None)
    return made


@pytest.mark.parametrize("num_deltas", [0, 1, 2])
def test_versions_hold_what_is_expected_of_lookups(dataset: Dataset, num_deltas: int) -> None:
    version = dataset.version(num_deltas)
    ids = np.arange(TABLES.rows)
    expected = dataset.expected(np.tile(ids, (NUM_FEATURES, 1)), num_deltas)
    found = np.concatenate([version.rows(table.name, ids) for table in version.tables], axis=1)
    np.testing.assert_array_equal(found, expected)


def test_each_delta_changes_its_share(dataset: Dataset) -> None:
    expected = [dataset.expected(np.tile(np.arange(TABLES.rows), (NUM_FEATURES, 1)), count) for count in range(3)]
    for number, share in enumerate(dataset.shares, start=1):
        changed = (expected[number] != expected[number - 1]).any(axis=1)
        assert len(dataset.changed(3, number)) == int(share * TABLES.rows)
        assert changed.sum() >= int(share * TABLES.rows)


def test_the_file_of_rows_has_them_table_after_table(dataset: Dataset) -> None:
    ids = np.array([[[69, 0]] * NUM_FEATURES])
    numbers = row_numbers(ids, TABLES.rows)
    rows = np.fromfile(dataset.rows_file, np.float32).reshape(-1, TABLES.dim)
    assert len(rows) == NUM_FEATURES * TABLES.rows
    np.testing.assert_array_equal(rows[numbers[0]].reshape(2, -1), dataset.expected(ids[0], 0))


def store(name: str, package: str, dataset: Dataset) -> CStore:
    try:
        return CStore(name, package, dataset)
    except StoreMissingError as exc:
        pytest.skip(str(exc))


@pytest.mark.parametrize(("name", "package"), STORES)
def test_stores_give_the_rows(dataset: Dataset, name: str, package: str) -> None:
    made = store(name, package, dataset)
    made.build()
    made.build()
    ids = np.random.default_rng(1).integers(0, TABLES.rows, (2, NUM_FEATURES, 5))
    warm(made.files())
    made.open()
    made.use(ids)
    for batch in (1, 0):
        made.run(batch)
        np.testing.assert_array_equal(made.result(), dataset.expected(ids[batch], 0))
    assert all(seconds > 0 for seconds in made.timed().time(0.001))
    made.use(ids + NUM_FEATURES * TABLES.rows)
    with pytest.raises(RuntimeError, match="a call that was timed failed"):
        made.timed().time(0.001)
    with pytest.raises(StoreMissingError, match="a row could not be read"):
        made.run(0)
    made.close()
    drop(made.files())


def test_what_is_timed_in_c_gives_the_rows(dataset: Dataset) -> None:
    ids = np.random.default_rng(1).integers(0, TABLES.rows, (2, NUM_FEATURES, 5))
    for candidate in (
        GatherLimit(dataset, in_huge_pages=False, num_threads=1),
        ThroughC(dataset, memory="pin", num_deltas=0, num_threads=1),
    ):
        candidate.open()
        candidate.use(ids)
        candidate.result()[:] = 0
        assert len(candidate.timed().time(0.0)) == 1
        np.testing.assert_array_equal(candidate.result(), dataset.expected(ids[0], 0))
        candidate.close()


def test_a_caller_goes_from_version_to_version(dataset: Dataset) -> None:
    engine, ids = NativeEngine({}), np.random.default_rng(1).integers(0, TABLES.rows, (1, NUM_FEATURES, 5))
    versions = [engine.open(dataset.store, dataset.version(number).name) for number in (0, 2)]
    calls = VersionCalls(versions[0], ids, TABLES.dim, make_executor(1))
    caller = Caller(calls.timed, 1 << 20)
    with caller.going_on():
        second = caller.change(calls.timed.of(versions[1].value or 0))
        for _ in range(60_000):
            if second in caller.made()[:, 2]:
                break
            time.sleep(0.001)
    made = caller.made()
    assert caller.num_failed == 0
    assert made[-1, 2] == second
    assert (np.diff(made[:, 0]) > 0).all()
    np.testing.assert_array_equal(calls.out, dataset.expected(ids[0], 2))
    for version in versions:
        engine.close(version)
    engine.destroy()


@pytest.mark.parametrize(("name", "package"), STORES)
def test_a_store_that_is_not_there(dataset: Dataset, tmp_path: Path, name: str, package: str) -> None:
    made = store(name, package, Dataset(tmp_path, TABLES, ()))
    with pytest.raises(StoreMissingError, match=f"{tmp_path / name}: the store could not be opened"):
        made.open()


def test_a_library_that_is_not_there(dataset: Dataset) -> None:
    with pytest.raises(
        StoreMissingError, match="nothing cannot be compiled against, on Debian it is in libnothing-dev"
    ):
        CStore("nothing", "libnothing-dev", dataset)


def test_a_file_that_is_not_there_is_not_dropped(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        drop([tmp_path / "missing"])


def test_the_report_compares_in_the_same_cell_and_state() -> None:
    cells = [Cell(TABLES, size, 1, "zipf") for size in (64, 512)]
    timings = [
        Timing(Place(cells[0], HOT), "Rankhouse map", [10e-6, 20e-6, 90e-6]),
        Timing(Place(cells[0], HOT), "LMDB, C", [120e-6]),
        Timing(Place(cells[1], HOT), "Rankhouse map", [100e-6]),
        Timing(Place(cells[1], HOT), "LMDB, C", [400e-6]),
        Timing(Place(cells[0], COLD), "Rankhouse map", [1.0]),
        Timing(Place(cells[0], COLD), "LMDB, C", [1.0]),
    ]
    hot, cold = sheets(timings, WHOSE_TIME)
    assert hot.columns[1:] == ["64 zipf", "512 zipf"]
    assert hot.lines == [
        ["Rankhouse map", "20 (1.00x; 83.2)", "100 (1.00x; 133)"],
        ["LMDB, C", "120 (6.00x; 13.9)", "400 (4.00x; 33.3)"],
    ]
    assert cold.lines[1] == ["LMDB, C", "1,000,000 (1.00x; 0.00166)"]
    (aim,) = aims_sheet(timings).lines
    assert aim == ["5x LMDB, both through C", "5.00", "1 of 2", "5.00", "4.00", "2k, 16, 512, 13,312, zipf"]
