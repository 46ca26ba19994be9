"""What a look at a store finds; time is given, so nothing here waits."""

import shutil
from pathlib import Path

import pytest

from rankhouse.embedding_cache.format.errors import VersionNotFoundError
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.format.version_record import sequence_of
from rankhouse.serving.refresh.watcher import Suspicions, View, Waiting, Watcher, signature_of
from tests.serving.small_version import MODEL, write_delta, write_version


class Looks:
    """A watcher of a store whose suspicions settle in 2 seconds."""

    def __init__(self, store: Path, model: str = MODEL) -> None:
        self.watcher = Watcher(VersionStore(store), model, Suspicions(settle_seconds=2.0))

    def look(self, now: float, *, above: int = 0, skipped: tuple[str, ...] = ()) -> View:
        return self.watcher.look(above=above, skipped=skipped, now=now)


def newest(view: View) -> str | None:
    return view.newest.name if view.newest else None


@pytest.fixture
def versions(tmp_path: Path) -> list[Version]:
    """A whole version and two deltas, in the store `tmp_path`."""
    whole = write_version(tmp_path, seed=1)
    delta = write_delta(tmp_path, whole, seed=2)
    return [whole, delta, write_delta(tmp_path, delta, seed=3)]


def test_the_newest_complete_version_is_found(tmp_path: Path, versions: list[Version]) -> None:
    names, looks = [version.name for version in versions], Looks(tmp_path)
    assert newest(looks.look(0.0)) == names[2]
    assert newest(looks.look(0.0, skipped=(names[2],))) == names[1]
    assert newest(looks.look(0.0, above=sequence_of(names[1]), skipped=(names[2],))) is None
    assert looks.look(0.0).names == tuple(names)


def test_what_was_seen_is_not_read_again(tmp_path: Path, versions: list[Version]) -> None:
    looks = Looks(tmp_path)
    first = looks.look(0.0).newest
    assert looks.look(1.0).newest is first
    looks.watcher.forget(versions[2].name)
    assert looks.look(2.0).newest is not first


def test_versions_of_other_models_are_passed_over(tmp_path: Path, versions: list[Version]) -> None:
    assert newest(Looks(tmp_path, "other").look(0.0)) is None


def test_a_missing_file_is_waited_for_ever_more_seldom(tmp_path: Path, versions: list[Version]) -> None:
    looks, file = Looks(tmp_path), versions[2].dense_path
    content = file.read_bytes()
    file.write_bytes(content[:-1])  # It is still being copied.
    view = looks.look(100.0)
    assert newest(view) == versions[1].name
    waits = view.waiting[versions[2].name]
    assert waits.since == 100.0
    assert waits.reason.endswith(f"first versions/{versions[2].name}/dense.onnx")
    file.write_bytes(content)
    assert newest(looks.look(100.4)) == versions[1].name, "not before its time"
    view = looks.look(100.6)
    assert newest(view) == versions[2].name
    assert view.waiting == {}


@pytest.mark.parametrize(("waited", "pause"), [(0.0, 0.5), (10.0, 5.0), (1000.0, 30.0)])
def test_the_pause_grows_with_the_wait(waited: float, pause: float) -> None:
    assert Waiting("", since=50.0).next_look(50.0 + waited) == 50.0 + waited + pause


def test_news_make_it_look_at_once(tmp_path: Path, versions: list[Version]) -> None:
    looks, file = Looks(tmp_path), versions[2].dense_path
    content = file.read_bytes()
    file.unlink()
    looks.look(100.0)
    file.write_bytes(content)
    looks.look(100.1)
    write_version(tmp_path, seed=4)
    assert newest(looks.look(100.2, skipped=(VersionStore(tmp_path).names()[-1],))) == versions[2].name


def test_a_missing_parent_is_named(tmp_path: Path, versions: list[Version]) -> None:
    shutil.rmtree(versions[1].path)
    looks = Looks(tmp_path)
    assert newest(looks.look(0.0)) == versions[2].name, "its files are all there: parents may be collected"
    looks.watcher.forget(versions[2].name)
    for table in versions[2].tables:
        (tmp_path / "segments" / f"{table.deltas[0].sha256}.safetensors").unlink()
    view = looks.look(1.0)
    assert newest(view) == versions[0].name
    num_files = len(versions[2].files())
    reason = view.waiting[versions[2].name].reason
    assert reason.startswith(f"its parent {versions[1].name} and {len(versions[2].tables)} of its {num_files} files")


def test_a_manifest_that_cannot_be_read_is_looked_at_twice(tmp_path: Path, versions: list[Version]) -> None:
    looks, manifest = Looks(tmp_path), versions[2].path / "manifest.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(whole[:100])
    view = looks.look(100.0)
    assert view.damaged == {}
    assert view.waiting[versions[2].name].reason.startswith("a readable manifest: ")
    manifest.write_bytes(whole[:200])  # It grows.
    assert looks.look(103.0).damaged == {}
    view = looks.look(106.0)
    assert "manifest.json" in view.damaged[versions[2].name]
    assert newest(view) == versions[1].name
    assert view.waiting == {}


def test_a_version_that_goes_is_forgotten(tmp_path: Path, versions: list[Version]) -> None:
    looks = Looks(tmp_path)
    looks.look(0.0)
    shutil.rmtree(versions[2].path)
    assert newest(looks.look(0.1)) == versions[1].name


def test_a_store_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(VersionNotFoundError, match="no such version store"):
        Looks(tmp_path / "nowhere").look(0.0)


def test_suspicions_need_the_same_bytes(tmp_path: Path, versions: list[Version]) -> None:
    store, suspicions = VersionStore(tmp_path), Suspicions(settle_seconds=2.0)
    name = versions[0].name

    def looks_wrong(now: float) -> bool:
        return suspicions.is_confirmed(name, signature_of(store, name, versions[0].files()), now=now)

    assert [looks_wrong(now) for now in (0.0, 1.9, 2.0)] == [False, False, True]
    segment = tmp_path / next(path for path in versions[0].files() if path.startswith("segments/"))
    segment.write_bytes(segment.read_bytes())
    assert not looks_wrong(3.0), "another write, even of the same bytes"
    suspicions.clear(name)
    assert [looks_wrong(now) for now in (4.0, 6.0)] == [False, True]
