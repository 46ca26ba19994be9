"""Versions in buckets: what a local folder promises, held without rename and without locks."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

from rankhouse.embedding_cache.format.content import DeltaContent
from rankhouse.embedding_cache.format.errors import (
    CorruptFileError,
    ManifestError,
    StorageError,
    VersionNotFoundError,
)
from rankhouse.embedding_cache.format.object_storage import ObjectStorage
from rankhouse.embedding_cache.format.records import TableDelta
from rankhouse.embedding_cache.format.shared_files import shared_path
from rankhouse.embedding_cache.format.storage import default_cache
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.maintenance.publication import compact_version, roll_back
from rankhouse.embedding_cache.maintenance.verification import verify_versions
from tests.embedding_cache.format.small_store import blocks_of, rows_of, small_content

ROOT = Path(__file__).parents[3]


def write(url: str, tmp_path: Path, *, cache: str = "writer", first: float = 0.0, **changes: Any) -> Version:
    content = small_content(tmp_path / "parts" / cache, first=first, **changes)
    return VersionStore(url, cache=tmp_path / cache).write(content)


def rows_in(version: Version) -> list[list[Any]]:
    return [np.concatenate(list(version.blocks(table.name))).tolist() for table in version.tables]


def objects_in(url: str) -> dict[str, int]:
    files, root = fsspec.url_to_fs(url, use_listings_cache=False)
    return {path[len(root) + 1 :]: files.size(path) for path in files.find(root)}


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.glob("[!.]*/**/*") if path.is_file()}


def replace(url: str, name: str, content: bytes) -> None:
    files, root = fsspec.url_to_fs(url, use_listings_cache=False)
    files.pipe_file(f"{root}/{name}", content)


def test_what_is_written_is_opened_elsewhere(url: str, tmp_path: Path) -> None:
    written = write(url, tmp_path)
    opened = VersionStore(url, cache=tmp_path / "reader").open(model="dlrm")
    assert opened.name == written.name == f"000001-{opened.manifest.sha256[:8]}"
    assert opened.store.parent == tmp_path / "reader"
    assert rows_in(opened) == rows_in(written) == [rows_of(11, 3).tolist(), rows_of(5, 2).tolist()]
    assert opened.dense_path.read_bytes() == b"dense.onnx of 0.0"
    # What a mirror holds is a store by itself.
    assert VersionStore(opened.store).open().name == written.name
    assert not list(tmp_path.rglob(".tmp-*"))


def test_versions_are_listed_oldest_first(url: str, tmp_path: Path) -> None:
    first, second = write(url, tmp_path), write(url, tmp_path, first=100, model="other")
    third = write(url, tmp_path, cache="elsewhere", first=200)
    store = VersionStore(url, cache=tmp_path / "reader")
    assert store.names() == [first.name, second.name, third.name]
    assert [name[:6] for name in store.names()] == ["000001", "000002", "000003"]
    assert store.open().name == third.name
    assert store.open(model="other").name == second.name


def test_a_manifest_alone_is_read_without_the_rest(url: str, tmp_path: Path) -> None:
    written = write(url, tmp_path)
    read = VersionStore(url, cache=tmp_path / "reader").read(written.name)
    assert read.metrics == {"auc": 0.75}
    assert [path.name for path in (tmp_path / "reader").rglob("[!.]*") if path.is_file()] == ["manifest.json"]


def test_what_is_shared_is_put_once_and_fetched_once(url: str, tmp_path: Path) -> None:
    first = write(url, tmp_path)
    reader = VersionStore(url, cache=tmp_path / "reader")
    reader.open()
    shared = f"segments/{first.tables[1].segments[0].sha256}.safetensors"
    inode = (reader.path / shared).stat().st_ino
    replace(url, shared, bytes(first.tables[1].segments[0].bytes))
    second = write(url, tmp_path, cache="elsewhere", first=100)
    assert (
        len([name for name in objects_in(url) if name.startswith("segments/")]) == 4
    )  # C1 twice, C2 and the vocabularies once
    # Had the shared segment been put or fetched again, either writing or opening would show it.
    assert rows_in(reader.open(second.name)) == [rows_of(11, 3, 100).tolist(), rows_of(5, 2).tolist()]
    assert (reader.path / shared).stat().st_ino == inode
    with pytest.raises(CorruptFileError, match=f"{url}/{shared}: its content was altered"):
        VersionStore(url, cache=tmp_path / "another").open()


def write_delta(store: VersionStore, tmp_path: Path, first: float) -> Version:
    whole = small_content(tmp_path / "parts" / "delta", first=first)
    changed = TableDelta("C1", 11, np.array([1, 4]), blocks_of(rows_of(2, 3, first)))
    content = DeltaContent(whole.dense, whole.transform, whole.num_dense, [changed], golden=whole.golden)
    return store.write_delta(content, store.open())


def test_a_delta_is_put_and_fetched_alone(url: str, tmp_path: Path) -> None:
    write(url, tmp_path)
    reader = VersionStore(url, cache=tmp_path / "reader")
    reader.open()
    objects, mirrored = objects_in(url), files_in(reader.path)
    written = write_delta(VersionStore(url, cache=tmp_path / "writer"), tmp_path, 500.0)
    opened = reader.open()
    assert opened.name == written.name
    rows = rows_of(11, 3)
    rows[[1, 4]] = rows_of(2, 3, 500.0)
    assert rows_in(opened) == [rows.tolist(), rows_of(5, 2).tolist()]
    own = {f"versions/{written.name}/{name}" for name in ("manifest.json", *written.manifest.files)}
    own.add(f"segments/{written.tables[0].deltas[0].sha256}.safetensors")
    assert files_in(reader.path) - mirrored == own
    assert set(objects_in(url)) - set(objects) == own


def test_old_versions_come_back_and_chains_are_folded(rclone_url: str, tmp_path: Path) -> None:
    first = write(rclone_url, tmp_path)
    delta = write_delta(VersionStore(rclone_url, cache=tmp_path / "writer"), tmp_path, 500.0)
    store = VersionStore(rclone_url, cache=tmp_path / "elsewhere")
    folded, back = compact_version(store), roll_back(store, first.name)
    reader = VersionStore(rclone_url, cache=tmp_path / "reader")
    assert reader.names() == [first.name, delta.name, folded.name, back.name]
    assert rows_in(reader.open(folded.name)) == rows_in(delta)
    assert rows_in(reader.open()) == rows_in(first)


def test_what_is_damaged_in_the_mirror_alone_is_fetched_before_it_is_folded(url: str, tmp_path: Path) -> None:
    written = write(url, tmp_path)
    delta = write_delta(VersionStore(url, cache=tmp_path / "writer"), tmp_path, 500.0)
    expected = rows_in(delta)
    path = shared_path(written.store, written.tables[0].segments[0].sha256)
    path.write_bytes(bytes(path.stat().st_size))
    assert rows_in(compact_version(VersionStore(url, cache=tmp_path / "writer"))) == expected


def test_a_verification_reads_the_bucket_and_keeps_no_table(url: str, tmp_path: Path) -> None:
    written = write(url, tmp_path)
    store = VersionStore(url, cache=tmp_path / "reader")
    assert verify_versions(store, [written.name]).sound == {written.name: written.num_bytes}
    segments = [shared_path(store.path, file.sha256) for table in written.tables for file in table.files]
    assert [path for path in segments if path.exists()] == []
    replace(url, f"segments/{segments[0].name}", b"rows")
    assert "was truncated" in verify_versions(store, [written.name]).damages[0].reason


def test_a_version_that_is_there_needs_no_storage(url: str, tmp_path: Path) -> None:
    written = write(url, tmp_path)
    for name in objects_in(url):
        ObjectStorage(url).delete(name)
    assert VersionStore(url, cache=tmp_path / "writer").open(written.name).name == written.name
    with pytest.raises(VersionNotFoundError, match="has no version"):
        VersionStore(url, cache=tmp_path / "writer").open()


def test_a_damaged_mirror_is_mended(url: str, tmp_path: Path) -> None:
    version = write(url, tmp_path)
    truncated, altered = (shared_path(version.store, table.segments[0].sha256) for table in version.tables)
    truncated.write_bytes(b"")
    altered.write_bytes(bytes(altered.stat().st_size))
    version.dense_path.unlink()
    (version.path / "manifest.json").write_bytes(b"{}")
    (version.path / ".manifest.json.tmp-1").write_bytes(b"left by a process that died")
    opened = VersionStore(url, cache=tmp_path / "writer").open()
    assert rows_in(opened) == [rows_of(11, 3).tolist(), rows_of(5, 2).tolist()]
    assert opened.dense_path.read_bytes() == b"dense.onnx of 0.0"


def test_what_is_damaged_in_the_bucket_is_named(url: str, tmp_path: Path) -> None:
    version = write(url, tmp_path)
    dense, manifest = (f"versions/{version.name}/{name}" for name in ("dense.onnx", "manifest.json"))
    replace(url, dense, b"dense.onnx of 9.9")
    with pytest.raises(CorruptFileError, match=f"{url}/{dense}: its content was altered"):
        VersionStore(url, cache=tmp_path / "reader").open()
    replace(url, dense, b"dense")
    with pytest.raises(CorruptFileError, match=f"{url}/{dense}: was truncated: expected 17 bytes, found 5"):
        VersionStore(url, cache=tmp_path / "reader").open()
    ObjectStorage(url).delete(dense)
    with pytest.raises(CorruptFileError, match=f"{url}/{dense}: is missing"):
        VersionStore(url, cache=tmp_path / "reader").open()
    replace(url, manifest, version.manifest.sha256.encode())
    with pytest.raises(ManifestError, match=f"{url}/{manifest}: was altered"):
        VersionStore(url, cache=tmp_path / "another").open()


def test_versions_that_are_not_there_are_refused(url: str, tmp_path: Path) -> None:
    store = VersionStore(url, cache=tmp_path / "reader")
    with pytest.raises(VersionNotFoundError, match=f"{url}: has no version; `rankhouse export` writes one"):
        store.open()
    written = write(url, tmp_path)
    for name in ("000001-00000000", "../../etc"):
        with pytest.raises(VersionNotFoundError, match=f"{url}: has no version '{name}'.*{written.name}"):
            store.open(name)


def test_a_version_that_was_collected_is_told_from_a_damaged_one(url: str, tmp_path: Path) -> None:
    written, store = write(url, tmp_path), VersionStore(url, cache=tmp_path / "reader")
    store.read(written.name)  # Its manifest is in the mirror now.
    for path in objects_in(url):
        ObjectStorage(url).delete(path)
    with pytest.raises(VersionNotFoundError, match=f"version {written.name} was collected while it was opened"):
        store.open(written.name)


def test_a_missing_bucket_is_named(moto_url: str, tmp_path: Path) -> None:
    store = VersionStore("s3://no-such-bucket/store", cache=tmp_path / "cache")
    with pytest.raises(StorageError, match="s3://no-such-bucket/store/versions: there is no such bucket"):
        store.open()
    with pytest.raises(StorageError, match="s3://no-such-bucket/store/versions: there is no such bucket"):
        store.write(small_content(tmp_path / "parts"))


def test_buckets_are_mirrored_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, url: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("RANKHOUSE_CACHE", raising=False)
    store = VersionStore(url)
    assert store.path.parent == default_cache() == tmp_path / "cache" / "rankhouse"
    assert store.path.name.startswith(url.split(":")[0] + "-")
    assert store.path != VersionStore(url + "x").path
    assert store.path == VersionStore(url + "/").path
    monkeypatch.setenv("RANKHOUSE_CACHE", str(tmp_path / "elsewhere"))
    assert VersionStore(url).path == tmp_path / "elsewhere" / store.path.name


def test_a_mirror_that_cannot_be_made_is_named(url: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = VersionStore(url, cache=tmp_path / "file")
    with pytest.raises(StorageError, match=r"cannot be made \(Not a directory\); set RANKHOUSE_CACHE"):
        store.write(small_content(tmp_path / "parts"))


def test_a_file_url_is_a_local_folder(tmp_path: Path) -> None:
    store = VersionStore(f"file://{tmp_path}/store")
    written = store.write(small_content(tmp_path / "parts"))
    assert store.path == tmp_path / "store"
    assert VersionStore(tmp_path / "store").open().name == written.name


def test_a_writer_may_be_killed_before_any_call(rclone_url: str, tmp_path: Path) -> None:
    """The process is gone at once, without any clean-up; its successor goes on in the same bucket and mirror."""
    versions = [write(rclone_url, tmp_path).name]
    command = [sys.executable, "-m", "tests.embedding_cache.format.killed_writer", rclone_url, tmp_path / "killed"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin
        assert writer.stdout
        for call in range(100):
            print(call, file=writer.stdin, flush=True)
            status = writer.stdout.readline().strip()
            store = VersionStore(rclone_url, cache=tmp_path / f"reader-{call}")
            found = store.names()
            is_new = len(found) > len(versions)
            assert found[: len(versions)] == versions
            assert rows_in(store.open())[0] == rows_of(11, 3, call if is_new else 0.0).tolist()
            if is_new:
                break
            assert status == "killed"
        writer.stdin.close()
    assert call >= 12, "a writer looks and writes that often before its manifest"
    # Each that died after it had claimed a number wasted it.
    assert int(found[-1][:6]) > 2


@pytest.mark.parametrize("server", ["memory", "rclone_url"])
def test_a_number_that_another_took_meanwhile_is_left_to_it(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str
) -> None:
    """The other is faster from the first look to the last byte."""
    url = "memory://meanwhile/store" if server == "memory" else request.getfixturevalue(server)
    put, others = ObjectStorage.write, []

    def claim_late(self: ObjectStorage, name: str, content: bytes) -> None:
        if not others:
            others.append("")
            others[0] = write(url, tmp_path, cache="other", first=100).name
        put(self, name, content)

    monkeypatch.setattr(ObjectStorage, "write", claim_late)
    written = write(url, tmp_path)
    assert (others[0][:6], written.name[:6]) == ("000001", "000002")
    assert VersionStore(url, cache=tmp_path / "reader").names() == [others[0], written.name]


def test_writers_take_turns(moto_url: str, tmp_path: Path) -> None:
    """Each looks for the next number at the same time as all others; the storage decides."""
    written: list[Version] = []

    def run(number: int) -> None:
        written.append(write(moto_url, tmp_path, cache=f"writer-{number}", first=100.0 * number))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    names = sorted(version.name for version in written)
    assert VersionStore(moto_url, cache=tmp_path / "reader").names() == names
    assert len({name[:6] for name in names}) == 4


def test_processes_share_a_mirror(rclone_url: str, tmp_path: Path) -> None:
    version = write(rclone_url, tmp_path)
    code = f"""
from rankhouse.embedding_cache.format.version import VersionStore
print(VersionStore({rclone_url!r}, cache={str(tmp_path / "shared")!r}).open().name)
"""
    command = [sys.executable, "-c", code]
    readers = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert [reader.communicate()[0].strip() for reader in readers] == [version.name] * 3
    assert not list((tmp_path / "shared").rglob(".tmp-*"))
