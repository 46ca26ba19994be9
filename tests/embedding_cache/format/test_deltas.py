import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankhouse.embedding_cache.engine import Engine
from rankhouse.embedding_cache.errors import BatchError
from rankhouse.embedding_cache.format.content import DeltaContent
from rankhouse.embedding_cache.format.delta import chain_of
from rankhouse.embedding_cache.format.errors import (
    ContentError,
    CorruptFileError,
    ManifestError,
    NotServableError,
    VersionNotFoundError,
)
from rankhouse.embedding_cache.format.records import FeatureContent, TableContent, TableDelta
from rankhouse.embedding_cache.format.row_types import ROW_TYPES
from rankhouse.embedding_cache.format.shared_files import shared_path
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.format.version_record import Origin, Parent, Source
from rankhouse.embedding_cache.maintenance.inventory import additions
from rankhouse.kernels.reference.rows import dequantize_rows, quantize_rows
from tests.embedding_cache.format.small_store import (
    blocks_of,
    forge,
    rows_of,
    small_content,
    small_delta,
    table_delta,
)


@pytest.fixture
def store(tmp_path: Path) -> VersionStore:
    """A whole version and two deltas after it."""
    store = VersionStore(tmp_path / "store")
    first = store.write(small_content(tmp_path / "parts"))
    second = store.write_delta(small_delta(tmp_path / "parts"), first)
    tables = [table_delta("C1", {2: [5, 5, 5], 4: [6, 6, 6]}, num_rows=12, removed=[0])]
    store.write_delta(small_delta(tmp_path / "parts", tables=tables), second)
    return store


def truth_of(rows: np.ndarray, row_type: str) -> np.ndarray:
    """What a reader finds of rows that were stored."""
    return dequantize_rows(quantize_rows(np.ascontiguousarray(rows), row_type))


class Chain:
    """A store whose one table changes at random, and what each version must hold."""

    def __init__(self, folder: Path, *, row_type: str, seed: int, dim: int = 5) -> None:
        self.random = np.random.default_rng(seed)
        self.row_type, self.dim, self._folder = row_type, dim, folder
        rows = self._new_rows(int(self.random.integers(1, 40)))
        self.truth = truth_of(rows, row_type)
        self.store = VersionStore(folder / "store", segment_bytes=int(self.random.integers(1, 600)))
        content = small_content(
            folder / "parts",
            tables=[TableContent("t", *rows.shape, blocks_of(rows), row_type)],
            features=[FeatureContent("a", "t", "sum"), FeatureContent("b", "t", "mean")],
        )
        self.versions = [self.store.write(content)]
        self.truths = [self.truth]

    def step(self) -> None:
        """Rows change, go and come."""
        old = len(self.truth)
        new = old + int(self.random.integers(0, 6))
        kind = self.random.choice(3, size=new, p=[0.6, 0.3, 0.1])  # Stays, changes, goes.
        kind[old:] = self.random.integers(1, 3, size=new - old)
        ids, removed = np.flatnonzero(kind == 1), np.flatnonzero(kind == 2)
        rows = self._new_rows(len(ids))
        self.truth = np.concatenate([self.truth, np.zeros((new - old, self.dim), np.float32)])
        self.truth[ids], self.truth[removed] = truth_of(rows, self.row_type), 0
        parts = small_delta(self._folder / "parts", tables=[TableDelta("t", new, ids, blocks_of(rows, 3), removed)])
        self.versions.append(self.store.write_delta(parts, self.versions[-1]))
        self.truths.append(self.truth)

    def _new_rows(self, num_rows: int) -> np.ndarray:
        return self.random.normal(scale=3, size=(num_rows, self.dim)).astype(np.float32)


