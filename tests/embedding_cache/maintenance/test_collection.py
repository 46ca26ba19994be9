import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from rankhouse.embedding_cache.format.errors import ContentError, ManifestError, VersionNotFoundError
from rankhouse.embedding_cache.format.files import FileRecord
from rankhouse.embedding_cache.format.object_storage import ObjectStorage
from rankhouse.embedding_cache.format.shared_files import shared_path
from rankhouse.embedding_cache.format.version import VersionStore
from rankhouse.embedding_cache.maintenance.collection import Garbage, collect_garbage, find_garbage
from tests.embedding_cache.format.small_store import rows_of, small_content

ROOT = Path(__file__).parents[3]


@pytest.fixture
def store(tmp_path: Path) -> VersionStore:
    """Four versions of dlrm and two of other; all share C2's segment and the vocabularies, C1's is each one's own."""
    store = VersionStore(tmp_path / "store")
    for number, model in enumerate(("dlrm", "dlrm", "other", "dlrm", "other", "dlrm")):
        store.write(small_content(tmp_path / "parts", first=number, model=model))
    return store


def files(store: VersionStore) -> set[str]:
    return {str(path.relative_to(store.path)) for path in store.path.rglob("*")}


def age(path: Path, hours: float) -> None:
    for part in (path, *path.rglob("*")):
        os.utime(part, (part.stat().st_mtime - hours * 3600,) * 2)


def test_keeps_the_newest_versions_of_each_model(store: VersionStore) -> None:
    names = store.names()
    removed = collect_garbage(store, keep=1)
    assert store.names() == [names[4], names[5]]
    assert [item.path.name for item in removed if item.kind == "version"] == [names[0], names[1], names[2], names[3]]
    assert sum(item.kind == "segment" for item in removed) == 4  # C1 of each that went.
    for name in store.names():
        store.open(name)
    assert len(list((store.path / "segments").iterdir())) == 4  # C1 of both, C2 and the vocabularies.
    assert collect_garbage(store, keep=1) == []


def test_keeps_everything_where_there_are_few(store: VersionStore) -> None:
    before = files(store)
    assert collect_garbage(store, keep=4) == []
    assert files(store) - before == set()


def test_finding_changes_nothing_and_says_what_a_collection_removes(store: VersionStore) -> None:
    before = files(store)
    found = find_garbage(store, keep=2)
    assert files(store) == before
    sizes = {
        item.path: sum(p.stat().st_size for p in (item.path, *item.path.rglob("*")) if p.is_file()) for item in found
    }
    assert {item.path: item.bytes for item in found} == sizes
    seen: list[Garbage] = []
    assert collect_garbage(store, keep=2, on_removed=seen.append) == found == seen
    assert len([item for item in found if item.kind == "version"]) == 2
    assert not [item.path for item in found if item.path.exists()]


def test_removes_unfinished_writes_after_their_grace(store: VersionStore) -> None:
    fresh = store.path / "versions/.tmp-fresh"
    old = store.path / "versions/.tmp-old"
    incomplete = store.path / "versions/000009-00000000"
    removed = store.path / "versions/.removed-000001-00000000"
    for folder in (fresh, old, incomplete, removed):
        folder.mkdir()
        (folder / "dense.onnx").write_bytes(bytes(10))
    (store.path / "segments/..tmp-1.tmp-2").write_bytes(bytes(20))
    for path in (old, incomplete, store.path / "segments/..tmp-1.tmp-2"):
        age(path, hours=25)
    (store.path / "segments/notes.txt").write_text("a person's own")
    found = {item.path.name: (item.kind, item.bytes) for item in collect_garbage(store, keep=9)}
    assert found == {
        "..tmp-1.tmp-2": ("unfinished", 20),
        ".removed-000001-00000000": ("unfinished", 10),
        ".tmp-old": ("unfinished", 10),
        "000009-00000000": ("unfinished", 10),
    }
    assert fresh.is_dir()
    assert (store.path / "segments/notes.txt").is_file()
    assert [item.path for item in collect_garbage(store, keep=9, grace_seconds=0)] == [fresh]


def test_a_folder_that_is_written_to_is_not_old(store: VersionStore) -> None:
    folder = store.path / "versions/.tmp-1"
    folder.mkdir()
    age(folder, hours=48)
    (folder / "dense.onnx").write_bytes(bytes(10))
    age(folder, hours=0)
    os.utime(folder, (0, 0))
    assert collect_garbage(store, keep=9) == []


def test_an_open_version_stays_readable(store: VersionStore) -> None:
    version = store.open(store.names()[0])
    (rows,) = version.table_rows("C1").segments
    collect_garbage(store, keep=1)
    assert not version.path.exists()
    np.testing.assert_array_equal(rows, rows_of(11, 3, 0))


def test_the_name_of_a_version_that_went_and_was_restored_can_go_again(store: VersionStore, tmp_path: Path) -> None:
    name = store.names()[0]
    shutil.copytree(store.path, tmp_path / "backup")
    shutil.copytree(store.path / "versions" / name, store.path / "versions" / f".removed-{name}")
    collect_garbage(store, keep=1)
    assert not [path for path in files(store) if name in path]


