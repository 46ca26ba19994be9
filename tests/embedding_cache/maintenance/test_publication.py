from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rankhouse.embedding_cache.engine import Engine
from rankhouse.embedding_cache.format.errors import ContentError, CorruptFileError, ManifestError, VersionNotFoundError
from rankhouse.embedding_cache.format.shared_files import shared_path
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.format.version_record import Origin, Source
from rankhouse.embedding_cache.maintenance.collection import collect_garbage
from rankhouse.embedding_cache.maintenance.publication import compact_version, roll_back
from tests.embedding_cache.maintenance.chain import ALL_ROW_TYPES, effective, write_chain, write_over, write_whole


@pytest.fixture
def store(tmp_path: Path) -> VersionStore:
    return VersionStore(tmp_path / "store")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) - 3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("dtype", ALL_ROW_TYPES)
@pytest.mark.parametrize("segment_bytes", [1, 40, 1 << 20])
def test_a_folded_chain_gives_the_same_bits(
    store: VersionStore, tmp_path: Path, dtype: str, segment_bytes: int
) -> None:
    *_, last = write_chain(store, tmp_path / "parts", dtype=dtype)
    folded = compact_version(store, segment_bytes=segment_bytes)
    assert folded == store.open("latest")
    assert effective(folded) == effective(last)
    assert [table.deltas for table in folded.tables] == [(), ()]
    assert [table.dtype for table in folded.tables] == [dtype, dtype]
    ids, lengths = np.array([1, 2, 4, 11, 12, 13, 3, 0, 4]), np.array([[6], [1], [2]], np.int32)
    pooled = Engine().open(folded.store, folded.name).lookup(ids, lengths)
    assert pooled.tobytes() == Engine().open(last.store, last.name).lookup(ids, lengths).tobytes()


@pytest.mark.parametrize("dtype", ALL_ROW_TYPES)
def test_rows_that_went_are_zero_bytes(store: VersionStore, tmp_path: Path, dtype: str) -> None:
    write_chain(store, tmp_path / "parts", dtype=dtype)
    folded = compact_version(store)
    rows = np.concatenate(list(folded.blocks("C1")))
    assert not rows[[4, 11]].view(np.uint8).any()
    assert np.array_equal(folded.rows("C1", np.array([4, 11])), np.zeros((2, 3)))
    assert rows[2].any()  # It went and came back.


def test_a_folded_version_takes_the_rest_over(store: VersionStore, tmp_path: Path) -> None:
    one, *_ = write_chain(store, tmp_path / "parts")
    source = Source("first", "ab12", 30)
    last = write_over(store, tmp_path / "parts", store.open(), {"C1": ([1], [])}, metrics={"auc": 0.8}, source=source)
    folded = compact_version(store)
    assert (folded.parent, folded.origin) == (None, Origin("compact", last.name))
    assert (folded.source, folded.metrics, folded.model) == (source, {"auc": 0.8}, "dlrm")
    assert folded.manifest.files == last.manifest.files
    assert folded.record.vocabularies == last.record.vocabularies
    assert folded.golden() == last.golden()
    collect_garbage(store, keep=1)
    assert store.names() == [folded.name]
    assert one.name not in store.names()
    newer = write_over(store, tmp_path / "parts", folded, {"C1": ([14], [])})
    assert newer.parent is not None
    assert newer.parent.name == folded.name


def test_a_table_without_deltas_keeps_its_files(store: VersionStore, tmp_path: Path) -> None:
    whole, *_ = write_chain(store, tmp_path / "parts")
    last = write_over(store, tmp_path / "parts", whole, {"C1": ([1], [])})
    folded = compact_version(store)
    assert folded.tables[1] == last.tables[1] == whole.tables[1]


def test_a_whole_version_is_left_as_it_is(store: VersionStore, tmp_path: Path) -> None:
    whole, *_ = write_chain(store, tmp_path / "parts")
    names = store.names()
    assert compact_version(store, whole.name) == whole
    assert store.names() == names


