"""Nodes that say what no node should: each time a failed tier, the node named, soon and in little memory."""

import resource

import pytest

from rankhouse.embedding_cache.errors import TierError
from rankhouse.embedding_cache.redis_client import RedisClient
from tests.embedding_cache.redis_tier.fake_node import Command, FakeNode, bulk, slots

SHA256 = "a" * 64
PLAIN = b"-ERR This instance has cluster support disabled\r\n"


def refusal(node: FakeNode, *, deadline_ms: int = 20_000, counters: dict[str, int] | None = None) -> str:
    """What a client says who opens a file there."""
    with RedisClient(f"redis://127.0.0.1:{node.port}", deadline_ms=deadline_ms) as client:
        with pytest.raises(TierError) as caught:
            client.open_file(SHA256)
        if counters is not None:
            counters.update(client.counters())
    assert f"127.0.0.1:{node.port}" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n", "does not speak Redis' protocol"),
        (b"*1\r\n$-7\r\n", "does not speak Redis' protocol"),
        (b",1.5\r\n", "does not speak Redis' protocol"),
        (b"#t\r\n", "does not speak Redis' protocol"),
        (b"*1000000000\r\n", "gave a reply of 1000000000 elements; expected at most 1048576"),
        (b"*1000000\r\n" * 3, "gave a reply of 2000000 elements"),
        (b"+OK\r\n", "knows of no node that has slots"),
        (b"*1\r\n*2\r\n:0\r\n:16383\r\n", "has a range without nodes"),
        (b"*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\nx\r\n:1\r\n", "has no such slots"),
        (b"*1\r\n*3\r\n:0\r\n:16383\r\n*1\r\n$1\r\nx\r\n", "has a node without address"),
        (b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$1\r\nx\r\n:65536\r\n", "has a node without address"),
        (b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$1", "was silent"),
        (b"", "closed the connection"),
    ],
)
def test_who_answers_by_what_is_no_map_is_named(reply: bytes, message: str) -> None:
    with FakeNode(lambda _: reply) as node:
        # Who is silent is waited for; whatever else is said is read long before a deadline like this one.
        assert message in refusal(node, deadline_ms=300 if message == "was silent" else 20_000)


@pytest.mark.parametrize(
    "reply",
    [
        b"-MOVED\r\n",
        b"-MOVED 127.0.0.1:6379\r\n",
        b"-MOVED 1 \r\n",
        b"-MOVED 1 127.0.0.1\r\n",
        b"-MOVED 1 127.0.0.1:\r\n",
        b"-MOVED 1 127.0.0.1:65536\r\n",
        b"-ASK 1 127.0.0.1:x\r\n",
    ],
)
def test_a_redirection_to_nowhere_is_the_nodes_failure(reply: bytes) -> None:
    with FakeNode(lambda command: PLAIN if command[0] == b"CLUSTER" else reply) as node:
        text = reply[1:-2].decode()
        # The deadline comes before the client has had enough of redirections.
        said = refusal(node, deadline_ms=1000)
        assert f"127.0.0.1:{node.port} answers '{text}', which names no slot and node to go to" in said


def test_a_redirection_in_a_circle_ends() -> None:
    def answer(command: Command) -> bytes:
        return slots(node.port) if command[0] == b"CLUSTER" else b"-MOVED 1 127.0.0.1:%d\r\n" % node.port

    with FakeNode(answer) as node:
        assert "is sent from node to node" in refusal(node)


def test_a_reply_without_end_is_left() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with FakeNode(lambda _: b"$9999999999\r\n" + bytes(200 << 20)) as node:
        assert "gave a reply of more than 67108864 bytes" in refusal(node, deadline_ms=20_000)
    # Beside what is sent here.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < (200 + 200 + 160) << 10


def test_a_reply_too_many_answers_no_other_command() -> None:
    with FakeNode(lambda command: PLAIN + bulk(b"{}") if command[0] == b"CLUSTER" else b"$-1\r\n") as node:
        assert f"does not have file {SHA256}" in refusal(node)


def test_a_wrong_description_is_named() -> None:
    with (
        FakeNode(lambda command: PLAIN if command[0] == b"CLUSTER" else bulk(b"{")) as node,
        RedisClient(f"redis://127.0.0.1:{node.port}", deadline_ms=20_000) as client,
        pytest.raises(Exception, match=f"redis: the description of file {SHA256}"),
    ):
        client.open_file(SHA256)


def test_nodes_that_are_no_longer_named_are_forgotten() -> None:
    maps: list[int] = []

    def answer(command: Command) -> bytes:
        # Ports where nobody listens; and the map is read again and again, until there is no file.
        if command[0] == b"CLUSTER":
            maps.append(10 + 2 * len(maps))
            return slots(node.port, maps[-1], maps[-1] + 1)
        return b"-TRYAGAIN\r\n" if len(maps) < 6 else b"$-1\r\n"

    counters: dict[str, int] = {}
    with FakeNode(answer) as node:
        # A key whose slot the node itself has.
        assert "does not have file" in refusal(node, counters=counters)
    assert counters["refreshes"] > 3
    assert counters["nodes"] == 3
