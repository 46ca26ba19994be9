from pathlib import Path

import pytest

from rankhouse.embedding_cache.format.errors import VersionNotFoundError
from rankhouse.embedding_cache.format.shared_files import shared_path
from rankhouse.embedding_cache.format.version import VersionStore
from rankhouse.embedding_cache.maintenance.verification import verify_versions
from tests.embedding_cache.format.small_store import small_content


@pytest.fixture
def store(tmp_path: Path) -> VersionStore:
    store = VersionStore(tmp_path / "store")
    for first in (0, 100, 200):
        store.write(small_content(tmp_path / "parts", first=first))
    return store


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_reads_each_shared_file_once(store: VersionStore) -> None:
    progress: list[tuple[int, int]] = []
    found = verify_versions(store, store.names(), on_bytes=lambda *bytes_: progress.append(bytes_))
    assert found.damages == ()
    assert list(found.sound) == store.names()
    files = [path for path in store.path.rglob("*") if path.is_file() and path.name != "manifest.json"]
    assert progress[-1] == (sum(path.stat().st_size for path in files),) * 2
    assert len(progress) == len([path for path in files if path.stat().st_size])


@pytest.mark.parametrize("num_threads", [1, 4])
def test_goes_on_after_the_first_that_is_damaged(store: VersionStore, num_threads: int) -> None:
    first, second, third = (store.open(name) for name in store.names())
    own, shared = (shared_path(store.path, first.tables[number].segments[0].sha256) for number in (0, 1))
    flip(own)
    (second.path / "golden.json").unlink()
    (third.path / "manifest.json").write_text("{}")
    found = verify_versions(store, store.names(), num_threads=num_threads)
    assert found.sound == {}
    assert {damage.versions: damage.reason.split(":")[0] for damage in found.damages} == {
        (third.name,): str(third.path / "manifest.json"),
        (first.name,): str(own),
        (second.name,): str(second.path / "golden.json"),
    }
    reasons = " ".join(damage.reason for damage in found.damages)
    for text in ("expected the format", "its content was altered: expected", "is missing; restore the file from"):
        assert text in reasons
    assert str(shared) not in reasons


def test_names_all_versions_that_need_a_damaged_file(store: VersionStore) -> None:
    shared = shared_path(store.path, store.open().tables[1].segments[0].sha256)
    shared.write_bytes(shared.read_bytes()[:-1])
    (damage,) = verify_versions(store, store.names()).damages
    assert damage.versions == tuple(store.names())
    assert damage.reason.startswith(f"{shared}: was truncated: expected")
    (damage,) = verify_versions(store, store.names()[1:]).damages
    assert damage.versions == tuple(store.names()[1:])


def test_refuses_a_version_that_is_not_there(store: VersionStore) -> None:
    with pytest.raises(VersionNotFoundError, match="there is no such version"):
        verify_versions(store, ["000009-00000000"])
