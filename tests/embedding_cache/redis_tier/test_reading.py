"""Rows read from a healthy cluster, or from one plain server; and what keeps a client from reading at all."""

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from rankhouse.embedding_cache.errors import OptionError, TierError
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.redis_client import RedisClient
from rankhouse.embedding_cache.redis_push import push_version
from tests.embedding_cache.redis_tier.conftest import NUM_ROWS, File
from tests.embedding_cache.redis_tier.servers import (
    READER,
    WRITER,
    Certificates,
    Cluster,
    Server,
    free_ports,
    new_server,
)

Connect = Callable[..., RedisClient]


def some_rows(count: int) -> npt.NDArray[np.int64]:
    return np.random.default_rng(count).integers(0, NUM_ROWS, count)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_rows_are_those_of_the_file(connect: Connect, pushed: File, tls: bool) -> None:
    stored = connect(tls=tls).open_file(pushed.record.sha256)
    wanted = [some_rows(0), some_rows(1), some_rows(3000), np.sort(some_rows(5000)), np.arange(NUM_ROWS)]
    for rows in [*wanted, np.array([7, 7, 6, 7, 8, NUM_ROWS - 1, 0])]:
        assert np.array_equal(stored.read(rows, row_bytes=pushed.row_bytes), pushed.rows[rows])
    stored.close()


@pytest.mark.parametrize("options", [{"batch": 1}, {"batch": 7, "connections": 1}, {"nodes": (4,)}])
def test_small_batches_and_one_entry_point_give_the_same(
    connect: Connect, pushed: File, options: dict[str, Any]
) -> None:
    rows = some_rows(500)
    stored = connect(**options).open_file(pushed.record.sha256)
    assert np.array_equal(stored.read(rows, row_bytes=pushed.row_bytes), pushed.rows[rows])
    stored.close()


def test_a_process_that_was_forked_off_reads_its_own_replies(connect: Connect, pushed: File) -> None:
    stored = connect(connections=1).open_file(pushed.record.sha256)

    def are_right(first: int) -> bool:
        batches = [some_rows(count) for count in range(first, first + 50)]
        return all(np.array_equal(stored.read(rows, row_bytes=pushed.row_bytes), pushed.rows[rows]) for rows in batches)

    assert are_right(1), "the connections are idle now"
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if are_right(100) else 1
        finally:
            os._exit(code)
    try:
        assert are_right(200)
    finally:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stored.close()


def test_a_file_can_be_put_together_again(connect: Connect, pushed: File, version: Version) -> None:
    stored, record = connect().open_file(pushed.record.sha256), pushed.record
    around = stored.read_around(record.bytes - pushed.rows.nbytes)
    rows = stored.read(np.arange(NUM_ROWS), row_bytes=pushed.row_bytes)
    stored.close()
    assert hashlib.sha256(around[:4096] + rows.tobytes() + around[4096:]).hexdigest() == record.sha256


def test_ids_of_a_delta_can_be_read(connect: Connect, store: VersionStore) -> None:
    delta_version = store.open()
    push_version(delta_version, connect(user="writer"))
    record = delta_version.tables[0].deltas[0]
    stored = connect().open_file(record.sha256)
    around = stored.read_around(record.bytes - 3 * 12)
    ids = np.frombuffer(around[-8 * 4 :], "<i8")
    stored.close()
    assert ids.tolist() == [2, 7, NUM_ROWS, 3]


def test_a_plain_server_will_do(cluster: Cluster, version: Version, file: File, tmp_path: Path) -> None:
    server = new_server(tmp_path / "plain", cluster.certificates, is_cluster=False)
    server.start()
    try:
        with RedisClient(f"redis://writer@127.0.0.1:{server.port}", password_env="WRITER_PASSWORD") as writer:
            push_version(version, writer)
        # The first entry point is not there; the other one has a name, which may also be that of an address where
        # nobody listens.
        url = f"redis://reader@127.0.0.1:{free_ports(1)[0]},localhost:{server.port}"
        with RedisClient(url, password_env="READER_PASSWORD", deadline_ms=60_000) as client:
            stored, rows = client.open_file(file.record.sha256), some_rows(100)
            assert np.array_equal(stored.read(rows, row_bytes=file.row_bytes), file.rows[rows])
            stored.close()
    finally:
        server.kill()


def test_the_password_may_lie_in_a_file(cluster: Cluster, pushed: File, password_file: str) -> None:
    with RedisClient(cluster.url(), password_file=password_file, deadline_ms=60_000) as client:
        client.open_file(pushed.record.sha256).close()


def test_a_row_that_the_file_does_not_have_is_refused(connect: Connect, pushed: File) -> None:
    stored = connect().open_file(pushed.record.sha256)
    for row in (-1, NUM_ROWS):
        with pytest.raises(OptionError, match=f"there is no row {row}"):
            stored.read(np.array([0, row]), row_bytes=pushed.row_bytes)
    stored.close()


