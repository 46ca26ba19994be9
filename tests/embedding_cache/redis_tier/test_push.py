"""Versions pushed to Redis: whole or not at all, each file once, and for as long as the longest-lived needs it."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from rankhouse.cli.main import app
from rankhouse.embedding_cache.errors import OptionError, TierError
from rankhouse.embedding_cache.format.errors import CorruptFileError
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.embedding_cache.redis_client import RedisClient
from rankhouse.embedding_cache.redis_push import push_version
from tests.embedding_cache.redis_tier.conftest import File
from tests.embedding_cache.redis_tier.servers import WRITER, Cluster

Connect = Callable[..., RedisClient]
HOUR = 3600


def key_of(version: Version) -> str:
    return f"rh:version:{version.name}"


def ttl_of(cluster: Cluster, key: str) -> float:
    """In hours; -1: for ever."""
    found = cluster.admin(key, "PTTL", key)
    assert found != -2, f"{key} is not there"
    return -1 if found == -1 else found / 1000 / HOUR


def test_each_file_is_sent_once_whatever_versions_name_it(
    connect: Connect, cluster: Cluster, store: VersionStore
) -> None:
    writer, versions = connect(user="writer", tls=True), [store.open(name) for name in store.names()]
    first = push_version(versions[0], writer)
    assert first.num_sent == first.num_bytes
    before = cluster.all_keys()
    second = push_version(versions[1], writer)
    assert second.num_sent == versions[1].tables[0].deltas[0].bytes
    assert second.num_bytes == first.num_bytes + second.num_sent
    delta = f"rh:{versions[1].tables[0].deltas[0].sha256[:32]}"
    assert cluster.all_keys() - before == {delta, f"{delta}:0", f"{delta}:around:0", key_of(versions[1])}
    assert push_version(versions[1], writer).num_sent == 0


def test_the_version_says_what_it_is(connect: Connect, cluster: Cluster, version: Version) -> None:
    push_version(version, connect(user="writer"))
    assert json.loads(cluster.admin(key_of(version), "GET", key_of(version))) == {
        "format": "rankhouse.redis_version",
        "format_version": 1,
        "model": "dlrm",
        "name": version.name,
        "manifest_sha256": version.manifest.sha256,
        "files": [file.sha256 for table in version.tables for file in table.files],
    }


def test_a_push_that_broke_goes_on_where_it_was(connect: Connect, cluster: Cluster, version: Version) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    writer = connect(user="writer")
    with pytest.raises(KeyboardInterrupt):
        push_version(version, writer, on_bytes=stop)
    assert cluster.all_keys()
    assert key_of(version) not in cluster.all_keys(), "what has no key does not exist"
    pushed = push_version(version, writer)
    assert 0 < pushed.num_sent < pushed.num_bytes
    assert key_of(version) in cluster.all_keys()


def test_progress_reaches_the_end(connect: Connect, version: Version) -> None:
    calls: list[tuple[int, int]] = []
    pushed = push_version(version, connect(user="writer"), on_bytes=lambda *call: calls.append(call))
    assert calls[-1] == (pushed.num_bytes, pushed.num_bytes)
    assert calls == sorted(calls)


def test_what_went_is_brought_again(connect: Connect, cluster: Cluster, version: Version, pushed: File) -> None:
    gone = pushed.block_of(0)
    cluster.admin(gone, "DEL", gone)
    assert push_version(version, connect(user="writer")).num_sent == 5458 * pushed.row_bytes


def test_what_somebody_else_wrote_is_found_and_written_anew(
    connect: Connect, cluster: Cluster, version: Version, pushed: File
) -> None:
    key = pushed.block_of(0)
    cluster.admin(key, "SETRANGE", key, 100, "changed")
    assert push_version(version, connect(user="writer")).num_sent == 5458 * pushed.row_bytes
    stored = connect().open_file(pushed.record.sha256)
    assert np.array_equal(stored.read(np.arange(20), row_bytes=pushed.row_bytes), pushed.rows[:20])
    stored.close()


def test_versions_live_as_long_as_they_are_told(connect: Connect, cluster: Cluster, store: VersionStore) -> None:
    writer, versions = connect(user="writer"), [store.open(name) for name in store.names()]
    base, delta = (f"rh:{versions[1].tables[0].files[number].sha256[:32]}" for number in (0, 1))
    push_version(versions[0], writer, ttl_seconds=10 * HOUR)
    assert 9.9 < ttl_of(cluster, key_of(versions[0])) <= 10
    assert 10.9 < ttl_of(cluster, f"{base}:0") <= 11, "an hour more, for those who have it open"
    # A version that shares the base and goes sooner takes nothing with it.
    push_version(versions[1], writer, ttl_seconds=2 * HOUR)
    assert ttl_of(cluster, f"{base}:0") > 10.9
    assert ttl_of(cluster, f"{delta}:0") <= 3
    # One that stays longer keeps what it shares, and nothing else.
    push_version(versions[1], writer, ttl_seconds=20 * HOUR)
    assert all(ttl_of(cluster, key) > 20.9 for key in (base, f"{base}:0", f"{base}:around:0", f"{delta}:0"))
    assert ttl_of(cluster, key_of(versions[0])) <= 10
    push_version(versions[1], writer)
    assert ttl_of(cluster, f"{base}:7") == ttl_of(cluster, key_of(versions[1])) == -1
    push_version(versions[1], writer, ttl_seconds=HOUR)
    assert ttl_of(cluster, f"{base}:7") == -1


def test_rows_that_expired_are_missed_by_name(connect: Connect, cluster: Cluster, pushed: File) -> None:
    stored, key = connect().open_file(pushed.record.sha256), pushed.block_of(0)
    cluster.admin(key, "PEXPIREAT", key, int(1000 * time.time()) + 1)
    time.sleep(0.05)
    with pytest.raises(TierError, match=f"does not have {key}.*its time ended; push the version again"):
        stored.read(np.arange(3), row_bytes=pushed.row_bytes)
    stored.close()


def test_a_key_that_is_something_else_is_refused(connect: Connect, cluster: Cluster, version: Version) -> None:
    cluster.admin(key_of(version), "SET", key_of(version), "something else")
    with pytest.raises(TierError, match=f"{key_of(version)} holds 'something else', which another release wrote"):
        push_version(version, connect(user="writer"))


def test_a_description_of_a_newer_release_is_refused(connect: Connect, cluster: Cluster, pushed: File) -> None:
    document = json.loads(cluster.admin(pushed.key, "GET", pushed.key))
    cluster.admin(pushed.key, "SET", pushed.key, json.dumps({**document, "format_version": 2}))
    with pytest.raises(CorruptFileError, match="has format_version 2, this release reads up to 1"):
        connect().open_file(pushed.record.sha256)


@pytest.mark.parametrize("rows_per_block", [0, 2**29 + 1, 2**62])
def test_a_description_of_impossible_blocks_is_refused(
    connect: Connect, cluster: Cluster, pushed: File, rows_per_block: int
) -> None:
    document = json.loads(cluster.admin(pushed.key, "GET", pushed.key))
    cluster.admin(pushed.key, "SET", pushed.key, json.dumps({**document, "rows_per_block": rows_per_block}))
    with pytest.raises(CorruptFileError, match="blocks of an impossible size"):
        connect().open_file(pushed.record.sha256)


def test_a_version_cannot_live_for_no_time(connect: Connect, version: Version) -> None:
    with pytest.raises(OptionError, match="expected more than 0"):
        push_version(version, connect(user="writer"), ttl_seconds=0)


def test_a_full_server_is_named(connect: Connect, cluster: Cluster, version: Version) -> None:
    servers = [cluster.servers[number] for number in cluster.masters()]
    for server in servers:
        server.admin("CONFIG", "SET", "maxmemory", 1)
    try:
        with pytest.raises(TierError, match=r"127.0.0.1:\d+ answers OOM"):
            push_version(version, connect(user="writer"))
    finally:
        for server in servers:
            server.admin("CONFIG", "SET", "maxmemory", 0)


def test_the_command_line_pushes(cluster: Cluster, store: VersionStore, tmp_path: Path) -> None:
    options = tmp_path / "redis.json"
    options.write_text(json.dumps({"url": "redis://elsewhere", "ca_file": cluster.certificates.ca_file}))
    command = ["version", "push", str(store.path), "--to", cluster.url(tls=True, user="writer"), "--ttl-hours", "5"]
    environment = {"COLUMNS": "200", "WRITER_PASSWORD": WRITER}
    command += ["--options", str(options), "--password-env", "WRITER_PASSWORD"]
    for sent in ("480.9 KiB", "0 B"):
        result = CliRunner(env=environment).invoke(app, command)
        assert result.exception is None, result.exception
        assert re.match(
            rf"{store.names()[1]} of dlrm: 3 files, 4\d\d.\d KiB, of which {sent} were sent and all", result.output
        )
    version = store.open()
    assert 4.9 < ttl_of(cluster, key_of(version)) <= 5


def test_the_command_line_names_what_is_wrong(tmp_path: Path, store: VersionStore) -> None:
    options = tmp_path / "redis.json"
    options.write_text("[]")
    command = ["version", "push", str(store.path), "--to", "redis://127.0.0.1:1", "--options", str(options)]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, OptionError)
    assert f"{options}: expected a JSON object" in str(result.exception)
