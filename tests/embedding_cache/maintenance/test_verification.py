import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rankhouse.embedding_cache.format.errors import CorruptFileError, FormatError, VersionNotFoundError
from rankhouse.embedding_cache.format.shared_files import shared_path
from rankhouse.embedding_cache.format.version import VersionStore
from rankhouse.embedding_cache.maintenance.collection import collect_garbage
from rankhouse.embedding_cache.maintenance.verification import verify_versions
from tests.embedding_cache.format.small_store import small_content
from tests.embedding_cache.maintenance.chain import write_chain


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
    with pytest.raises(VersionNotFoundError, match="has no version '000009-00000000'"):
        verify_versions(store, ["000009-00000000"])


def test_what_is_collected_meanwhile_is_not_damaged(store: VersionStore) -> None:
    names = store.names()

    def collect(done: int, total: int) -> None:
        if store.names() == names:
            collect_garbage(store, keep=1)

    found = verify_versions(store, names, num_threads=1, on_bytes=collect)
    assert (list(found.sound), found.damages, found.collected) == (names[2:], (), frozenset(names[:2]))


def files_of(store: VersionStore) -> list[Path]:
    return sorted(path for path in store.path.glob("*/**/*") if path.is_file())


def truncate(content: bytes) -> bytes:
    return content[: len(content) // 2]


def empty(content: bytes) -> bytes:
    return b""


def lengthen(content: bytes) -> bytes:
    return content + b"\0"


def flip_first(content: bytes) -> bytes:
    return bytes([content[0] ^ 1]) + content[1:]


def flip_middle(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0x80]) + content[middle + 1 :]


def flip_last(content: bytes) -> bytes:
    return content[:-1] + bytes([content[-1] ^ 1])


def zero(content: bytes) -> bytes:
    return bytes(len(content))


@pytest.mark.parametrize("damage", [truncate, empty, lengthen, flip_first, flip_middle, flip_last, zero, None])
def test_any_damage_to_any_file_is_found_by_name_and_refused(
    tmp_path: Path, damage: Callable[[bytes], bytes] | None
) -> None:
    store = VersionStore(tmp_path / "store", segment_bytes=64)
    versions = write_chain(store, tmp_path / "parts", dtype="int8")
    users = {
        path: [version.name for version in versions if str(path.relative_to(store.path)) in version.files()]
        for path in files_of(store)
    }
    for path in users:
        if path.name == "manifest.json":
            users[path] = [path.parent.name]
        content = path.read_bytes()
        path.unlink() if damage is None else path.write_bytes(damage(content))
        found = verify_versions(store, [version.name for version in versions if version.name in store.names()])
        is_lost = damage is None and path.name == "manifest.json"  # Then the version does not exist.
        assert [damaged.versions for damaged in found.damages] == ([] if is_lost else [tuple(users[path])]), path
        assert all(str(path) in damaged.reason for damaged in found.damages)
        for version in versions:
            if version.name in users[path]:
                with pytest.raises((FormatError, VersionNotFoundError), match=version.name if is_lost else path.name):
                    store.open(version.name)
            else:
                store.open(version.name)
        path.write_bytes(content)
    assert verify_versions(store, store.names()).damages == ()


def test_files_that_stand_in_for_each_other_are_found(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "store")
    *_, last = write_chain(store, tmp_path / "parts")
    paths = [shared_path(store.path, delta.sha256) for delta in last.tables[0].deltas]
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, reversed(contents), strict=True):
        path.write_bytes(content)
    found = verify_versions(store, store.names())
    assert [damage.reason.split(":")[0] for damage in found.damages] == [str(path) for path in paths]
    with pytest.raises(CorruptFileError, match=paths[0].name):
        store.open(last.name)


def test_a_version_that_does_not_continue_its_parent_is_found(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "store")
    _, second, third = write_chain(store, tmp_path / "parts")
    document = json.loads((third.path / "manifest.json").read_text())
    document["tables"][0]["deltas"].reverse()
    content = json.dumps(document).encode()
    (third.path / "manifest.json").write_bytes(content)
    name = f"000003-{hashlib.sha256(content).hexdigest()[:8]}"
    third.path.rename(third.path.with_name(name))
    (damage,) = verify_versions(store, store.names()).damages
    assert damage.versions == (name,)
    assert f"{name}/manifest.json: does not continue its parent {second.name}: table 'C1'" in damage.reason
