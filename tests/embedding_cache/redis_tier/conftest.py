"""One cluster for all tests of the Redis tier, and a store with versions to push."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rankhouse.embedding_cache.format.records import SegmentRecord, TableContent
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.redis_client import RedisClient
from tests.embedding_cache.format.small_store import blocks_of, rows_of
from tests.embedding_cache.maintenance.chain import write_over, write_whole
from tests.embedding_cache.redis_tier.servers import READER, WRITER, Cluster, redis_cluster

NUM_ROWS, DIM = 40_000, 3  # of table C1: eight keys


@dataclass(frozen=True)
class File:
    """The base of table C1 in a version.

    Attributes:
        record: What the manifest says of it.
        rows: uint8 [NUM_ROWS, row bytes].
    """

    record: SegmentRecord
    rows: npt.NDArray[np.uint8]

    @property
    def row_bytes(self) -> int:
        return self.rows.shape[1]

    @property
    def key(self) -> str:
        return f"rh:{self.record.sha256[:32]}"

    def block_of(self, row: int) -> str:
        """The key that has a row."""
        return f"{self.key}:{row // ((65536 - 32) // self.row_bytes)}"


@pytest.fixture(scope="session")
def whole_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with redis_cluster(tmp_path_factory.mktemp("redis")) as cluster:
        yield cluster


@pytest.fixture
def cluster(whole_cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Six nodes without keys, and the users' passwords in the environment."""
    monkeypatch.setenv("READER_PASSWORD", READER)
    monkeypatch.setenv("WRITER_PASSWORD", WRITER)
    yield whole_cluster
    whole_cluster.clear()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> VersionStore:
    """A whole version of two tables, and a delta over it."""
    folder = tmp_path_factory.mktemp("store")
    opened = VersionStore(folder / "store")
    tables = [
        TableContent("C1", NUM_ROWS, DIM, blocks_of(rows_of(NUM_ROWS, DIM, 1), 4096)),
        TableContent("C2", 5, 2, blocks_of(rows_of(5, 2, 1))),
    ]
    whole = write_whole(opened, folder / "parts", tables=tables)
    write_over(opened, folder / "parts", whole, {"C1": ([2, 7, NUM_ROWS], [3])})
    return opened


@pytest.fixture
def version(store: VersionStore) -> Version:
    """The whole one."""
    return store.open(store.names()[0])


@pytest.fixture
def file(version: Version) -> File:
    rows = version.table_rows("C1").segments[0]
    return File(version.tables[0].segments[0], rows.view(np.uint8))


@pytest.fixture
def connect(cluster: Cluster) -> Iterator[Callable[..., RedisClient]]:
    """Makes clients of a user, patient ones unless told otherwise, and closes them."""
    clients = []

    def new(
        *, user: str = "reader", tls: bool = False, nodes: tuple[int, ...] = (0, 1, 2), **options: Any
    ) -> RedisClient:
        options = {"password_env": f"{user.upper()}_PASSWORD", "deadline_ms": 60_000, "hedge_ms": 0, **options}
        if tls:
            options.setdefault("ca_file", cluster.certificates.ca_file)
        clients.append(RedisClient(cluster.url(tls=tls, user=user, nodes=nodes), **options))
        return clients[-1]

    yield new
    for client in clients:
        client.close()


@pytest.fixture
def pushed(connect: Callable[..., RedisClient], version: Version, file: File) -> File:
    """The base of C1, in Redis."""
    from rankhouse.embedding_cache.redis_push import push_version

    push_version(version, connect(user="writer"))
    return file


@pytest.fixture
def password_file(tmp_path: Path) -> str:
    path = tmp_path / "password"
    path.write_text(READER + "\n")
    return str(path)
