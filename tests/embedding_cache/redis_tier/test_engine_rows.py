"""The engine with rows in Redis: the same bits as from local files, or an error, or a default row that says so."""

import contextlib
import shutil
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankhouse.embedding_cache.engine import Answer, Engine, OpenVersion
from rankhouse.embedding_cache.errors import OptionError, TierError
from rankhouse.embedding_cache.format.errors import VersionNotFoundError
from rankhouse.embedding_cache.format.shared_files import shared_path
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.redis_client import RedisClient
from rankhouse.embedding_cache.redis_push import push_version
from tests.embedding_cache.random_store import random_batch, write_random, write_random_delta
from tests.embedding_cache.redis_tier.servers import Cluster, until

Connect = Callable[..., RedisClient]
New = Callable[..., Engine]


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> VersionStore:
    """A whole version and three deltas, with tables of every row type."""
    folder = tmp_path_factory.mktemp("chain")
    store = VersionStore(folder / "store")
    version = write_random(store, folder / "parts")
    for seed in (1, 2, 3):
        version = write_random_delta(store, folder / "parts", version, seed=seed)
    return store


@pytest.fixture
def bare(chain: VersionStore, connect: Connect, tmp_path: Path) -> Path:
    """The store without any rows, which are in Redis: manifests, what lies beside them, and vocabularies."""
    writer, store = connect(user="writer"), tmp_path / "bare"
    shutil.copytree(chain.path / "versions", store / "versions")
    (store / "segments").mkdir()
    for name in chain.names():
        version = chain.open(name)
        push_version(version, writer)
        for layer in version.record.vocabularies:
            shutil.copy(shared_path(chain.path, layer.sha256), shared_path(store, layer.sha256))
    return store


@pytest.fixture
def new(cluster: Cluster) -> New:
    """Makes engines that read from the cluster."""

    def make(*, redis: dict[str, Any] | None = None, **options: Any) -> Engine:
        redis = {"url": cluster.url(), "password_env": "READER_PASSWORD", "deadline_ms": 60_000, **(redis or {})}
        return Engine(rows="redis", redis=redis, **options)

    return make


def stat(engine: Engine, name: str, *labels: str) -> float:
    """The sum of a counter where its labels have these parts."""
    counters = {key: value for key, value in engine.stats().items() if key.startswith(f"rankhouse_embedding_{name}")}
    return sum(value for key, value in counters.items() if all(label in key for label in labels))


def is_same(version: OpenVersion, local: OpenVersion, opened: Version, *, seed: int = 0) -> bool:
    batch = random_batch(opened, 50, seed=seed)
    return version.lookup(*batch).tobytes() == local.lookup(*batch).tobytes()


@pytest.mark.parametrize(
    "options",
    [{}, {"cache_bytes": 0}, {"cache_bytes": 20_000, "cache_policy": "lfu"}, {"cache_bytes": 5_000, "num_threads": 1}],
    ids=str,
)
def test_rows_are_the_same_bits(chain: VersionStore, bare: Path, new: New, options: dict[str, Any]) -> None:
    engine, local_engine = new(**options), Engine()
    for name in chain.names():
        opened = chain.open(name)
        with engine.open(bare, name) as version, local_engine.open(chain.path, name) as local:
            for seed in range(6):
                assert is_same(version, local, opened, seed=seed)
            for table in opened.tables:
                ids = np.arange(table.num_rows)
                assert version.gather(table.name, ids).tobytes() == local.gather(table.name, ids).tobytes()


