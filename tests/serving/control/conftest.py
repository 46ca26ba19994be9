"""Both state stores, real ones: a SQLite file, and a Redis server with TLS and users."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from rankhouse.serving.control.state_store import StateStore
from rankhouse.serving.control.state_stores import open_state_store
from tests.embedding_cache.redis_tier.servers import ADMIN, Certificates, Server, new_server

PASSWORD_ENV = "STATE_STORE_PASSWORD"


@dataclass(frozen=True)
class RedisServer:
    """A server, and how it is reached."""

    server: Server
    certificates: Certificates

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.server.port}/0?password_env={PASSWORD_ENV}"

    @property
    def tls_url(self) -> str:
        return f"rediss://127.0.0.1:{self.server.tls_port}/0?password_env={PASSWORD_ENV}"


@pytest.fixture(scope="session")
def whole_redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    assert shutil.which("redis-server"), "the tests need redis-server: run `make setup`"
    folder = tmp_path_factory.mktemp("state_redis")
    certificates = Certificates.make(folder)
    server = new_server(folder / "server", certificates, is_cluster=False)
    server.start()
    yield RedisServer(server, certificates)
    server.kill()


@pytest.fixture
def redis_server(whole_redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> RedisServer:
    """An empty server, and its password in the environment."""
    monkeypatch.setenv(PASSWORD_ENV, ADMIN)
    if whole_redis_server.server.process is None:
        whole_redis_server.server.start()
    whole_redis_server.server.admin("FLUSHALL")
    return whole_redis_server


@pytest.fixture
def opened() -> Iterator[Callable[..., StateStore]]:
    """Opens stores by URL, patient ones unless told otherwise, and closes them."""
    stores: list[StateStore] = []

    def open_one(url: str, **options: float) -> StateStore:
        stores.append(open_state_store(url, **{"timeout_seconds": 60.0, **options}))
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture(params=["sqlite", "redis"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store of each kind."""
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        return server.url
    return f"sqlite://{tmp_path}/folder/state.db"


@pytest.fixture
def store(store_url: str, opened: Callable[..., StateStore]) -> StateStore:
    """An empty store of each kind."""
    return opened(store_url, timeout_seconds=60.0)
