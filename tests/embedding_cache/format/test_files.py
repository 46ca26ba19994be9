import hashlib
import json
from pathlib import Path

import pytest

from rankhouse.embedding_cache.format.errors import ContentError, CorruptFileError, ManifestError, StorageError
from rankhouse.embedding_cache.format.files import (
    FileRecord,
    Manifest,
    commit_manifest,
    copy_file,
    file_record,
    read_manifest,
)


def commit(directory: Path) -> Manifest:
    (directory / "shards").mkdir(parents=True)
    (directory / "a.bin").write_bytes(b"hello")
    (directory / "shards/b.bin").write_bytes(bytes(3_000_000))
    files = {name: file_record(directory / name) for name in ("a.bin", "shards/b.bin")}
    return commit_manifest(directory, kind="thing", document={"step": 7}, files=files)


def edit(directory: Path, **changes: object) -> None:
    path = directory / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_file_record_is_size_and_sha256(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert file_record(tmp_path / "a") == FileRecord(bytes=3, sha256=hashlib.sha256(b"abc").hexdigest())


def test_reads_back_what_was_committed(tmp_path: Path) -> None:
    written = commit(tmp_path / "x")
    assert written == read_manifest(tmp_path / "x", kind="thing")
    assert written.document == {"step": 7}
    assert written.sha256 == file_record(tmp_path / "x/manifest.json").sha256
    assert sorted(path.name for path in (tmp_path / "x").iterdir()) == ["a.bin", "manifest.json", "shards"]


def test_refuses_a_folder_without_manifest(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"json: not found: it was never completed; write the thing again"):
        read_manifest(tmp_path, kind="thing")
    with pytest.raises(ManifestError, match="there is no such folder"):
        read_manifest(tmp_path / "nowhere", kind="thing")


@pytest.mark.parametrize("verify", [True, False])
def test_refuses_a_missing_or_truncated_file(tmp_path: Path, verify: bool) -> None:
    commit(tmp_path / "x")
    with open(tmp_path / "x/shards/b.bin", "r+b") as file:
        file.truncate(10)
    with pytest.raises(CorruptFileError, match=r"shards/b\.bin: was truncated: expected 3000000 bytes, found 10"):
        read_manifest(tmp_path / "x", kind="thing", verify=verify)
    (tmp_path / "x/shards/b.bin").unlink()
    with pytest.raises(CorruptFileError, match=r"shards/b\.bin: is missing; restore"):
        read_manifest(tmp_path / "x", kind="thing", verify=verify)


def test_refuses_a_flipped_bit_when_verifying(tmp_path: Path) -> None:
    commit(tmp_path / "x")
    with open(tmp_path / "x/shards/b.bin", "r+b") as file:
        file.seek(2_000_000)
        file.write(b"\x01")
    with pytest.raises(CorruptFileError, match=r"shards/b\.bin: its content was altered: .* restore"):
        read_manifest(tmp_path / "x", kind="thing")
    assert read_manifest(tmp_path / "x", kind="thing", verify=False).document == {"step": 7}


@pytest.mark.parametrize("name", ["../a", "/etc/passwd", "a/../../b", "", ".", "a//b", "a\\b", "a\n", "manifest.json"])
def test_refuses_names_that_leave_the_folder(tmp_path: Path, name: str) -> None:
    record = FileRecord(bytes=0, sha256="0" * 64)
    with pytest.raises(ContentError, match="cannot hold a file named"):
        commit_manifest(tmp_path, kind="thing", document={}, files={name: record})
    commit(tmp_path / "x")
    edit(tmp_path / "x", files={name: {"bytes": 0, "sha256": "0" * 64}})
    with pytest.raises(ManifestError, match="which is refused"):
        read_manifest(tmp_path / "x", kind="thing")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "rankhouse.other"}, "expected the format 'rankhouse.thing', found 'rankhouse.other'"),
        ({"format_version": 2}, "has format_version 2, this release reads up to 1; use a newer Rankhouse"),
        ({"format_version": "1"}, "expected a format_version of 1 or more, found '1'"),
        ({"files": []}, "expected an object under 'files', found list"),
        ({"files": {"a": {"bytes": 1}}}, "expected {'bytes', 'sha256'} for the file 'a'"),
        ({"files": {"a": {"bytes": -1, "sha256": "0" * 64}}}, "impossible size or SHA-256"),
        ({"files": {"a": {"bytes": 1, "sha256": "XYZ"}}}, "impossible size or SHA-256"),
    ],
)
def test_refuses_an_impossible_manifest(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    commit(tmp_path / "x")
    edit(tmp_path / "x", **changes)
    with pytest.raises(ManifestError, match=message):
        read_manifest(tmp_path / "x", kind="thing")


@pytest.mark.parametrize("text", ['{"format": ', '{"a": NaN}', '{"a": 1, "a": 2}', "[]", "\udcff", "[" * 100_000])
def test_refuses_a_manifest_that_is_not_strict_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "manifest.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ManifestError, match=r"manifest\.json: (is not valid JSON|expected a JSON object)"):
        read_manifest(tmp_path, kind="thing")


@pytest.mark.parametrize("document", [{"files": 1}, {"format": "x"}, {"x": float("nan")}, {"x": object()}])
def test_refuses_to_commit_a_document_that_cannot_be_read_back(tmp_path: Path, document: dict[str, object]) -> None:
    with pytest.raises(ContentError, match="document"):
        commit_manifest(tmp_path, kind="thing", document=document, files={})
    assert not list(tmp_path.iterdir())


def test_refuses_to_commit_a_file_that_is_not_as_recorded(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    for name, match in (("a", "was truncated"), ("b", "is missing")):
        with pytest.raises(CorruptFileError, match=match):
            commit_manifest(tmp_path, kind="t", document={}, files={name: FileRecord(bytes=5, sha256="0" * 64)})
    assert not (tmp_path / "manifest.json").exists()


def test_a_copy_names_what_failed(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    with pytest.raises(StorageError, match=r"/dev/full: cannot be written \(No space left on device\); free space"):
        copy_file(tmp_path / "a", "/dev/full")
    with pytest.raises(CorruptFileError, match=r"b: cannot be read \(No such file or directory\)"):
        copy_file(tmp_path / "b", tmp_path / "c")
