"""A cluster that changes while it is read: slots that move, nodes that stop, keys that go."""

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import pytest

from rankhouse.embedding_cache.errors import TierError
from rankhouse.embedding_cache.format.version import Version
from rankhouse.embedding_cache.redis_client import RedisClient, StoredFile
from rankhouse.embedding_cache.redis_push import push_version
from tests.embedding_cache.redis_tier.conftest import NUM_ROWS, File
from tests.embedding_cache.redis_tier.servers import ADMIN, Cluster, Server, until

Connect = Callable[..., RedisClient]
ALL = np.arange(0, NUM_ROWS, 7)


def id_of(server: Server) -> str:
    return str(server.admin("CLUSTER", "MYID").decode())


def is_same(stored: StoredFile, file: File, rows: npt.NDArray[np.int64] = ALL, **options: int) -> bool:
    return np.array_equal(stored.read(rows, row_bytes=file.row_bytes, **options), file.rows[rows])


@contextlib.contextmanager
def migrating(cluster: Cluster, key: str) -> Iterator[Callable[[], None]]:
    """Moves a slot to another master: key first. Calling what it gives ends the move; it is moved back at the end."""
    slot, source_number = cluster.slot_of(key), cluster.nodes_of(key)[0]
    target_number = next(number for number in cluster.masters() if number != source_number)

    def move(source: Server, target: Server) -> None:
        target.admin("CLUSTER", "SETSLOT", slot, "IMPORTING", id_of(source))
        source.admin("CLUSTER", "SETSLOT", slot, "MIGRATING", id_of(target))
        keys = source.admin("CLUSTER", "GETKEYSINSLOT", slot, 100)
        source.admin("MIGRATE", "127.0.0.1", target.tls_port, "", 0, 60_000, "AUTH", ADMIN, "KEYS", *keys)

    def finish(source: Server, target: Server) -> None:
        for server in (target, source, *cluster.servers[:3]):
            if server in (cluster.servers[number] for number in cluster.masters()):
                server.admin("CLUSTER", "SETSLOT", slot, "NODE", id_of(target))
        # A client may ask anybody for the map, and would be sent on once more by who has not heard of it yet.
        cluster.await_owner(slot, cluster.servers.index(target))

    source, target = cluster.servers[source_number], cluster.servers[target_number]
    move(source, target)
    try:
        yield lambda: finish(source, target)
    finally:
        finish(source, target)
        move(target, source)
        finish(target, source)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_slots_that_move_are_followed(connect: Connect, cluster: Cluster, pushed: File, tls: bool) -> None:
    client = connect(tls=tls)
    stored = client.open_file(pushed.record.sha256)
    assert is_same(stored, pushed)
    with migrating(cluster, pushed.block_of(0)) as finish:
        assert is_same(stored, pushed)
        assert client.counters()["asked"] > 0, "the key's new node is asked, once for each command"
        assert client.counters()["moved"] == 0
        finish()
        assert is_same(stored, pushed)
        moved = client.counters()["moved"]
        assert moved > 0, "and is known from then on"
        assert is_same(stored, pushed)
        assert client.counters()["moved"] == moved
    assert is_same(stored, pushed)
    stored.close()


def test_a_push_goes_on_while_a_slot_moves(connect: Connect, cluster: Cluster, version: Version, file: File) -> None:
    writer = connect(user="writer")
    push_version(version, writer)
    with migrating(cluster, file.block_of(0)) as finish:
        assert push_version(version, writer).num_sent == 0
        cluster.servers[cluster.masters()[0]].admin("PING")
        finish()
        assert push_version(version, writer).num_sent == 0


def test_a_silent_master_is_hedged_by_its_replica(connect: Connect, cluster: Cluster, pushed: File) -> None:
    client = connect(hedge_ms=20, breaker_failures=1000)
    stored = client.open_file(pushed.record.sha256)
    master, _ = cluster.nodes_of(pushed.block_of(0))
    assert is_same(stored, pushed)
    with cluster.servers[master].paused():
        assert is_same(stored, pushed)
        assert client.counters()["hedges"] > 0
        for _ in range(3):
            assert is_same(stored, pushed)
    # Its late replies are nobody's.
    for _ in range(3):
        assert is_same(stored, pushed)
    stored.close()


def test_a_client_starts_while_a_node_is_silent(connect: Connect, cluster: Cluster, pushed: File) -> None:
    master, _ = cluster.nodes_of(pushed.block_of(0))
    with cluster.servers[master].paused():
        stored = connect(tls=True, hedge_ms=20).open_file(pushed.record.sha256)
        assert is_same(stored, pushed)
        stored.close()


