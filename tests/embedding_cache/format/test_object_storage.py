"""Objects by name: what each kind of storage holds, and what it says when it does not."""

import errno
import hashlib
import threading
import uuid
from pathlib import Path

import fsspec
import pytest

from rankhouse.embedding_cache.format.errors import CorruptFileError, StorageError
from rankhouse.embedding_cache.format.files import FileRecord
from rankhouse.embedding_cache.format.object_storage import ObjectStorage
from tests.object_servers import unreliable


def record_of(content: bytes) -> FileRecord:
    return FileRecord(bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def put(objects: ObjectStorage, name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(content)
    objects.put(name, tmp_path / "source")


def forget_clients() -> None:
    """Clients are shared, and read the environment once."""
    fsspec.get_filesystem_class("s3").clear_instance_cache()


@pytest.mark.parametrize("size", [0, 1, 20 << 20])
def test_what_is_put_is_fetched(url: str, tmp_path: Path, size: int) -> None:
    objects, content = ObjectStorage(url), bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    put(objects, "segments/a", content, tmp_path)
    assert objects.size("segments/a") == size
    assert {name: found.bytes for name, found in objects.listing("segments").items()} == {"a": size}
    objects.fetch("segments/a", tmp_path / "new" / "folder" / "a", record_of(content))
    assert (tmp_path / "new" / "folder" / "a").read_bytes() == content
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["a"]


def test_what_is_not_there_is_none(url: str, tmp_path: Path) -> None:
    objects = ObjectStorage(url)
    assert objects.size("a") is None
    assert objects.read("a") is None
    assert objects.listing("folder") == {}
    objects.delete("a")
    put(objects, "folder/a", b"1", tmp_path)
    objects.delete("folder/a")
    assert objects.listing("folder") == {}


def test_an_object_is_created_once(moto_url: str) -> None:
    objects = ObjectStorage(moto_url)
    assert objects.create("claim", b"first")
    assert not objects.create("claim", b"second")
    assert objects.create("claim", b"first"), "the answer to the first attempt may have been lost"
    assert objects.read("claim") == b"first"


def test_a_server_need_not_say_which_condition_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """s3fs gives FileExistsError only where it does; not all servers do."""
    objects = ObjectStorage(f"memory://{uuid.uuid4().hex}/store")
    assert objects.create("claim", b"first")

    def refuse(*arguments: object, **keywords: object) -> None:
        raise OSError(errno.EINVAL, "PreconditionFailed")

    monkeypatch.setattr(fsspec.get_filesystem_class("memory"), "pipe_file", refuse)
    assert objects.create("claim", b"first")
    assert not objects.create("claim", b"second")
    with pytest.raises(StorageError, match="PreconditionFailed"):
        objects.create("another", b"first")


def test_one_of_many_creates(moto_url: str) -> None:
    won: list[int] = []
    barrier = threading.Barrier(4)

    def create(number: int) -> None:
        objects = ObjectStorage(moto_url)
        objects.size("claim")  # Connects.
        barrier.wait(60)
        if objects.create("claim", str(number).encode()):
            won.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert ObjectStorage(moto_url).read("claim") == str(won[0]).encode()


def test_without_exclusive_creation_the_last_has_it(rclone_url: str) -> None:
    objects = ObjectStorage(rclone_url)
    assert objects.create("claim", b"first")
    assert objects.create("claim", b"second")
    assert objects.read("claim") == b"second"


def test_altered_truncated_and_missing_objects_are_named(url: str, tmp_path: Path) -> None:
    objects, record = ObjectStorage(url), record_of(b"right")
    with pytest.raises(CorruptFileError, match=f"{url}/segments/a: is missing"):
        objects.fetch("segments/a", tmp_path / "a", record)
    put(objects, "segments/a", b"wrong", tmp_path)
    with pytest.raises(CorruptFileError, match=f"{url}/segments/a: its content was altered: expected SHA-256"):
        objects.fetch("segments/a", tmp_path / "a", record)
    put(objects, "segments/a", b"ri", tmp_path)
    with pytest.raises(CorruptFileError, match=f"{url}/segments/a: was truncated: expected 5 bytes, found 2"):
        objects.fetch("segments/a", tmp_path / "a", record)
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["source"]


def test_an_upload_that_is_cut_short_is_named(tmp_path: Path) -> None:
    class ShortFiles(fsspec.get_filesystem_class("memory")):  # type: ignore[misc]
        protocol = "short"

        def put_file(self, lpath: str, rpath: str, **options: object) -> None:
            self.pipe_file(rpath, Path(lpath).read_bytes()[:-1])

    fsspec.register_implementation("short", ShortFiles, clobber=True)
    with pytest.raises(StorageError, match=r"short://x/a: was truncated .* 5 bytes were sent, the storage has 4"):
        put(ObjectStorage("short://x"), "a", b"12345", tmp_path)


@pytest.mark.parametrize("server", ["rclone_url", "moto_url"])
def test_a_missing_bucket_is_named(request: pytest.FixtureRequest, tmp_path: Path, server: str) -> None:
    request.getfixturevalue(server)
    objects = ObjectStorage("s3://no-such-bucket/store")
    for call in (
        lambda: objects.listing("versions"),
        lambda: objects.size("a"),
        lambda: objects.read("a"),
        lambda: objects.create("a", b"1"),
        lambda: put(objects, "a", b"1", tmp_path),
    ):
        with pytest.raises(StorageError, match=r"s3://no-such-bucket/store/\S+: there is no such bucket .* create it"):
            call()


def test_missing_credentials_are_named(rclone_url: str, s3_environment: pytest.MonkeyPatch) -> None:
    s3_environment.delenv("AWS_ACCESS_KEY_ID")
    s3_environment.delenv("AWS_SECRET_ACCESS_KEY")
    forget_clients()
    with pytest.raises(StorageError, match=f"{rclone_url}/a: there are no credentials .* set AWS_ACCESS_KEY_ID"):
        ObjectStorage(rclone_url).read("a")


def test_wrong_credentials_are_named(rclone_url: str, s3_environment: pytest.MonkeyPatch) -> None:
    s3_environment.setenv("AWS_ACCESS_KEY_ID", "SOMEBODYELSE")
    forget_clients()
    with pytest.raises(StorageError, match=f"{rclone_url}/versions: access was denied"):
        ObjectStorage(rclone_url).listing("versions")


def test_a_server_that_is_away_is_given_up(rclone_url: str, s3_environment: pytest.MonkeyPatch) -> None:
    s3_environment.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    forget_clients()
    with pytest.raises(StorageError, match=f"{rclone_url}/a: the storage did not answer .* further attempts"):
        ObjectStorage(rclone_url).read("a")


def test_lost_connections_are_made_again(
    moto_url: str, s3_environment: pytest.MonkeyPatch, moto_address: str, tmp_path: Path
) -> None:
    content = b"0123456789" * 1_000_000
    with unreliable(moto_address, breaks=lambda number: number % 2 == 0) as address:
        s3_environment.setenv("AWS_ENDPOINT_URL", address)
        forget_clients()
        objects = ObjectStorage(moto_url)
        # The first attempt succeeded, but its answer was lost.
        assert objects.create("claim", b"mine")
        put(objects, "a", content, tmp_path)
        objects.fetch("a", tmp_path / "a", record_of(content))
    assert (tmp_path / "a").read_bytes() == content


def test_urls_of_no_storage_are_refused() -> None:
    with pytest.raises(StorageError, match="nowhere://x: is not a storage's URL: Protocol not known: nowhere"):
        ObjectStorage("nowhere://x").read("a")


def test_a_missing_package_is_named() -> None:
    fsspec.register_implementation("absent", "no_such_package.Files", errtxt="Install no_such_package", clobber=True)
    with pytest.raises(StorageError, match=r"absent://x: its storage needs a package .* no_such_package"):
        ObjectStorage("absent://x").read("a")


def test_a_file_that_cannot_be_written_is_named(moto_url: str, tmp_path: Path) -> None:
    objects = ObjectStorage(moto_url)
    put(objects, "a", b"1", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file/a: cannot be written \(File exists\); .* another folder"):
        objects.fetch("a", tmp_path / "file" / "a", record_of(b"1"))