def test_a_version_that_goes_while_it_is_opened_is_told(store: VersionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = store.storage.fetch

    def collect_first(files: Mapping[str, FileRecord], *, verify: bool) -> None:
        collect_garbage(store, keep=1)
        fetch(files, verify=verify)

    monkeypatch.setattr(store.storage, "fetch", collect_first)
    name = store.names()[0]
    with pytest.raises(VersionNotFoundError, match=f"{name} was collected while it was opened; open a newer one"):
        store.open(name)


def test_refuses_to_keep_nothing(store: VersionStore) -> None:
    with pytest.raises(ContentError, match="expected to keep 1 version of each model or more, found 0"):
        collect_garbage(store, keep=0)


def test_refuses_while_a_manifest_cannot_be_read(store: VersionStore) -> None:
    path = store.path / "versions" / store.names()[0] / "manifest.json"
    path.write_text("{")
    before = files(store)
    with pytest.raises(ManifestError, match=r"manifest.json: .*; nothing is removed .*move its folder away"):
        collect_garbage(store, keep=1)
    assert files(store) - before == {".writers"} - before


def test_refuses_what_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(VersionNotFoundError, match="there is no such version store"):
        collect_garbage(VersionStore(tmp_path / "nowhere"), keep=1)
    assert not (tmp_path / "nowhere").exists()


# A writer that has written a segment tells so and waits for a line before it goes on.
WRITER = """
import sys
from pathlib import Path
from dataclasses import replace
from rankhouse.embedding_cache.format.records import TableContent
from rankhouse.embedding_cache.format.version import VersionStore
from tests.embedding_cache.format.small_store import rows_of, small_content

root = Path(sys.argv[1])
def second():
    print("first table is written", flush=True)
    sys.stdin.readline()
    yield rows_of(5, 2)
content = small_content(root / "parts", first=77)
tables = [content.tables[0], TableContent("C2", 5, 2, second())]
print(VersionStore(root / "store").write(replace(content, tables=tables)).name)
"""


def test_waits_for_a_writer_whose_files_nothing_names_yet(store: VersionStore, tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    assert writer.stdout.readline() == "first table is written\n"
    waited = []

    def go_on() -> None:
        waited.append(store.names())
        writer.stdin.write("\n")  # type: ignore[union-attr]
        writer.stdin.flush()  # type: ignore[union-attr]

    before = store.names()
    collect_garbage(store, keep=2, on_wait=go_on)
    name = writer.communicate(timeout=300)[0].strip()
    assert waited == [before]
    assert writer.returncode == 0
    assert store.names()[-1] == name
    np.testing.assert_array_equal(store.open(name).table_rows("C1").segments[0], rows_of(11, 3, 77))


def test_an_announcement_outlives_a_grace_of_nothing(url: str, tmp_path: Path) -> None:
    """What another collection is removing just now must not be claimed unseen."""
    store = VersionStore(url, cache=tmp_path / "mirrors")
    store.write(small_content(tmp_path / "parts"))
    ObjectStorage(url).write("versions/.collection-another", b"segments/0.safetensors")
    assert collect_garbage(store, keep=1, grace_seconds=0) == []
    assert ".collection-another" in ObjectStorage(url).listing("versions")


def test_what_another_collection_has_just_removed_is_no_garbage(
    store: VersionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries, first = store.storage.entries, store.names()[0]
    monkeypatch.setattr(
        store.storage, "entries", lambda: [entry for entry in entries() if entry.path != f"versions/{first}"]
    )
    assert first not in [item.path.name for item in find_garbage(store, keep=1)]


def test_in_a_copy_of_a_bucket_what_was_given_up_does_not_exist(store: VersionStore) -> None:
    names, given_up = store.names(), store.path / "versions/000009-00000000"
    given_up.mkdir()
    (given_up / "manifest.json").write_bytes(b"abandoned\n")
    assert store.names() == names
    assert store.open().name == names[-1]
    with pytest.raises(VersionNotFoundError, match="has no version '000009-00000000'"):
        store.read(given_up.name)
    age(given_up, hours=25)
    assert [item.path for item in collect_garbage(store, keep=9)] == [given_up]
    (store.path / "versions" / names[-1] / "manifest.json").write_bytes(b"abandoned?")
    with pytest.raises(ManifestError, match="is not valid JSON"):
        store.open()


def test_in_a_bucket_what_was_just_put_stays(url: str, tmp_path: Path) -> None:
    store = VersionStore(url, cache=tmp_path / "mirrors")
    first, second = (store.write(small_content(tmp_path / "parts", first=number)) for number in (0, 100))
    (tmp_path / "dense.onnx").write_bytes(b"of a writer that died")
    ObjectStorage(url).put("versions/000003-00000000/dense.onnx", tmp_path / "dense.onnx")
    assert ObjectStorage(url).create("versions/.000003-00000000", b"")
    removed = collect_garbage(store, keep=1)
    assert [(item.kind, item.path.name) for item in removed] == [("version", first.name)]
    assert store.names() == [second.name]
    assert not first.path.exists(), "its mirror goes as well"
    removed = collect_garbage(store, keep=1, grace_seconds=0)
    segment = shared_path(Path(), first.tables[0].segments[0].sha256).name
    found = sorted((item.kind, item.path.name) for item in removed)
    assert found == [("segment", segment), ("unfinished", ".000003-00000000"), ("unfinished", "000003-00000000")]
    reader = VersionStore(url, cache=tmp_path / "reader")
    assert reader.open().name == second.name
    # What says that the dead writer's version was given up also keeps its number from being taken twice.
    assert store.write(small_content(tmp_path / "parts", first=200)).name.startswith("000004-")
    assert collect_garbage(store, keep=9, grace_seconds=0) == []
