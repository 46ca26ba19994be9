"""Writers and collections that meet in a bucket, in many orders of their calls to it."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import pytest

from rankhouse.embedding_cache.format.bucket_claims import ANNOUNCED_SECONDS
from rankhouse.embedding_cache.format.errors import ContentError
from rankhouse.embedding_cache.format.object_storage import ObjectStorage
from rankhouse.embedding_cache.format.shared_files import shared_path
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.format.version_record import sequence_of
from rankhouse.embedding_cache.maintenance.collection import GRACE_SECONDS, collect_garbage
from rankhouse.embedding_cache.maintenance.publication import compact_version
from tests.embedding_cache.format.small_store import small_content
from tests.embedding_cache.maintenance.chain import effective, write_over, write_whole
from tests.embedding_cache.maintenance.turns import END, Killed, Phases, Turns, orders

# More than any actor here makes.
NUM_CALLS = 36


@pytest.fixture
def bucket(tmp_path: Path) -> Callable[[], str]:
    """Makes a bucket of two versions of two days ago; a third, of the older's rows, shares what the older will lose."""

    def make() -> str:
        url = f"memory://{uuid.uuid4().hex}/store"
        for first in (0, 100):
            write(url, tmp_path, "past", first)
        age(url)
        return url

    return make


def write(url: str, folder: Path, cache: str, first: float) -> Version:
    content = small_content(folder / "parts" / cache, first=first)
    return VersionStore(url, cache=folder / url[9:17] / cache).write(content)


def collect(url: str, folder: Path, grace_seconds: float) -> object:
    return collect_garbage(VersionStore(url, cache=folder / url[9:17] / "gc"), keep=1, grace_seconds=grace_seconds)


def age(url: str) -> None:
    files, root = fsspec.url_to_fs(url)
    for path in files.find(root):
        files.store[path].created -= timedelta(days=2)


def check_all_are_whole(url: str, folder: Path) -> list[str]:
    store = VersionStore(url, cache=folder / url[9:17] / "reader")
    names = store.names()
    for name in names:
        store.open(name)
    return names


def meet(
    url: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    phases: Phases,
    *,
    kill: tuple[str, int] | None = None,
) -> Turns:
    turns = Turns(phases, kill=kill)
    actors = {
        "writer": lambda: write(url, folder, "writer", 0),
        "collector": lambda: collect(url, folder, GRACE_SECONDS),
    }
    found = turns.run(actors, monkeypatch)
    assert [name for name in turns.errors if kill is None or name != kill[0]] == [], (phases, kill, turns.errors)
    assert kill is not None or max(turns.num_calls.values()) < NUM_CALLS
    names = check_all_are_whole(url, folder)
    written: Any = found.get("writer")
    assert written is None or written.name in names, phases
    return turns


