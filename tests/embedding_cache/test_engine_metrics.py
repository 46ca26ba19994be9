"""What the engine counts of lookups, and the text that says it."""

import numpy as np
import pytest

from rankhouse.embedding_cache.engine import Engine
from rankhouse.embedding_cache.errors import BatchError
from rankhouse.embedding_cache.format.version import Version, VersionStore
from tests.embedding_cache.random_store import random_batch, write_random, write_random_delta

SAMPLE_EVERY = 256


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Version:
    """A version with a delta, so that ids of its tables are resolved."""
    folder = tmp_path_factory.mktemp("counted")
    store = VersionStore(folder / "store")
    return write_random_delta(store, folder / "parts", write_random(store, folder / "parts"), seed=1)


def test_metrics(version: Version) -> None:
    engine = Engine(out_of_range="zero")
    found = engine.open(version.store, version.name)
    ids_N, lengths_FB = random_batch(version, 10)
    found.lookup(ids_N, lengths_FB)
    found.gather("B", np.array([1, -1]))
    label = f'model="dlrm",version="{found.name}"'
    stats = engine.stats()
    in_b = float(lengths_FB[2].sum())
    assert stats[f"rankhouse_embedding_lookups_total{{{label}}}"] == 2
    assert stats[f'rankhouse_embedding_ids_total{{{label},table="B"}}'] == in_b + 2
    assert stats[f'rankhouse_embedding_hits_total{{{label},table="B",tier="memory"}}'] == in_b + 1
    assert stats[f'rankhouse_embedding_unknown_ids_total{{{label},table="B"}}'] == 1
    assert stats[f'rankhouse_embedding_lookup_seconds_bucket{{{label},le="+Inf"}}'] == 2
    assert stats[f"rankhouse_embedding_lookup_seconds_count{{{label}}}"] == 2
    assert 0 <= stats[f"rankhouse_embedding_version_age_seconds{{{label}}}"] < 3600
    found.close()
    assert not any(label in key for key in engine.stats())


@pytest.mark.parametrize(("out_of_range", "hits"), [("zero", 1), ("clip", 2), ("unknown_row", 2)])
def test_a_row_that_stands_in_for_an_unknown_id_is_a_hit(version: Version, out_of_range: str, hits: int) -> None:
    engine = Engine(out_of_range=out_of_range)
    with engine.open(version.store, version.name) as found:
        found.gather("B", np.array([1, -1]))
        label, stats = f'model="dlrm",version="{found.name}",table="B"', engine.stats()
        assert stats[f'rankhouse_embedding_hits_total{{{label},tier="memory"}}'] == hits
        assert stats[f"rankhouse_embedding_without_row_total{{{label}}}"] == 2 - hits


def test_unique_ids_and_times_of_memory_are_sampled(version: Version) -> None:
    """One lookup in 256 of a thread stands for all of them."""
    engine = Engine()
    found, batch = engine.open(version.store, version.name), random_batch(version, 10)
    label = f'model="dlrm",version="{found.name}"'
    for count in (SAMPLE_EVERY - 1, 1, SAMPLE_EVERY):
        for _ in range(count):
            found.lookup(*batch)
        stats = engine.stats()
        num_sampled = stats[f"rankhouse_embedding_lookups_total{{{label}}}"] // SAMPLE_EVERY
        assert stats[f'rankhouse_embedding_tier_seconds_count{{{label},tier="memory"}}'] == num_sampled
        ends = np.cumsum(batch[1].sum(axis=1))
        unique = {"A": len(np.unique(np.concatenate([batch[0][: ends[0]], batch[0][ends[2] : ends[3]]])))}
        unique["B"] = len(np.unique(batch[0][ends[1] : ends[2]]))
        for table, truth in unique.items():
            name = f'rankhouse_embedding_unique_ids_total{{{label},table="{table}"}}'
            assert stats[name] == SAMPLE_EVERY * num_sampled * truth


def test_lookups_that_fail_are_not_counted(version: Version) -> None:
    engine = Engine()
    with engine.open(version.store, version.name) as found:
        with pytest.raises(BatchError, match="out of range"):
            found.gather("B", np.array([1, -1]))
        stats = {key: value for key, value in engine.stats().items() if key.startswith("rankhouse_embedding_lookup")}
    assert stats
    assert not any(stats.values())