@pytest.mark.parametrize("row_type", ROW_TYPES)
@pytest.mark.parametrize("seed", range(4))
def test_every_version_of_a_random_chain_holds_its_rows(tmp_path: Path, row_type: str, seed: int) -> None:
    chain = Chain(tmp_path, row_type=row_type, seed=seed)
    for _ in range(5):
        chain.step()
    for written, truth in zip(chain.versions, chain.truths, strict=True):
        version = chain.store.open(written.name)
        assert version == written
        (table,) = version.tables
        assert (table.num_rows, table.dtype) == (len(truth), row_type)
        ids = chain.random.integers(0, len(truth), 50)
        np.testing.assert_array_equal(version.rows("t", ids), truth[ids])
        blocks = list(version.blocks("t"))
        assert {block.dtype for block in blocks} == {ROW_TYPES[row_type].dtype}
        np.testing.assert_array_equal(dequantize_rows(np.concatenate(blocks)), truth)


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_the_engine_pools_a_chain_as_one_whole_table_bit_for_bit(tmp_path: Path, row_type: str) -> None:
    chain = Chain(tmp_path, row_type=row_type, seed=17)
    for _ in range(4):
        chain.step()
    last = chain.versions[-1]
    whole = VersionStore(tmp_path / "whole").write(
        small_content(
            tmp_path / "parts",
            tables=[TableContent("t", len(chain.truth), chain.dim, last.blocks("t"), row_type)],
            features=[FeatureContent("a", "t", "sum"), FeatureContent("b", "t", "mean")],
        )
    )
    assert not whole.tables[0].deltas
    lengths_FB = chain.random.integers(0, 5, (2, 64), dtype=np.int32)
    ids_N = chain.random.integers(0, len(chain.truth), lengths_FB.sum())
    expected = Engine().open(whole.store, whole.name).lookup(ids_N, lengths_FB)
    np.testing.assert_array_equal(Engine().open(last.store, last.name).lookup(ids_N, lengths_FB), expected)
    begins = np.cumsum(lengths_FB) - lengths_FB.ravel()
    for sample, (begin, length) in enumerate(zip(begins[:64], lengths_FB[0], strict=True)):
        summed = chain.truth[ids_N[begin : begin + length]].sum(axis=0)
        np.testing.assert_allclose(expected[sample, : chain.dim], summed, rtol=1e-5, atol=1e-5)


