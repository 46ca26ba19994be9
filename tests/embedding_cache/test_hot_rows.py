"""What is hot is learnt from lookups, kept in a folder, and in memory before the next engine's version is open."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rankhouse.embedding_cache.engine import Engine
from rankhouse.embedding_cache.errors import OptionError
from rankhouse.embedding_cache.format.errors import CorruptFileError
from rankhouse.embedding_cache.format.tensors import read_tensors
from rankhouse.embedding_cache.format.version import Version, VersionStore
from tests.embedding_cache.random_store import FEATURES, write_random, write_random_delta

WARMED = "rankhouse_embedding_warmed_rows_total"


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Version:
    folder = tmp_path_factory.mktemp("hot")
    return write_random(VersionStore(folder / "store"), folder / "parts")


def look_up(engine: Engine, version: Version, *, num_calls: int = 200, num_samples: int = 2000) -> None:
    """Looks up ids that follow Zipf's law in all features: id i of a table comes with frequency 1 / (i + 1)^1.2."""
    random = np.random.default_rng(0)
    num_rows = {table.name: table.num_rows for table in version.tables}
    lengths_FB = np.ones((len(version.features), num_samples), np.int32)
    with engine.open(version.store, version.name) as served:
        for _ in range(num_calls):
            ids = [(random.zipf(1.2, num_samples) - 1) % num_rows[feature.table] for feature in version.features]
            served.lookup(np.concatenate(ids), lengths_FB)


def kept(folder: Path, version: Version) -> dict[str, NDArray[Any]]:
    return read_tensors(folder / f"{version.model}.hot_rows.safetensors")


def test_the_hot_ids_of_a_stream_are_kept(version: Version, tmp_path: Path) -> None:
    engine = Engine(hot_rows=str(tmp_path / "hot"))
    look_up(engine, version)
    del engine
    for table in version.tables:
        ids, counts = (kept(tmp_path / "hot", version)[f"{table.name}/{part}"] for part in ("ids", "counts"))
        assert set(range(4)) <= set(ids[:8].tolist())
        assert (np.diff(counts) <= 0).all()
        share = sum(feature[1] == table.name for feature in FEATURES) * 200 * 2000
        assert 0.5 < counts.sum() * 256 / share < 2  # one id in 256 is looked at


@pytest.mark.parametrize("memory", ["map", "pin"])
def test_a_new_engine_has_them_in_memory_before_its_version_is_open(
    version: Version, tmp_path: Path, memory: str
) -> None:
    engine = Engine(hot_rows=str(tmp_path))
    assert engine.stats()[WARMED] == 0
    look_up(engine, version)
    assert engine.stats()[WARMED] == 0
    del engine
    num_hot = sum(len(ids) for name, ids in kept(tmp_path, version).items() if name.endswith("/ids"))
    warmed = Engine(hot_rows=str(tmp_path), memory=memory)
    served = warmed.open(version.store, version.name)
    assert warmed.stats()[WARMED] == num_hot > 0
    assert warmed.stats()["rankhouse_embedding_hot_rows_failed_total"] == 0
    ids = np.arange(50)
    assert served.gather("A", ids).tobytes() == version.rows("A", ids).tobytes()


def test_a_delta_of_an_open_version_warms_its_own_rows_alone(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "store")
    parent = write_random(store, tmp_path / "parts")
    delta = write_random_delta(store, tmp_path / "parts", parent, seed=1)
    engine = Engine(hot_rows=str(tmp_path / "hot"))
    look_up(engine, parent)
    open_parent = engine.open(parent.store, parent.name)
    before = engine.stats()[WARMED]
    open_delta = engine.open(delta.store, delta.name)
    own = engine.stats()[WARMED] - before
    changed = sum(record.num_rows for table in delta.tables for record in table.deltas)
    assert 0 < own <= changed
    assert (open_parent.name, open_delta.name) == (parent.name, delta.name)


def test_ids_that_are_no_rows_are_passed_over(version: Version, tmp_path: Path) -> None:
    engine = Engine(hot_rows=str(tmp_path), out_of_range="zero")
    with engine.open(version.store, version.name) as served:
        for _ in range(40):
            served.gather("A", np.repeat([-1, 10**9, 2**62], 500))
    del engine
    assert sorted(kept(tmp_path, version)["A/ids"].tolist()) == [-1, 10**9, 2**62]
    engine = Engine(hot_rows=str(tmp_path))
    engine.open(version.store, version.name).close()
    assert engine.stats()[WARMED] == 0


def test_a_damaged_file_is_refused(version: Version, tmp_path: Path) -> None:
    (tmp_path / "model.hot_rows.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0not JSON")
    with pytest.raises(
        CorruptFileError, match=r"model\.hot_rows\.safetensors.*or remove it: what is hot is learnt anew"
    ):
        Engine(hot_rows=str(tmp_path))


def test_impossible_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="'hot_rows' is empty: expected a folder"):
        Engine(hot_rows="")
    with pytest.raises(OptionError, match="hot_rows"):
        Engine(hot_row="/tmp")
    (tmp_path / "file").write_text("")
    with pytest.raises(OptionError, match=r"reading the folder .*file of hot rows failed: Not a directory"):
        Engine(hot_rows=str(tmp_path / "file"))


def test_a_disk_that_refuses_does_not_stop_serving(version: Version, tmp_path: Path) -> None:
    engine = Engine(hot_rows=str(tmp_path / "hot"))
    (tmp_path / "hot").write_text("a file where the folder would be")
    look_up(engine, version, num_calls=2)
    del engine
    assert (tmp_path / "hot").read_text() == "a file where the folder would be"
