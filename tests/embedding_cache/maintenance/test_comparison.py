from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from rankhouse.embedding_cache.format.errors import CorruptFileError
from rankhouse.embedding_cache.format.records import FeatureContent, TableContent
from rankhouse.embedding_cache.format.shared_files import shared_path
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.maintenance.comparison import TableDifference, compare_versions
from rankhouse.embedding_cache.maintenance.publication import compact_version, roll_back
from tests.embedding_cache.format.small_store import rows_of
from tests.embedding_cache.maintenance.chain import ALL_ROW_TYPES, effective, write_chain, write_over, write_whole


@pytest.fixture
def store(tmp_path: Path) -> VersionStore:
    return VersionStore(tmp_path / "store")


def truth(before: Version, after: Version, table: str) -> tuple[int, int, int, float, float]:
    """Counts what changed from all rows of both: added, changed, removed, largest and mean change."""
    sizes = [next(entry.num_rows for entry in version.tables if entry.name == table) for version in (before, after)]
    one, other = np.zeros((2, max(sizes), before.tables[0].dim if table == "C1" else before.tables[1].dim))
    one[: sizes[0]] = before.rows(table, np.arange(sizes[0]))
    other[: sizes[1]] = after.rows(table, np.arange(sizes[1]))
    was, is_ = one.any(axis=1), other.any(axis=1)
    changed = was & is_ & (one != other).any(axis=1)
    change = np.abs(other - one)[changed]
    mean = float(change.mean()) if change.size else 0.0
    return int((is_ & ~was).sum()), int(changed.sum()), int((was & ~is_).sum()), float(change.max(initial=0)), mean


def counts(found: TableDifference) -> tuple[int, int, int, float, float]:
    return found.num_added, found.num_changed, found.num_removed, found.max_change, found.mean_change


@pytest.mark.parametrize("dtype", ALL_ROW_TYPES)
def test_counts_what_changed_whichever_way_it_is_found(store: VersionStore, tmp_path: Path, dtype: str) -> None:
    versions = write_chain(store, tmp_path / "parts", dtype=dtype)
    folded = compact_version(store)
    for before in versions:
        for after in versions:
            found = compare_versions(before, after)
            for table in found.tables:
                assert counts(table) == pytest.approx(truth(before, after, table.name))
        by_all_rows, by_deltas = compare_versions(before, folded), compare_versions(before, versions[-1])
        assert [counts(table) for table in by_all_rows.tables] == [counts(table) for table in by_deltas.tables]
        assert sum(table.rows_read for table in by_deltas.tables) < 14 + 5


def test_reads_only_the_rows_of_deltas_that_differ(store: VersionStore, tmp_path: Path) -> None:
    whole, one, two = write_chain(store, tmp_path / "parts")
    branch = write_over(store, tmp_path / "parts", one, {"C1": ([7], [])})
    seen: list[tuple[int, int]] = []
    found = compare_versions(two, branch, on_rows=lambda *counts: seen.append(counts))
    assert [table.rows_read for table in found.tables] == [4, 0]  # 2, 13, 4 of the one; 7 of the other.
    assert seen == [(4, 4)]
    assert (found.tables[0].rows_before, found.tables[0].rows_after) == (14, 13)
    assert counts(found.tables[0]) == pytest.approx(truth(two, branch, "C1"))
    found = compare_versions(whole, one)
    assert [table.rows_read for table in found.tables] == [5, 1]
    assert counts(found.tables[0])[:3] == (1, 2, 1)  # 12 is new, 1 and 4 changed, 2 went; 11 never was.


def test_reads_a_folded_table_block_by_block(
    store: VersionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, *_ = write_chain(store, tmp_path / "parts")
    folded = compact_version(store)
    at_once = compare_versions(whole, folded)
    monkeypatch.setattr("rankhouse.embedding_cache.maintenance.comparison._BLOCK_VALUES", 9)
    seen: list[tuple[int, int]] = []
    assert compare_versions(whole, folded, on_rows=lambda *counts: seen.append(counts)) == at_once
    assert seen[:2] == [(3, 19), (6, 19)]
    assert seen[-1] == (19, 19)


def test_a_version_and_its_copy_do_not_differ(store: VersionStore, tmp_path: Path) -> None:
    _, second, third = write_chain(store, tmp_path / "parts")
    for one, other in ((third, compact_version(store)), (second, roll_back(store, second.name))):
        found = compare_versions(one, other)
        assert [counts(table) for table in found.tables] == [(0, 0, 0, 0.0, 0.0)] * 2
        assert (found.dense, found.metrics) == ("same", {})
        assert effective(one) == effective(other)


def test_compares_what_is_beside_the_rows(store: VersionStore, tmp_path: Path) -> None:
    one = write_whole(store, tmp_path / "parts", metrics={"auc": 0.75, "step": 10})
    features = [
        FeatureContent("C1", "C1", "mean"),
        FeatureContent("C2", "C2", "mean"),
        FeatureContent("C3", "C3", "sum"),
    ]
    tables = [
        TableContent("C1", 11, 3, [rows_of(11, 3, 1)]),
        TableContent("C2", 5, 4, [rows_of(5, 4, 1)]),
        TableContent("C3", 2, 2, [rows_of(2, 2, 1)]),
    ]
    other = write_whole(
        store,
        tmp_path / "parts",
        first=5,
        num_values=9,
        tables=tables,
        features=features,
        metrics={"auc": 0.8, "loss": 0.1, "step": 10},
    )
    found = compare_versions(one, other)
    assert (found.before, found.after) == (one.name, other.name)
    assert [(table.name, table.rows_before, table.rows_after) for table in found.tables] == [
        ("C1", 11, 11),
        ("C2", 5, 5),
        ("C3", 0, 2),
    ]
    assert [counts(table)[:3] for table in found.tables] == [(0, 0, 0), (0, 5, 0), (2, 0, 0)]
    assert found.known_values == {"C1": (8, 9), "C2": (2, 2)}
    assert (found.features_added, found.features_removed, found.features_changed) == (
        ("C3",),
        ("clicked",),
        ("C1", "C2"),
    )
    assert found.dense == "changed"
    assert found.metrics == {"auc": (0.75, 0.8), "loss": (None, 0.1)}
    back = compare_versions(other, one)
    assert [(table.name, *counts(table)[:3]) for table in back.tables] == [
        ("C1", 0, 0, 0),
        ("C2", 0, 5, 0),
        ("C3", 0, 0, 2),
    ]


def test_a_version_without_a_dense_part_is_told(store: VersionStore, tmp_path: Path) -> None:
    one = write_whole(store, tmp_path / "parts", dense=None)
    other = write_whole(store, tmp_path / "parts")
    assert [compare_versions(*pair).dense for pair in ((one, other), (other, one), (one, one))] == [
        "added",
        "removed",
        "same",
    ]


def test_a_difference_is_plain_data(store: VersionStore, tmp_path: Path) -> None:
    one, _, other = write_chain(store, tmp_path / "parts")
    document = asdict(compare_versions(one, other))
    assert document["tables"][0]["num_changed"] == 2
    assert document == asdict(replace(compare_versions(one, other)))


def test_refuses_a_missing_file(store: VersionStore, tmp_path: Path) -> None:
    one, _, other = write_chain(store, tmp_path / "parts")
    path = shared_path(store.path, other.tables[0].deltas[0].sha256)
    path.unlink()
    with pytest.raises(CorruptFileError, match=f"{path.name}: is missing"):
        compare_versions(one, other)
