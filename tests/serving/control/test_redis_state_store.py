"""A Redis server that is down, hung, full, read-only, secured or a cluster's: what is said."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rankhouse.serving.control.redis_state_store import RedisStateStore
from rankhouse.serving.control.state_store import StateStore
from rankhouse.serving.control.state_stores import open_state_store
from rankhouse.serving.errors import CorruptStateError, StateStoreError, StoreFullError, StoreUnavailableError
from tests.embedding_cache.redis_tier.servers import free_ports, new_server
from tests.serving.control.conftest import PASSWORD_ENV, RedisServer
from tests.serving.control.states_of_models import stable_at

Opened = Callable[..., StateStore]

# What docs/rollout.md tells users to allow.
MAY = "~rankhouse:* +@read +@write +@scripting +time +select +ping -@dangerous"


def test_a_server_that_is_not_there_is_told() -> None:
    [port] = free_ports(1)
    with pytest.raises(StoreUnavailableError, match=rf"redis://127\.0\.0\.1:{port}/0: .*is the server running"):
        open_state_store(f"redis://127.0.0.1:{port}/0", timeout_seconds=5.0)


def test_a_server_that_comes_back_is_used_again(redis_server: RedisServer, opened: Opened) -> None:
    store = opened(redis_server.url, timeout_seconds=5.0)
    store.create(stable_at(1))
    redis_server.server.kill()
    with pytest.raises(StoreUnavailableError, match="is the server running"):
        store.read("m")
    redis_server.server.start()
    assert store.revision("m") == 0
    assert store.create(stable_at(2)).state == stable_at(2)


def test_a_server_that_may_be_away_is_used_once_it_is_there(redis_server: RedisServer) -> None:
    redis_server.server.kill()
    store = open_state_store(redis_server.url, timeout_seconds=5.0, may_be_away=True)
    with pytest.raises(StoreUnavailableError, match="is the server running"):
        store.revision("m")
    redis_server.server.start()
    redis_server.server.admin("SET", "rankhouse:schema", "0")
    with pytest.raises(CorruptStateError, match="upgrade it"):
        store.revision("m")
    redis_server.server.admin("FLUSHALL")
    assert store.create(stable_at(2)).state == stable_at(2)
    store.close()


def test_a_server_that_hangs_ends_in_time(redis_server: RedisServer, opened: Opened) -> None:
    patient = opened(redis_server.url, timeout_seconds=60.0)
    patient.create(stable_at(1))
    store = opened(redis_server.url, timeout_seconds=0.2, may_be_away=True)
    with redis_server.server.paused(), pytest.raises(StoreUnavailableError, match=r"(?i)timeout"):
        store.read("m")
    assert patient.read("m").state == stable_at(1)


def test_a_wrong_password_is_told(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PASSWORD_ENV, "wrong-secret")
    with pytest.raises(StoreUnavailableError, match="its password by password_env") as caught:
        open_state_store(redis_server.url)
    assert "wrong-secret" not in str(caught.value)


def test_no_password_is_told(redis_server: RedisServer) -> None:
    with pytest.raises(StoreUnavailableError, match="password_env"):
        open_state_store(f"redis://127.0.0.1:{redis_server.server.port}/0")


def test_a_user_needs_little(redis_server: RedisServer, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    redis_server.server.admin("ACL", "SETUSER", "control", "on", ">control-secret", *MAY.split())
    monkeypatch.setenv(PASSWORD_ENV, "control-secret")
    store = opened(redis_server.url.replace("redis://", "redis://control@"))
    assert store.create(stable_at(1)).state == stable_at(1)
    assert store.commit(stable_at(2), expected=1, events=()) == 2
    assert store.take_lease("conductor", "a", ttl_seconds=60.0)
    assert store.replicas("m") == []
    assert store.claim_feedback("m", [("x", "click")], ttl_seconds=60.0) == [True]


def test_a_user_that_may_not_write_is_told(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    redis_server.server.admin("ACL", "SETUSER", "looker", "on", ">looker-secret", "~rankhouse:*", "+@read")
    monkeypatch.setenv(PASSWORD_ENV, "looker-secret")
    with pytest.raises(StoreUnavailableError, match="has no permissions"):
        open_state_store(redis_server.url.replace("redis://", "redis://looker@"))


def test_a_full_server_is_told_and_keeps_the_old_state(redis_server: RedisServer, opened: Opened) -> None:
    store = opened(redis_server.url)
    store.create(stable_at(1))
    redis_server.server.admin("CONFIG", "SET", "maxmemory", "1")
    try:
        with pytest.raises(StoreFullError, match="takes no writes: give it memory or disk"):
            store.commit(stable_at(2), expected=1, events=())
        assert store.read("m").state == stable_at(1)
    finally:
        redis_server.server.admin("CONFIG", "SET", "maxmemory", "0")


def test_a_replica_of_redis_is_told(redis_server: RedisServer, opened: Opened) -> None:
    store = opened(redis_server.url)
    store.create(stable_at(1))
    [port] = free_ports(1)
    redis_server.server.admin("REPLICAOF", "127.0.0.1", str(port))
    try:
        with pytest.raises(StoreFullError, match="address of the primary"):
            store.commit(stable_at(2), expected=1, events=())
    finally:
        redis_server.server.admin("REPLICAOF", "NO", "ONE")


def test_scripts_that_the_server_forgot_are_sent_again(redis_server: RedisServer, opened: Opened) -> None:
    store = opened(redis_server.url)
    store.create(stable_at(1))
    redis_server.server.admin("SCRIPT", "FLUSH")
    assert store.commit(stable_at(2), expected=1, events=()) == 2
    assert store.create(stable_at(3)).state == stable_at(2)


def test_keys_of_something_else_are_told(redis_server: RedisServer, opened: Opened) -> None:
    store = opened(redis_server.url)
    redis_server.server.admin("SET", "rankhouse:model:m:state", "x")
    with pytest.raises(CorruptStateError, match="something else uses keys that begin with rankhouse:"):
        store.read("m")
    redis_server.server.admin("SET", "rankhouse:schema", "9")
    with pytest.raises(CorruptStateError, match="has schema b'9', this release knows b'1': upgrade it"):
        opened(redis_server.url)


def test_a_state_that_is_none_is_told(redis_server: RedisServer, opened: Opened) -> None:
    store = opened(redis_server.url)
    store.create(stable_at(1))
    redis_server.server.admin("HSET", "rankhouse:model:m:state", "content", "{")
    with pytest.raises(CorruptStateError, match="the stored state cannot be read"):
        store.read("m")


def test_a_node_of_a_cluster_is_told(redis_server: RedisServer, tmp_path: Path) -> None:
    node = new_server(tmp_path / "node", redis_server.certificates, is_cluster=True)
    node.start()
    try:
        with pytest.raises(StateStoreError, match="a node of a cluster: the state store needs a plain server"):
            open_state_store(f"redis://127.0.0.1:{node.port}/0?password_env={PASSWORD_ENV}")
    finally:
        node.kill()


def test_databases_are_apart(redis_server: RedisServer, opened: Opened) -> None:
    opened(redis_server.url).create(stable_at(1))
    assert opened(redis_server.url.replace("/0?", "/1?")).models() == []


def test_tls_verifies_the_server(redis_server: RedisServer, opened: Opened) -> None:
    certificates = redis_server.certificates
    store = opened(f"{redis_server.tls_url}&ca_file={certificates.ca_file}")
    assert store.create(stable_at(1)).state == stable_at(1)
    with pytest.raises(StoreUnavailableError, match=r"(?i)certificate"):
        RedisStateStore(f"{redis_server.tls_url}&ca_file={certificates.other_ca_file}")
    with pytest.raises(StoreUnavailableError, match=r"(?i)certificate"):
        RedisStateStore(redis_server.tls_url)


def test_tls_verifies_the_name(redis_server: RedisServer) -> None:
    url = redis_server.tls_url.replace("127.0.0.1", "localhost")
    with pytest.raises(StoreUnavailableError, match=r"(?i)certificate"):
        RedisStateStore(f"{url}&ca_file={redis_server.certificates.ca_file}")