def test_what_a_writer_names_is_not_collected(
    bucket: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for phases in orders("writer", "collector", num_calls=NUM_CALLS, num_random=20):
        meet(bucket(), tmp_path, monkeypatch, phases)


def test_without_a_grace_a_writer_may_fail_but_no_version_is_broken(
    bucket: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of a writer that is at work are taken for a dead one's and go, perhaps while it looks at them."""
    for call in range(2, NUM_CALLS, 2):
        turns = Turns([("writer", call), ("collector", END)])
        url = bucket()
        actors: dict[str, Any] = {
            "writer": lambda url=url: write(url, tmp_path, "writer", 0),
            "collector": lambda url=url: collect(url, tmp_path, 0),
        }
        found = turns.run(actors, monkeypatch)
        assert "collector" in found, turns.errors
        assert "writer" in found or "the storage has nothing; write the version again" in str(turns.errors["writer"])
        names = check_all_are_whole(url, tmp_path)
        written: Any = found.get("writer")
        assert written is None or written.name in names


@pytest.mark.parametrize("dying", ["writer", "collector"])
def test_either_may_be_killed_before_any_call(
    bucket: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dying: str
) -> None:
    other = {"writer": "collector", "collector": "writer"}[dying]
    num_killed = 0
    for call in range(NUM_CALLS):
        url = bucket()
        turns = meet(url, tmp_path, monkeypatch, [(dying, call), (other, END)], kill=(dying, call))
        if dying not in turns.errors:
            break  # It was at its end before.
        num_killed += isinstance(turns.errors[dying], Killed)
        # Those that come later are not held up, and what the dead one left goes.
        write(url, tmp_path, "later", 200)
        age(url)
        collect(url, tmp_path, GRACE_SECONDS)
        (left,) = check_all_are_whole(url, tmp_path)
        version = VersionStore(url, cache=tmp_path / url[9:17] / "reader").read(left)
        found = {name for folder in ("segments", "versions") for name in in_folder(url, folder)}
        tombs = {name for name in found if name.endswith("/manifest.json") and left not in name}
        assert found - tombs == {f"versions/{left}/manifest.json", *version.files()}
        assert len(tombs) <= 1
    assert num_killed == call > 10


def in_folder(url: str, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in ObjectStorage(url).listing(folder)]


def test_a_dead_collection_holds_a_writer_up_for_a_while_only(
    bucket: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket()
    oldest = VersionStore(url, cache=tmp_path / "reader").read(VersionStore(url, cache=tmp_path / "reader").names()[0])
    shared = str(shared_path(Path(), oldest.tables[0].segments[0].sha256))
    for name in ("dead", "dead-as-well"):
        ObjectStorage(url).write(f"versions/.collection-{name}", shared.encode())
    ObjectStorage(url).write("versions/.collection-another", b"segments/0.safetensors")
    turns = Turns([])
    turns.run({"writer": lambda: write(url, tmp_path, "writer", 0)}, monkeypatch)
    assert not turns.errors
    assert ANNOUNCED_SECONDS <= turns.now < ANNOUNCED_SECONDS + 60, "several dead ones hold it up no longer than one"
    turns = Turns([])
    turns.run({"writer": lambda: write(url, tmp_path, "writer", 300)}, monkeypatch)
    assert turns.now < 1, "its files are none of those that go"


def test_a_writer_that_was_taken_for_dead_claims_another_number(
    bucket: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket()
    create = ObjectStorage.create

    def give_up_first(self: ObjectStorage, name: str, content: bytes) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(ObjectStorage, "create", create)
            if name.startswith("versions/000003-"):
                collect(url, tmp_path, 0)
        return create(self, name, content)

    monkeypatch.setattr(ObjectStorage, "create", give_up_first)
    written = write(url, tmp_path, "writer", 0)
    assert sequence_of(written.name) == 4
    assert check_all_are_whole(url, tmp_path)[-1] == written.name


def test_no_two_versions_have_one_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing is created exclusively."""

    def create(self: ObjectStorage, name: str, content: bytes) -> bool:
        ObjectStorage.write(self, name, content)
        return True

    monkeypatch.setattr(ObjectStorage, "create", create)
    for phases in orders("one", "two", num_calls=24, num_random=10, step=2):
        url = f"memory://{uuid.uuid4().hex}/store"
        turns = Turns(phases)
        actors: dict[str, Any] = {
            "one": lambda url=url: write(url, tmp_path, "one", 0),
            "two": lambda url=url: write(url, tmp_path, "two", 100),
        }
        turns.run(actors, monkeypatch)
        assert not turns.errors, phases
        assert len({sequence_of(name) for name in check_all_are_whole(url, tmp_path)}) == 2, phases


def test_a_compaction_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A delta that claimed its number before and appears after is not the older of the two."""
    refused = 0
    for phases in orders("delta", "compaction", num_calls=NUM_CALLS, num_random=6, step=2):
        url = f"memory://{uuid.uuid4().hex}/store"
        store, other = (VersionStore(url, cache=tmp_path / url[9:17] / cache) for cache in ("one", "other"))
        parent = write_over(store, tmp_path / "parts", write_whole(store, tmp_path / "parts"), {"C1": ([1], [])})
        other.open()
        turns = Turns(phases)
        actors: dict[str, Any] = {
            "delta": lambda store=store, parent=parent: write_over(
                store, tmp_path / "parts", parent, {"C1": ([2], [])}, first=500
            ),
            "compaction": lambda other=other: compact_version(other),
        }
        found = turns.run(actors, monkeypatch)
        assert "delta" in found, (phases, turns.errors)
        error = turns.errors.get("compaction")
        assert error is None or (isinstance(error, ContentError) and "is not the newest version" in str(error))
        refused += error is not None
        latest = VersionStore(url, cache=tmp_path / url[9:17] / "reader").open()
        assert effective(latest) == effective(found["delta"]), phases  # type: ignore[arg-type]
    assert refused > 0


def test_a_compaction_does_not_wait_for_a_dead_writer_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid.uuid4().hex}/store"
    store = VersionStore(url, cache=tmp_path / "cache")
    whole = write_whole(store, tmp_path / "parts")
    over = write_over(store, tmp_path / "parts", whole, {"C1": ([1], [])})
    ObjectStorage(url).write("versions/.000003-0123abcd", b"")
    turns = Turns([])
    turns.run({"compaction": lambda: compact_version(store)}, monkeypatch)
    assert "000003-0123abcd: its writer began before and has not finished" in str(turns.errors["compaction"])
    assert store.names() == [whole.name, over.name]
    collect_garbage(store, keep=9, grace_seconds=0)
    assert sequence_of(compact_version(store).name) == 4