def test_a_file_that_was_not_pushed_is_named(connect: Connect) -> None:
    with pytest.raises(TierError, match=f"does not have file {'a' * 64} .*it was not pushed"):
        connect().open_file("a" * 64)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"url": "http://localhost"}, "neither redis:// nor rediss://"),
        ({"url": "redis://"}, "names no host"),
        ({"url": "redis://localhost:port"}, "localhost:port is no host:port"),
        ({"url": "redis://localhost/1"}, "has a path"),
        ({"url": "redis://me:secret@localhost"}, "the URL has a password"),
        ({"url": "redis://me@localhost"}, "user me has no password"),
        ({"password_env": "NO_SUCH_VARIABLE"}, "the environment has no NO_SUCH_VARIABLE"),
        ({"password_file": "no/such/file"}, "no/such/file.* cannot be read"),
        ({"hedge": 3}, "unknown key 'hedge'.*hedge_ms"),
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"ca_file": "ca.pem"}, "are for TLS"),
        ({"url": "rediss://localhost", "ca_file": "no-such.pem"}, "ca_file no-such.pem cannot be used"),
        ({"url": "rediss://localhost", "key_file": "key.pem"}, "certificate_file and key_file belong together"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        RedisClient(**{"url": "redis://localhost", **options})
    assert "secret" not in str(caught.value)


def test_a_wrong_password_is_said_at_once(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("READER_PASSWORD", WRITER)
    with pytest.raises(TierError, match=r"127.0.0.1:\d+ refuses us: WRONGPASS.*password_env") as caught:
        connect().open_file("a" * 64)
    assert WRITER not in str(caught.value)
    assert READER not in str(caught.value)


def test_what_a_user_may_not_do_is_said(connect: Connect, version: Version) -> None:
    with pytest.raises(TierError, match=r"127.0.0.1:\d+ answers NOPERM .*no permissions"):
        push_version(version, connect(user="reader"))


@pytest.mark.parametrize("fault", ["other_ca", "name"])
def test_a_server_with_another_certificate_is_refused(connect: Connect, cluster: Cluster, fault: str) -> None:
    options = {"ca_file": cluster.certificates.other_ca_file} if fault == "other_ca" else {"server_name": "other.test"}
    with pytest.raises(TierError, match=r"its certificate is refused .*see ca_file and server_name"):
        connect(tls=True, **options).open_file("a" * 64)


@pytest.fixture
def strict(cluster: Cluster, tmp_path: Path) -> Iterator[Server]:
    """A plain server that wants clients to have certificates."""
    server = new_server(tmp_path / "strict", cluster.certificates, is_cluster=False, asks_for_certificates=True)
    server.start()
    yield server
    server.kill()


def strict_client(strict: Server, certificates: Certificates, user: str, **options: Any) -> RedisClient:
    url, password = f"rediss://{user}@127.0.0.1:{strict.tls_port}", f"{user.upper()}_PASSWORD"
    return RedisClient(url, password_env=password, ca_file=certificates.ca_file, deadline_ms=60_000, **options)


def test_a_client_shows_its_certificate(cluster: Cluster, strict: Server, version: Version, file: File) -> None:
    own = cluster.certificates.client("ca")
    with strict_client(strict, cluster.certificates, "writer", **own) as writer:
        push_version(version, writer)
    with strict_client(strict, cluster.certificates, "reader", **own) as reader:
        stored, rows = reader.open_file(file.record.sha256), some_rows(100)
        assert np.array_equal(stored.read(rows, row_bytes=file.row_bytes), file.rows[rows])
        stored.close()


@pytest.mark.parametrize("signer", [None, "other"], ids=["none", "of somebody else's"])
def test_a_client_without_the_right_certificate_learns_that(
    cluster: Cluster, strict: Server, signer: str | None
) -> None:
    own = cluster.certificates.client(signer) if signer else {}
    message = rf"127.0.0.1:{strict.tls_port} refuses our certificate \(.*\): see certificate_file and key_file"
    with (
        strict_client(strict, cluster.certificates, "reader", **own) as reader,
        pytest.raises(TierError, match=message),
    ):
        reader.open_file("a" * 64)


def test_a_key_of_another_certificate_is_refused(cluster: Cluster) -> None:
    own = cluster.certificates.client("ca") | {"key_file": cluster.certificates.client("other")["key_file"]}
    with pytest.raises(OptionError, match=r"key_file .*client-of-other.key cannot be used .*expected the key of"):
        RedisClient(cluster.url(tls=True), password_env="READER_PASSWORD", **own)


def test_a_name_for_all_certificates_will_do(connect: Connect, pushed: File) -> None:
    connect(tls=True, server_name="redis.test").open_file(pushed.record.sha256).close()


def test_who_does_not_speak_tls_is_named(cluster: Cluster) -> None:
    port, ca_file = cluster.servers[0].port, cluster.certificates.ca_file
    url = f"rediss://reader@127.0.0.1:{port}"
    with (
        RedisClient(url, password_env="READER_PASSWORD", ca_file=ca_file, deadline_ms=500) as client,
        pytest.raises(TierError, match=f"no node says where rows lie: 127.0.0.1:{port}"),
    ):
        client.open_file("a" * 64)


def test_a_name_of_nobody_is_said() -> None:
    with (
        RedisClient("redis://no-such-host.invalid:6379", deadline_ms=20_000) as client,
        pytest.raises(TierError, match=r"no-such-host.invalid:6379 (its name cannot be|has a name that was not) resol"),
    ):
        client.open_file("a" * 64)


def test_where_nobody_listens_the_nodes_are_named() -> None:
    port = free_ports(1)[0]
    with (
        RedisClient(f"redis://127.0.0.1:{port}", deadline_ms=20_000) as client,
        pytest.raises(TierError, match=f"127.0.0.1:{port} cannot be connected to"),
    ):
        client.open_file("a" * 64)