def test_with_tls_and_several_threads_too(chain: VersionStore, bare: Path, new: New, cluster: Cluster) -> None:
    redis = {"url": cluster.url(tls=True), "ca_file": cluster.certificates.ca_file}
    opened = chain.open()
    faults: list[int] = []
    with new(redis=redis, cache_bytes=10_000).open(bare) as version, Engine().open(chain.path) as local:

        def look_up(first: int) -> None:
            faults.extend(seed for seed in range(first, first + 10) if not is_same(version, local, opened, seed=seed))

        threads = [threading.Thread(target=look_up, args=(10 * number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert not any(thread.is_alive() for thread in threads)
    assert not faults


def test_the_cache_is_asked_first_and_versions_share_it(chain: VersionStore, bare: Path, new: New) -> None:
    engine, names = new(), chain.names()
    with engine.open(bare, names[0]) as first, engine.open(bare, names[1]) as second:
        batch = random_batch(chain.open(names[0]), 50)
        first.lookup(*batch)
        remote = stat(engine, "tier_seconds_count", 'tier="redis"')
        assert remote > 0
        first.lookup(*batch)
        assert stat(engine, "tier_seconds_count", 'tier="redis"') == remote, "all of it was there"
        second.lookup(*batch)
        cached = stat(engine, "hits_total", names[1], 'tier="cache"')
        assert cached > 0.5 * len(batch[0]), "only what the delta changed is new"


def test_a_failed_tier_is_an_error_and_only_what_came_stays(
    chain: VersionStore, bare: Path, new: New, cluster: Cluster
) -> None:
    engine, opened = new(redis={"deadline_ms": 2000, "hedge_ms": 0, "breaker_ms": 1}), chain.open()
    with engine.open(bare) as version, Engine().open(chain.path) as local:
        base = f"rh:{opened.tables[0].segments[0].sha256[:32]}:0"
        with cluster.servers[cluster.nodes_of(base)[0]].paused(), pytest.raises(TierError, match="by the deadline"):
            version.lookup(*random_batch(opened, 50))
        assert stat(engine, "tier_failures_total") == 1
        assert patiently(lambda: is_same(version, local, opened))
        assert stat(engine, "hits_total", 'tier="cache"') > 0, "other nodes had given theirs"
        for seed in range(10):
            assert patiently(partial(is_same, version, local, opened, seed=seed))


def patiently(ask: Callable[[], bool]) -> bool:
    """Asks until there is an answer, however seldom one comes by a short deadline."""
    answers: list[bool] = []

    def is_answered() -> bool:
        with contextlib.suppress(TierError):
            answers.append(ask())
        return bool(answers)

    until("the node answers", is_answered)
    return answers[0]


@pytest.mark.parametrize("out_of_range", ["error", "unknown_row"])
def test_a_default_row_stands_in_where_the_user_wants_it(
    chain: VersionStore, bare: Path, new: New, cluster: Cluster, out_of_range: str
) -> None:
    redis = {"deadline_ms": 2000, "hedge_ms": 0, "breaker_ms": 1}
    engine = new(redis=redis, if_tier_fails="default_row", out_of_range=out_of_range)
    table = chain.open().tables[0]
    with engine.open(bare) as version, Engine().open(chain.path) as local:
        ids = np.arange(table.num_rows)
        right = local.gather(table.name, ids)
        default = right[2] if out_of_range == "unknown_row" else np.zeros(table.dim, np.float32)
        # All rows of a file of this size lie on one node; the base has most.
        base = f"rh:{table.segments[0].sha256[:32]}:0"
        with cluster.servers[cluster.nodes_of(base)[0]].paused():
            found = version.gather(table.name, ids, answer=(answer := Answer()))
        assert answer.degraded
        is_right = (found == right).all(axis=1)
        assert ((found == default).all(axis=1) | is_right).all(), "each row is right or the default"
        assert not is_right.all()
        assert stat(engine, "degraded_total") >= (~is_right).sum()
        until("the node answers again", lambda: version.gather(table.name, ids).tobytes() == right.tobytes())
        version.gather(table.name, ids, answer=answer)
        assert not answer.degraded


def test_a_version_that_was_not_pushed_is_named(chain: VersionStore, new: New, cluster: Cluster) -> None:
    with pytest.raises(TierError, match=f"does not have version {chain.names()[-1]} .*push it"):
        new().open(chain.path)


def test_a_version_of_another_store_is_refused(chain: VersionStore, bare: Path, new: New, cluster: Cluster) -> None:
    key = f"rh:version:{chain.names()[0]}"
    document = cluster.admin(key, "GET", key).decode()
    cluster.admin(key, "SET", key, document.replace(chain.open(chain.names()[0]).manifest.sha256, "f" * 64))
    with pytest.raises(TierError, match="in the tier is of another manifest"):
        new().open(bare, chain.names()[0])


def test_a_store_without_the_version_is_refused(bare: Path, new: New) -> None:
    with pytest.raises(VersionNotFoundError):
        new().open(bare, "000009-12345678")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": "redis"}, "'rows' is 'redis': expected an object"),
        ({"redis": {"url": "redis://localhost"}}, "would not be used"),
        ({"rows": "redis", "redis": {"url": "redis://localhost", "hedge": 1}}, "did you mean 'hedge_ms'"),
        ({"rows": "elsewhere"}, "expected one of 'local', 'redis'"),
        ({"cache_bytes": -1}, "'cache_bytes' is -1"),
        ({"if_warm_up_fails": "retry"}, "'if_warm_up_fails' is 'retry': expected one of 'open', 'error'"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Engine(**options)


def test_hot_rows_are_in_the_cache_before_a_version_is_open(
    chain: VersionStore, bare: Path, new: New, tmp_path: Path
) -> None:
    batch = random_batch(chain.open(), 50)
    engine = new(hot_rows=str(tmp_path / "hot"))
    with engine.open(bare) as version:
        for _ in range(1500):  # one id in 256 is counted
            version.lookup(*batch)
    del engine
    engine = new(hot_rows=str(tmp_path / "hot"))
    with engine.open(bare) as version:
        assert stat(engine, "warmed_rows_total") > 0
        version.lookup(*batch)
        hits = {key: count for key, count in engine.stats().items() if key.startswith("rankhouse_embedding_hits_total")}
        assert sum(count for key, count in hits.items() if 'tier="redis"' in key) < 0.05 * len(batch[0])
        assert sum(count for key, count in hits.items() if 'tier="cache"' in key) > 0.8 * len(batch[0])


def test_a_warm_up_that_the_tier_fails_is_partial_or_an_error(
    chain: VersionStore, bare: Path, new: New, cluster: Cluster, tmp_path: Path
) -> None:
    opened, folder = chain.open(), str(tmp_path / "hot")
    batch = random_batch(opened, 50)
    engine = new(hot_rows=folder)
    with engine.open(bare) as version:
        for _ in range(1500):
            version.lookup(*batch)
    del engine
    rows = f"rh:{opened.tables[0].segments[0].sha256[:32]}:0"
    cluster.admin(rows, "DEL", rows)
    engine = new(hot_rows=folder)
    with engine.open(bare) as version:
        assert stat(engine, "warm_up_missed_rows_total") > 0
        assert stat(engine, "warmed_rows_total") > 0, "other tables' rows came"
        with pytest.raises(TierError, match="does not have"):
            version.lookup(*batch)
    with pytest.raises(TierError, match=r"hot rows of model 'dlrm' did not come .*'if_warm_up_fails' is 'error'"):
        new(hot_rows=folder, if_warm_up_fails="error").open(bare)


def test_rows_of_a_size_that_comes_later_are_cached_too(
    chain: VersionStore, new: New, connect: Connect, tmp_path: Path
) -> None:
    """Memory is divided anew: what was there is read once more, and both models find their rows again."""
    engine, first = new(), chain.open()
    other = write_random(VersionStore(tmp_path / "wide"), tmp_path / "parts", tables=[("A", 300, 33, "float32")])
    for version in (first, other):
        push_version(version, connect(user="writer"))
    with engine.open(first.store, first.name) as narrow, engine.open(other.store, other.name) as wide:
        for served, version in ((narrow, first), (wide, other), (narrow, first)):
            batch = random_batch(version, 50)
            truth = served.lookup(*batch).tobytes()
            remote = stat(engine, "tier_seconds_count", 'tier="redis"')
            assert served.lookup(*batch).tobytes() == truth
            assert stat(engine, "tier_seconds_count", 'tier="redis"') == remote
        assert stat(engine, "bytes", 'tier="cache"') <= 2**30