def test_blocks_are_cut_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(tmp_path, row_type="float32", seed=3)
    for _ in range(3):
        chain.step()
    for num_bytes in (1, 40, 100, 1000):
        monkeypatch.setattr("rankhouse.embedding_cache.format.table_rows._BLOCK_BYTES", num_bytes)
        blocks = list(chain.versions[-1].blocks("t"))
        assert {len(block) for block in blocks[:-1]} <= {max(1, num_bytes // 20)}
        np.testing.assert_array_equal(np.concatenate(blocks), chain.truth)


def test_a_version_says_where_it_comes_from(store: VersionStore, tmp_path: Path) -> None:
    first, second, third = (store.open(name) for name in store.names())
    assert (first.parent, first.origin, first.source) == (None, Origin("export"), None)
    assert second.parent == Parent(first.name, first.manifest.sha256)
    assert (third.origin, third.metrics) == (Origin("delta", second.name), {"auc": 0.8})
    source = Source("criteo-1", "5f3a", 1200)
    fourth = store.write_delta(small_delta(tmp_path / "parts", source=source), third)
    assert store.open(fourth.name).source == source
    whole = store.write(small_content(tmp_path / "parts", source=source, origin=Origin("compact", fourth.name)))
    assert (store.open().source, store.open().origin) == (source, Origin("compact", fourth.name))
    assert whole.parent is None


def test_a_delta_shares_all_that_did_not_change(store: VersionStore) -> None:
    first, second, third = (store.open(name) for name in store.names())
    assert second.tables[1] == first.tables[1]
    assert second.tables[0].segments == first.tables[0].segments
    assert second.record.vocabularies == first.record.vocabularies
    assert third.tables[0].deltas[:1] == second.tables[0].deltas
    own = sum(file.bytes for file in third.manifest.files.values())
    assert additions([second, third])[1].num_bytes == own + third.tables[0].deltas[1].bytes
    assert third.num_bytes == own + sum(path.stat().st_size for path in (store.path / "segments").iterdir())
    assert additions([third, third])[1].num_bytes == own


def test_deltas_on_one_parent_do_not_touch_each_other(store: VersionStore, tmp_path: Path) -> None:
    first = store.open(store.names()[0])
    other = store.write_delta(small_delta(tmp_path / "parts", tables=[]), first)
    assert [len(table.deltas) for table in other.tables] == [0, 0]
    np.testing.assert_array_equal(other.rows("C1", np.arange(11)), rows_of(11, 3))
    assert store.open() == other


def test_a_delta_without_changes_writes_no_rows(store: VersionStore, tmp_path: Path) -> None:
    parent, before = store.open(), set((store.path / "segments").iterdir())
    for tables in ([], [table_delta("C2", {}, num_rows=5), table_delta("C1", {}, num_rows=12)]):
        version = store.write_delta(small_delta(tmp_path / "parts", tables=tables), parent)
        assert store.open(version.name).tables == parent.tables
    assert set((store.path / "segments").iterdir()) == before


def test_a_delta_may_remove_only(store: VersionStore, tmp_path: Path) -> None:
    tables = [table_delta("C1", {}, num_rows=12, removed=[1, 11]), table_delta("C2", {}, num_rows=5, removed=[0])]
    version = store.write_delta(small_delta(tmp_path / "parts", tables=tables), store.open())
    version = store.open(version.name)
    np.testing.assert_array_equal(version.rows("C1", np.array([11, 1, 3])), [[0, 0, 0], [0, 0, 0], [9, 10, 11]])
    engine = Engine().open(version.store, version.name)
    found = engine.lookup(np.array([1, 0, 1, 3]), np.array([[1], [1], [2]], np.int32))
    np.testing.assert_array_equal(found, [[0, 0, 0, 0, 0, 4.5, 5, 5.5]])


def test_a_removed_row_comes_back(store: VersionStore) -> None:
    first, second, third = (store.open(name) for name in store.names())
    for version, rows in ((first, [[12, 13, 14]]), (second, [[0, 0, 0]]), (third, [[6, 6, 6]])):
        np.testing.assert_array_equal(version.rows("C1", np.array([4])), rows)


@pytest.mark.parametrize("wrong", [-1, 12, 2**40])
def test_refuses_an_id_outside_the_table(store: VersionStore, wrong: int) -> None:
    with pytest.raises(ContentError, match=f"table 'C1' has 12 rows; there is no row {wrong}"):
        store.open().rows("C1", np.array([1, wrong]))
    with pytest.raises(ContentError, match=r"has no table 'C9'; it has C1, C2"):
        store.open().rows("C9", np.array([1]))
    with pytest.raises(BatchError, match=f"id {wrong} of feature 'clicked' .* is out of range: table 'C1' has 12 rows"):
        Engine().open(store.path).lookup(np.array([0, 0, wrong]), np.ones((3, 1), np.int32))


@pytest.mark.parametrize(
    ("delta", "message"),
    [
        (
            table_delta("C9", {}, num_rows=1),
            r"of the tables \['C9'\]; expected each at most once, and of \['C1', 'C2'\]",
        ),
        (table_delta("C1", {2: [1, 2, 3]}, num_rows=11), "had 12 rows, a delta cannot leave 11"),
        (table_delta("C1", {2: [1, 2, 3]}, num_rows=13), "grew from 12 to 13 rows, the delta has 0 of the new ones"),
        (table_delta("C1", {12: [1, 2, 3]}, num_rows=12), "ids has 12 to 12, the table has 12 rows"),
        (table_delta("C1", {-1: [1, 2, 3]}, num_rows=12), "ids has -1 to -1"),
        (table_delta("C1", {}, num_rows=12, removed=[3, 3]), "removed is not sorted, or has a row twice: 3, 3 at 0"),
        (table_delta("C1", {}, num_rows=12, removed=[4, 3]), "removed is not sorted"),
        (table_delta("C1", {3: [1, 2, 3]}, num_rows=12, removed=[1, 3]), "row 3 is both written and removed"),
        (table_delta("C1", {3: [1, 2]}, num_rows=12), r"was given a block of float32 \[1, 2\]"),
        (TableDelta("C1", 12, np.array([1, 2]), [rows_of(1, 3)]), "has 2 rows, its blocks brought 1"),
        (TableDelta("C1", 12, np.array([1]), [rows_of(2, 3)]), "has 1 rows, its blocks brought 2"),
        (TableDelta("C1", 12, np.array([1.0]), [rows_of(1, 3)]), r"ids is float64 \[1\]; expected int64"),
    ],
)
def test_refuses_a_delta_that_contradicts_itself_or_its_parent(
    store: VersionStore, tmp_path: Path, delta: TableDelta, message: str
) -> None:
    names = store.names()
    with pytest.raises(ContentError, match=message):
        store.write_delta(small_delta(tmp_path / "parts", tables=[delta]), store.open())
    assert store.names() == names
    assert not list(store.path.glob("*/.*"))


def test_refuses_a_parent_that_is_not_in_the_store(store: VersionStore, tmp_path: Path) -> None:
    other = VersionStore(tmp_path / "other").write(small_content(tmp_path / "parts", metrics={"auc": 0.1}))
    with pytest.raises(VersionNotFoundError, match=other.name):
        store.write_delta(small_delta(tmp_path / "parts"), other)


def test_refuses_vocabularies_that_do_not_continue_the_parents(store: VersionStore, tmp_path: Path) -> None:
    content = small_delta(tmp_path / "parts")
    (tmp_path / "parts/transform.safetensors").write_bytes(b"other vocabularies")
    with pytest.raises(ContentError, match=f"its vocabularies do not continue those of {store.names()[-1]}"):
        store.write_delta(content, store.open())
    assert len(store.names()) == 3


def test_continues_a_version_of_the_time_before_layers(tmp_path: Path) -> None:
    golden = Path(__file__).parent / "golden"
    shutil.copytree(golden, tmp_path / "store")
    store = VersionStore(tmp_path / "store")
    old = store.open()
    content = DeltaContent(old.dense_path, old.path, 2, [table_delta("city", {3: [1, 2, 3, 4]}, num_rows=6)])
    version = store.open(store.write_delta(content, old).name)
    np.testing.assert_array_equal(version.rows("city", np.array([3])), [[1, 2, 3, 4]])
    np.testing.assert_array_equal(version.rows("city", np.array([2])), old.rows("city", np.array([2])))
    assert version.record.vocabularies == (old.manifest.files["transform.safetensors"],)
    assert version.transform().features == old.transform().features


def test_a_delta_outlives_its_parent(store: VersionStore) -> None:
    first, second, third = store.names()
    for name in (first, second):
        for path in (store.path / "versions" / name).iterdir():
            path.unlink()
        (store.path / "versions" / name).rmdir()
    np.testing.assert_array_equal(store.open(third).rows("C1", np.array([2, 11])), [[5, 5, 5], [7, 8, 9]])


def table_of(version: Version, **changes: Any) -> list[dict[str, Any]]:
    """The version's tables as in its manifest, the first one changed."""
    first, *others = version.manifest.document["tables"]
    return [{**first, **changes}, *others]


def misplaced(version: Version) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    one, two = version.manifest.document["tables"][0]["deltas"]
    yield "reordered", [two, one]
    yield "doubled", [one, two, two]
    yield "missing", [two]
    yield "first doubled", [one, one, two]


@pytest.mark.parametrize("case", ["reordered", "doubled", "missing", "first doubled"])
def test_refuses_deltas_out_of_their_place(store: VersionStore, case: str) -> None:
    version = store.open()
    name = forge(version, tables=table_of(version, deltas=dict(misplaced(version))[case]), parent=None)
    with pytest.raises(CorruptFileError, match="table 'C1' does not apply to what is before it"):
        store.open(name)
    with pytest.raises(CorruptFileError, match="a delta is missing, doubled or out of order"):
        store.open(name, verify=False).rows("C1", np.array([1]))


def test_refuses_a_delta_of_another_table_or_row_type(store: VersionStore, tmp_path: Path) -> None:
    tables = [table_delta("C2", {1: [1, 2]}, num_rows=5)]
    version = store.write_delta(small_delta(tmp_path / "parts", tables=tables), store.open())
    foreign = version.manifest.document["tables"][1]["deltas"]
    name = forge(version, tables=table_of(version, deltas=foreign), parent=None)
    with pytest.raises(CorruptFileError, match="delta 0 of table 'C1' does not apply"):
        store.open(name)
    version = store.open(store.names()[1])
    with pytest.raises(CorruptFileError, match=r"expected the segment .*'row_type': 'float16'"):
        store.open(forge(version, tables=table_of(version, dtype="float16"), parent=None), verify=False).table_rows(
            "C1"
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_rows": 3}, "expected the tensors"),
        ({"num_removed": 0}, "expected the tensors"),
        ({"num_removed": -1}, "has an impossible delta"),
        ({"num_rows": True}, "has an impossible delta"),
        ({"bytes": 7}, "was altered: expected 7 bytes"),
        ({"sha256": "../x"}, "impossible SHA-256"),
        ({"surprise": 1}, "unexpected keyword argument 'surprise'"),
    ],
)
def test_refuses_a_record_that_is_not_the_file(store: VersionStore, changes: dict[str, Any], message: str) -> None:
    version = store.open()
    one, two = version.manifest.document["tables"][0]["deltas"]
    with pytest.raises((CorruptFileError, ManifestError), match=message):
        store.open(forge(version, tables=table_of(version, deltas=[one, {**two, **changes}]), parent=None))


def test_refuses_rows_that_nothing_holds(store: VersionStore) -> None:
    version = store.open()
    with pytest.raises(ManifestError, match="has 18 rows, its segments 11 rows, its deltas 6"):
        store.open(forge(version, tables=table_of(version, num_rows=18)))


def test_refuses_a_fork(store: VersionStore, tmp_path: Path) -> None:
    second, third = (store.open(name) for name in store.names()[1:])
    tables = [table_delta("C1", {3: [1, 2, 3]}, num_rows=12)]
    other = store.write_delta(small_delta(tmp_path / "parts", tables=tables), second)
    parent = {"name": other.name, "sha256": other.manifest.sha256}
    with pytest.raises(ManifestError, match=f"does not continue its parent {other.name}: table 'C1' is not the one"):
        store.open(forge(third, parent=parent), verify=False)


def test_refuses_another_parent_of_the_same_name(store: VersionStore) -> None:
    third = store.open()
    assert third.parent is not None
    sha256 = third.parent.sha256[:8] + "0" * 56
    with pytest.raises(ManifestError, match="the hash of its parent's manifest is not the one there"):
        store.open(forge(third, parent={"name": third.parent.name, "sha256": sha256}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"origin": {"action": "magic", "version": None}}, "its origin is 'magic'; expected one of"),
        ({"parent": {"name": "../x", "sha256": "0" * 64}}, "cannot be a version"),
        ({"source": {"run": "r", "checkpoint": "c", "step": "many"}}, "is not a run, a checkpoint and a step"),
        ({"source": {"run": "r"}}, "missing 2 required positional arguments"),
        ({"vocabularies": [{"sha256": "x", "bytes": 1}]}, "impossible SHA-256"),
        ({"vocabularies": []}, r"it names the files .*; expected .*transform\.safetensors"),
        ({"dense": None}, "it names the files"),
    ],
)
def test_refuses_malformed_keys(store: VersionStore, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        store.open(forge(store.open(), **changes))


def test_a_damaged_parent_does_not_stop_its_child(store: VersionStore) -> None:
    _, second, third = store.names()
    (store.path / "versions" / second / "manifest.json").write_text("{}")
    assert store.open(third).name == third
    with pytest.raises(ManifestError):
        store.open(second)


def test_refuses_altered_bytes_of_a_delta(store: VersionStore) -> None:
    version = store.open()
    path = shared_path(store.path, version.tables[0].deltas[0].sha256)
    content = path.read_bytes()
    for place in (20, 4096, -17, -1):
        altered = bytearray(content)
        altered[place] ^= 1
        path.write_bytes(altered)
        with pytest.raises(CorruptFileError, match=path.name):
            store.open()
    path.unlink()
    with pytest.raises(CorruptFileError, match=f"{path.name}: is missing"):
        store.open(verify=False)


def test_the_chain_names_all_files_before(store: VersionStore) -> None:
    first, second, third = (store.open(name).tables[0] for name in store.names())
    assert len({chain_of(table) for table in (first, second, third)}) == 3
    assert chain_of(replace(third, deltas=third.deltas[:1])) == chain_of(second)


@pytest.mark.parametrize(
    ("row_type", "value"),
    [("float16", 65520.0), ("bfloat16", 3.4e38), ("int8", np.inf), ("float16", np.nan), ("bfloat16", -np.inf)],
)
def test_refuses_values_that_the_row_type_cannot_hold(tmp_path: Path, row_type: str, value: float) -> None:
    rows = rows_of(11, 3)
    rows[7, 1] = value
    store = VersionStore(tmp_path / "store")
    tables = [TableContent("C1", 11, 3, blocks_of(rows), row_type)]
    features = [FeatureContent("C1", "C1", "sum")]
    with pytest.raises(ContentError, match=f"row 7 of table 'C1' holds a value that {row_type} cannot"):
        store.write(small_content(tmp_path / "parts", tables=tables, features=features))
    whole = store.write(
        small_content(tmp_path / "parts", tables=[replace(tables[0], blocks=[rows_of(11, 3)])], features=features)
    )
    delta = TableDelta("C1", 11, np.array([2, 9]), [rows_of(1, 3), rows[7:8]])
    with pytest.raises(ContentError, match="row 9 of table 'C1'"):
        store.write_delta(small_delta(tmp_path / "parts", tables=[delta]), whole)


@pytest.mark.parametrize(("row_type", "value"), [("float16", 65519.0), ("bfloat16", 3.39e38), ("int8", 3e38)])
def test_takes_the_largest_values_of_a_row_type(tmp_path: Path, row_type: str, value: float) -> None:
    rows = np.array([[value, 0, 1]], np.float32)
    content = small_content(
        tmp_path / "parts",
        tables=[TableContent("t", 1, 3, [rows], row_type)],
        features=[FeatureContent("t", "t", "sum")],
    )
    found = VersionStore(tmp_path / "store").write(content).rows("t", np.array([0]))
    np.testing.assert_array_equal(found, truth_of(rows, row_type))
    assert np.isfinite(found).all()


def test_refuses_an_int8_row_whose_span_is_not_finite(tmp_path: Path) -> None:
    rows = np.array([[-3e38, 3e38]], np.float32)
    with pytest.raises(ContentError, match=r"table 't', rows from 0 on: cannot be stored as int8: .*row 0"):
        VersionStore(tmp_path / "store").write(
            small_content(tmp_path / "parts", tables=[TableContent("t", 1, 2, [rows], "int8")], features=[])
        )


def test_refuses_an_unknown_row_type(tmp_path: Path) -> None:
    with pytest.raises(ContentError, match="'int4' is no row type; expected one of float32, float16, bfloat16, int8"):
        VersionStore(tmp_path / "store").write(
            small_content(tmp_path / "parts", tables=[TableContent("t", 1, 2, [], "int4")], features=[])
        )


def test_a_version_without_a_dense_part_is_not_served(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "store")
    imported = store.write(small_content(tmp_path / "parts", dense=None, origin=Origin("import")))
    version = store.open()
    assert version == imported
    assert version.manifest.document["dense"] is None
    assert not (version.path / "dense.onnx").exists()
    np.testing.assert_array_equal(version.rows("C2", np.arange(5)), rows_of(5, 2))
    for wanted in ("dense_path", "num_dense"):
        with pytest.raises(NotServableError, match=r"has no dense part and cannot be served .*made by 'import'"):
            getattr(version, wanted)
    delta = store.write_delta(small_delta(tmp_path / "parts"), version)
    assert store.open(delta.name).num_dense == 2


def test_commits_what_the_store_has(store: VersionStore) -> None:
    first = store.open(store.names()[0])
    back = store.commit(replace(first.record, origin=Origin("rollback", first.name)), first.path)
    assert store.open() == back
    assert (back.tables, back.metrics, back.origin.action) == (first.tables, first.metrics, "rollback")
    assert back.dense_path.read_bytes() == first.dense_path.read_bytes()
    shared_path(store.path, first.tables[0].segments[0].sha256).unlink()
    with pytest.raises(CorruptFileError, match="is missing"):
        store.commit(first.record, first.path)
    assert store.names()[-1] == back.name


def test_a_check_sees_the_delta_before_anyone_else(store: VersionStore, tmp_path: Path) -> None:
    def check(version: Version) -> None:
        np.testing.assert_array_equal(version.rows("C1", np.array([4, 11])), [[0, 0, 0], [7, 8, 9]])
        raise ContentError("refused by the check")

    names = store.names()
    content: DeltaContent = small_delta(tmp_path / "parts")
    with pytest.raises(ContentError, match="refused by the check"):
        store.write_delta(content, store.open(names[0]), check=check)
    assert store.names() == names