def test_without_any_answer_the_deadline_ends_it(connect: Connect, cluster: Cluster, pushed: File) -> None:
    stored = connect(hedge_ms=20).open_file(pushed.record.sha256)
    assert is_same(stored, pushed)
    nodes = [cluster.nodes_of(pushed.block_of(5458 * block)) for block in range(7)]
    master, replica = (cluster.servers[number] for number in nodes[0])
    elsewhere = next(block for block, found in enumerate(nodes) if found != nodes[0])
    with master.paused(), replica.paused():
        with pytest.raises(TierError, match=r"answers did not come by the deadline: no answer from 127\.0\.0\.1"):
            stored.read(ALL, row_bytes=pushed.row_bytes, deadline_ms=200)
        assert is_same(stored, pushed, 5458 * elsewhere + np.arange(50)), "other nodes are not concerned"
    assert is_same(stored, pushed)
    stored.close()


def test_nodes_that_fail_often_are_left_alone_until_they_answer(
    connect: Connect, cluster: Cluster, pushed: File
) -> None:
    first_block = np.arange(5000)  # Only these two nodes are asked, so that no other one can be late.
    for_long, for_short = (connect(breaker_failures=3, breaker_ms=breaker_ms) for breaker_ms in (600_000, 1))
    files = [client.open_file(pushed.record.sha256) for client in (for_long, for_short)]
    assert all(is_same(stored, pushed) for stored in files)
    master, replica = (cluster.servers[number] for number in cluster.nodes_of(pushed.block_of(0)))

    def answers() -> bool:
        with contextlib.suppress(TierError):
            return is_same(files[1], pushed)
        return False

    with master.paused(), replica.paused():
        for stored in files:
            for _ in range(6):  # by the master, then by its replica
                with pytest.raises(TierError, match="by the deadline"):
                    stored.read(first_block, row_bytes=pushed.row_bytes, deadline_ms=50)
        assert for_long.counters()["breakers_opened"] == 2
        message = f"{master.name} failed 3 times in a row, the last time: no answer by the deadline; .* {replica.name}"
        with pytest.raises(TierError, match=message):
            files[0].read(ALL, row_bytes=pushed.row_bytes)
    until("the breakers close", answers)
    for stored in files:
        stored.close()


def test_a_dead_master_is_replaced_by_its_replica(
    connect: Connect, cluster: Cluster, version: Version, file: File
) -> None:
    writer = connect(user="writer")
    push_version(version, writer)
    reader = connect(hedge_ms=20)
    stored = reader.open_file(file.record.sha256)
    number, replica_number = cluster.nodes_of(file.block_of(0))
    master, replica = cluster.servers[number], cluster.servers[replica_number]
    master.kill()
    try:
        assert is_same(stored, file), "replicas have the same rows"
        with pytest.raises(TierError, match=f"{master.name} cannot be connected to"):
            push_version(version, writer, patience_seconds=0.3)
        replica.admin("CLUSTER", "FAILOVER", "TAKEOVER")
        assert push_version(version, writer).num_sent == 0
        assert is_same(stored, file)
    finally:
        master.start()
        cluster.await_whole()
    assert is_same(stored, file)
    stored.close()


def test_an_evicted_block_is_named_and_never_zeros(connect: Connect, cluster: Cluster, pushed: File) -> None:
    stored, gone = connect().open_file(pushed.record.sha256), pushed.block_of(6000)
    cluster.admin(gone, "DEL", gone)
    with pytest.raises(TierError, match=rf"does not have {gone}, rows 5458 to 10915 of file {pushed.record.sha256}"):
        stored.read(ALL, row_bytes=pushed.row_bytes)
    assert is_same(stored, pushed, np.arange(5458))
    stored.close()


def test_a_block_cut_short_is_no_row(connect: Connect, cluster: Cluster, pushed: File) -> None:
    stored, key = connect().open_file(pushed.record.sha256), pushed.block_of(0)
    cluster.admin(key, "SET", key, b"\0" * 100)
    with pytest.raises(TierError, match=f"does not have {key}"):
        stored.read(np.array([5000]), row_bytes=pushed.row_bytes)
    stored.close()


def test_evicted_vocabularies_of_a_delta_are_named(connect: Connect, cluster: Cluster, pushed: File) -> None:
    key = f"{pushed.key}:around:0"
    cluster.admin(key, "DEL", key)
    stored = connect().open_file(pushed.record.sha256)
    with pytest.raises(TierError, match=f"does not have {key}, the bytes around the rows"):
        stored.read_around(pushed.record.bytes - pushed.rows.nbytes)
    stored.close()
