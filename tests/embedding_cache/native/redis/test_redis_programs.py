"""The client of Redis under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer."""

import json
import random
import re
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.embedding_cache.redis_tier.fake_node import Command, FakeNode, bulk, slots
from tests.embedding_cache.redis_tier.servers import ADMIN, Certificates, Server, new_server
from tests.sanitized import ROOT, SanitizedLibraries, run

HERE = Path(__file__).parent
NATIVE = ROOT / "embedding_cache/native"
# What nodes say to the client, and what is made of it below.
REPLIES = (
    b"+OK\r\n",
    b":7\r\n",
    b"$-1\r\n",
    bulk(b'{"format": "rankhouse.redis_file"}'),
    b"-MOVED 1 127.0.0.1:1\r\n",
    b"-ASK 1 127.0.0.1:1\r\n",
    b"-TRYAGAIN\r\n",
    b"-LOADING\r\n",
    b"-ERR This instance has cluster support disabled\r\n",
    b"*1000000000\r\n",
    b"$99999999999\r\n",
    b"",
)

pytestmark = pytest.mark.timeout(1500)


@pytest.fixture(scope="module")
def program(sanitized: SanitizedLibraries, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sanitized.program([HERE / "client.cc"], tmp_path_factory.mktemp("client"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = new_server(tmp_path / "node", Certificates.make(tmp_path), is_cluster=False)
    server.start()
    yield server
    server.kill()


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_rows_are_read_while_connections_break(
    program: Path, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    monkeypatch.setenv("ADMIN_PASSWORD", ADMIN)
    (tmp_path / "file").write_bytes(random.Random(1).randbytes(100 + 24 * 20_000 + 7))
    options: dict[str, str | int] = {"password_env": "ADMIN_PASSWORD", "deadline_ms": 20_000}
    options["breaker_failures"] = 10**6
    if tls:
        options |= {"url": f"rediss://127.0.0.1:{server.tls_port}", "ca_file": str(tmp_path / "ca.pem")}
    else:
        options["url"] = f"redis://{server.name}"
    is_over = threading.Event()
    killed: list[int] = []

    def kill() -> None:
        # Who has written something knows the nodes: without that a client gives up at once. And connections that are
        # ended before they could bring anything, as on a slow machine, would never get on.
        done = 0
        while not is_over.wait(0.05):
            if server.admin("DBSIZE") and num_done(server) >= done + 20:
                killed.append(server.admin("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))
                done = num_done(server)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        run(program, "read", json.dumps(options), tmp_path / "file", "3")
    finally:
        is_over.set()
        killer.join(20)
    assert sum(killed) > 0


def num_done(server: Server) -> int:
    """How many of the commands that write and read files a server has done."""
    calls = re.findall(rb"cmdstat_(?:get|getrange|set|strlen):calls=(\d+)", server.admin("INFO", "commandstats"))
    return sum(map(int, calls))


def test_nodes_may_say_anything(program: Path) -> None:
    dice, lock = random.Random(2), threading.Lock()

    def answer(command: Command) -> bytes:
        with lock:
            reply = dice.choice(REPLIES)
            if command[0] == b"CLUSTER" and dice.random() < 0.7:
                reply = slots(node.port)
            if reply and dice.random() < 0.3:
                at = dice.randrange(len(reply))
                reply = reply[:at] + dice.choice((b"", b"*", b"-1", dice.randbytes(1))) + reply[at + 1 :]
        return reply

    with FakeNode(answer) as node:
        url = f"redis://127.0.0.1:{node.port}"
        total: Counter[str] = Counter()
        # A slow machine needs more time to get any answer.
        for deadline_ms in (30, 300, 3000):
            options = json.dumps({"url": url, "deadline_ms": deadline_ms})
            counters = json.loads(run(program, "refuse", options, "400" if deadline_ms == 30 else "40"))
            assert counters["nodes"] < 100
            total.update(counters)
            if total["commands"] > 20 and total["moved"] > 0:
                return
    pytest.fail(f"the nodes were hardly asked: {total}")


def test_a_name_server_that_is_silent_keeps_nobody(program: Path, server: Server) -> None:
    server.admin("CONFIG", "SET", "requirepass", "")
    server.admin("ACL", "SETUSER", "default", "nopass")
    run(program, "names", str(server.port))


def test_damaged_replies_are_refused_or_read_within_their_bounds(tmp_path: Path) -> None:
    checked = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1", "-O1", "-std=c++17", "-Werror"]
    sources = [HERE / "fuzz_replies.cc", NATIVE / "redis/resp.cc"]
    command = ["c++", *checked, "-Wall", "-Wextra", f"-I{NATIVE}", *sources, "-lhiredis", "-o", tmp_path / "fuzz"]
    subprocess.run(command, check=True, timeout=300)
    found, refused, _ = map(int, re.findall(r"\d+", run(tmp_path / "fuzz", "1", "200000")))
    assert found > 100_000
    assert refused > 10_000


def test_every_function_is_called() -> None:
    declared = set(re.findall(r"RH_API \w+ (rh_\w+)\(", (NATIVE / "include/rankhouse/redis.h").read_text()))
    called = set(re.findall(r"\b(rh_\w+)\(", (HERE / "client.cc").read_text()))
    assert declared - called == {"rh_redis_push_version"}, "which tests/embedding_cache/redis_tier call"