def test_only_the_newest_version_is_folded(store: VersionStore, tmp_path: Path) -> None:
    _, second, last = write_chain(store, tmp_path / "parts")
    with pytest.raises(ContentError, match=f"{second.name} is not the newest version of 'dlrm', that is {last.name}"):
        compact_version(store, second.name)
    write_whole(store, tmp_path / "parts", model="other")
    assert compact_version(store, last.name).origin.version == last.name


def test_folding_does_not_take_the_place_of_a_version_that_came_meanwhile(store: VersionStore, tmp_path: Path) -> None:
    last = write_chain(store, tmp_path / "parts")[-1]
    came: list[Version] = []

    def publish_another(done: int, total: int) -> None:
        if done == total:
            came.append(write_over(store, tmp_path / "parts", last, {"C1": ([1], [])}))

    with pytest.raises(ContentError, match="is not the newest version"):
        compact_version(store, last.name, on_bytes=publish_another)
    assert store.open("latest") == came[0]


def test_folding_tells_how_far_it_is(store: VersionStore, tmp_path: Path) -> None:
    write_chain(store, tmp_path / "parts")
    seen: list[tuple[int, int]] = []
    compact_version(store, on_bytes=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (14 * 12 + 5 * 8, 14 * 12 + 5 * 8)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_both_tell_how_much_they_have_verified(store: VersionStore, tmp_path: Path) -> None:
    last = write_chain(store, tmp_path / "parts")[-1]
    for publish in (roll_back, compact_version):
        seen: list[tuple[int, int]] = []
        publish(store, last.name, on_verified=lambda done, total, seen=seen: seen.append((done, total)))
        assert seen[-1] == (last.num_bytes, last.num_bytes)
        assert [done for done, _ in seen] == sorted(done for done, _ in seen)
        last = store.open()


def test_rolls_back_to_an_older_version(store: VersionStore, tmp_path: Path) -> None:
    chain = write_chain(store, tmp_path / "parts")
    for old in chain:
        new = roll_back(store, old.name)
        assert store.open("latest", model="dlrm") == new
        assert new.origin == Origin("rollback", old.name)
        assert replace(new.record, origin=old.origin) == old.record
        assert new.manifest.files == old.manifest.files
        assert effective(new) == effective(old)
    assert len(store.names()) == 6
    assert sorted(path.name for path in (store.path / "versions").iterdir()) == store.names()


def test_a_version_can_be_laid_over_what_was_rolled_back(store: VersionStore, tmp_path: Path) -> None:
    _, second, _ = write_chain(store, tmp_path / "parts")
    back = roll_back(store, second.name)
    newer = write_over(store, tmp_path / "parts", back, {"C1": ([0], [])})
    expected = second.rows("C1", np.arange(13))
    expected[0] = [100, 101, 102]
    np.testing.assert_array_equal(newer.rows("C1", np.arange(13)), expected)
    collect_garbage(store, keep=1)
    np.testing.assert_array_equal(store.open(newer.name).rows("C1", np.arange(13)), expected)


@pytest.mark.parametrize("damaged", ["segment", "delta", "golden.json", "manifest.json"])
def test_refuses_a_damaged_version(store: VersionStore, tmp_path: Path, damaged: str) -> None:
    last = write_chain(store, tmp_path / "parts")[-1]
    table = last.tables[0]
    files = {"segment": table.segments[0], "delta": table.deltas[0]}
    path = shared_path(store.path, files[damaged].sha256) if damaged in files else last.path / damaged
    flip(path)
    names = store.names()
    for publish in (compact_version, roll_back):
        with pytest.raises((CorruptFileError, ManifestError), match=path.name):
            publish(store, last.name)
    assert store.names() == names
    assert not list(store.path.glob("*/.tmp-*"))


def test_refuses_a_version_that_is_not_there(store: VersionStore, tmp_path: Path) -> None:
    write_chain(store, tmp_path / "parts")
    for publish in (compact_version, roll_back):
        with pytest.raises(VersionNotFoundError, match="has no version '000009-00000000'"):
            publish(store, "000009-00000000")
    with pytest.raises(VersionNotFoundError, match="has no version of the model 'other'"):
        compact_version(store, model="other")
