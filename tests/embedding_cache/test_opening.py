"""Versions that are opened beside others: what lookups in them find, and what opening leaves behind."""

import os
from pathlib import Path

import numpy as np
import pytest

from rankhouse.embedding_cache.engine import Engine
from rankhouse.embedding_cache.format.errors import CorruptFileError
from rankhouse.embedding_cache.format.records import TableDelta
from rankhouse.embedding_cache.format.shared_files import shared_path
from rankhouse.embedding_cache.format.version import Version, VersionStore
from tests.embedding_cache.format.small_store import small_delta
from tests.embedding_cache.random_store import write_random

# Far more rows than the deltas change: what tells most ids of an index apart is folded over and over.
NUM_ROWS, DIM = 70_000, 2


@pytest.fixture
def chain(tmp_path: Path) -> list[Version]:
    """A whole version and two deltas over it, of few rows."""
    store = VersionStore(tmp_path / "store")
    versions = [write_random(store, tmp_path / "parts", tables=[("A", NUM_ROWS, DIM, "float32")])]
    for ids in (np.array([0, 63, 64, 4097, NUM_ROWS - 1]), np.arange(64, 40_000, 256)):
        rows = np.full((len(ids), DIM), len(versions), np.float32)
        delta = TableDelta("A", NUM_ROWS, ids, [rows], np.array([5, 60_001]))
        content = small_delta(tmp_path / "parts", tables=[delta])
        versions.append(store.write_delta(content, versions[-1]))
    return versions


def test_every_id_is_told_apart_from_those_of_small_deltas(chain: list[Version]) -> None:
    engine, ids = Engine(), np.arange(NUM_ROWS)
    found = [engine.open(version.store, version.name) for version in chain]
    for version, each in zip(chain, found, strict=True):
        np.testing.assert_array_equal(each.gather("A", ids), version.rows("A", ids))


def test_whoever_opens_keeps_its_priority(chain: list[Version]) -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    engine = Engine()
    found = [engine.open(version.store, version.name) for version in chain]
    assert len(found) == len(chain)
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


def test_what_is_wrong_with_a_version_is_said_while_others_are_open(chain: list[Version]) -> None:
    first, *_, last = chain
    engine = Engine()
    served = engine.open(first.store, first.name)
    path = shared_path(last.store, last.tables[0].deltas[-1].sha256)
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CorruptFileError, match=path.name):
        engine.open(last.store, last.name)
    np.testing.assert_array_equal(served.gather("A", np.array([64])), first.rows("A", np.array([64])))


def test_a_version_that_is_opened_again_is_whole(chain: list[Version]) -> None:
    engine, ids = Engine(), np.array([64, 4097, NUM_ROWS - 1, 5])
    served = engine.open(chain[0].store, chain[0].name)
    for version in (chain[1], chain[2], chain[1]):
        with engine.open(version.store, version.name) as found:
            np.testing.assert_array_equal(found.gather("A", ids), version.rows("A", ids))
    np.testing.assert_array_equal(served.gather("A", ids), chain[0].rows("A", ids))
