"""The GPU's cache in front of Redis. Without a GPU: tests/embedding_cache/native/engine/test_cuda_emulation.py."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rankhouse.embedding_cache.engine import Answer, Engine
from rankhouse.embedding_cache.errors import TierError
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.redis_client import RedisClient
from rankhouse.embedding_cache.redis_push import push_version
from tests.embedding_cache.native.engine.device_arrays import cuda_engine, look_up
from tests.embedding_cache.random_store import random_batch, write_random, write_random_delta
from tests.embedding_cache.redis_tier.servers import Cluster
from tests.kernels.device_memory import Kernels

Connect = Callable[..., RedisClient]

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def cuda() -> Iterator[Kernels]:
    with cuda_engine() as found:
        yield found


@pytest.fixture
def version(cuda: Kernels, connect: Connect, tmp_path: Path) -> Version:
    """A version with a delta, whose rows are in Redis."""
    store = VersionStore(tmp_path / "store")
    parent = write_random(store, tmp_path / "parts")
    version = write_random_delta(store, tmp_path / "parts", parent, seed=1)
    push_version(version, connect(user="writer"))
    return version


@pytest.fixture
def truth(version: Version) -> NDArray[np.float32]:
    with Engine().open(version.store, version.name) as local:
        return local.lookup(*random_batch(version, 40))


def engine_of(cluster: Cluster, **options: Any) -> Engine:
    redis = {"url": cluster.url(), "password_env": "READER_PASSWORD", "deadline_ms": 60_000}
    return Engine(device=0, rows="redis", redis=redis, **options)


def stat(engine: Engine, name: str, *labels: str) -> float:
    """The sum of a counter where its labels have these parts."""
    counters = {key: value for key, value in engine.stats().items() if key.startswith(f"rankhouse_embedding_{name}")}
    return sum(value for key, value in counters.items() if all(label in key for label in labels))


@pytest.mark.parametrize(
    "options", [{}, {"device_cache_bytes": 9000}, {"cache_bytes": 0, "device_cache_policy": "lfu"}], ids=str
)
def test_rows_are_the_same_bits(
    cuda: Kernels, cluster: Cluster, version: Version, truth: NDArray[np.float32], options: dict[str, Any]
) -> None:
    engine, batch = engine_of(cluster, **options), random_batch(version, 40)
    with engine.open(version.store, version.name) as served:
        for _ in range(3):
            assert look_up(cuda, served, *batch).tobytes() == truth.tobytes()
        device = stat(engine, "hits_total", 'tier="device"')
        others = stat(engine, "hits_total", 'tier="cache"') + stat(engine, "hits_total", 'tier="redis"')
        nowhere = stat(engine, "hits_total", 'tier="memory"')  # ids whose row was removed
        assert device > 0
        assert device + others + nowhere == 3 * len(batch[0])
        assert stat(engine, "hits_total", 'tier="redis"') > 0


def test_default_rows_are_not_kept(
    cuda: Kernels, cluster: Cluster, version: Version, truth: NDArray[np.float32], connect: Connect
) -> None:
    engine, batch = engine_of(cluster, if_tier_fails="default_row"), random_batch(version, 40)
    rows = f"rh:{version.tables[0].segments[0].sha256[:32]}:0"
    content = cluster.admin(rows, "GET", rows)
    with engine.open(version.store, version.name) as served:
        cluster.admin(rows, "DEL", rows)
        answer = Answer()
        found = look_up(cuda, served, *batch, answer=answer)
        assert answer.degraded
        assert found.tobytes() != truth.tobytes()
        cluster.admin(rows, "SET", rows, content)
        assert look_up(cuda, served, *batch, answer=answer).tobytes() == truth.tobytes()
        assert not answer.degraded


def test_a_failed_tier_is_an_error(
    cuda: Kernels, cluster: Cluster, version: Version, truth: NDArray[np.float32]
) -> None:
    engine, batch = engine_of(cluster), random_batch(version, 40)
    rows = f"rh:{version.tables[0].segments[0].sha256[:32]}:0"
    content = cluster.admin(rows, "GET", rows)
    with engine.open(version.store, version.name) as served:
        cluster.admin(rows, "DEL", rows)
        with pytest.raises(TierError, match="does not have"):
            look_up(cuda, served, *batch)
        cluster.admin(rows, "SET", rows, content)
        assert look_up(cuda, served, *batch).tobytes() == truth.tobytes()
