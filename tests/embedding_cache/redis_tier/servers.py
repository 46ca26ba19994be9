"""Real Redis servers on 127.0.0.1, with TLS and users: a cluster of three masters and their replicas, or one alone."""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

SECONDS = 300  # for whatever must become true
ADMIN, READER, WRITER = "admin-secret", "reader-secret", "writer-secret"
# What docs/versions.md tells users to allow.
READER_MAY = "~rh:* +get +getrange +cluster|slots +readonly +asking"
WRITER_MAY = "~rh:* +get +set +strlen +pexpireat +persist +cluster|slots +asking +ping +wait"
USERS = f"""\
user default on >{ADMIN} ~* &* +@all
user reader on >{READER} {READER_MAY}
user writer on >{WRITER} {WRITER_MAY}
"""


def until(what: str, is_true: Callable[[], bool]) -> None:
    """Waits for something, and fails the test where it does not come."""
    end = time.monotonic() + SECONDS
    while not is_true():
        if time.monotonic() > end:
            pytest.fail(f"after {SECONDS} s still not: {what}")
        time.sleep(0.02)


class Admin:
    """A plain connection of the administrator's, and just enough of the protocol."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        self._file = self._socket.makefile("rb")
        self("AUTH", ADMIN)

    def __call__(self, *arguments: str | int | bytes) -> Any:
        parts = [item if isinstance(item, bytes) else str(item).encode() for item in arguments]
        lines = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
        self._socket.sendall(b"*%d\r\n%s" % (len(parts), lines))
        reply = self._read()
        assert not isinstance(reply, Exception), f"{arguments}: {reply}"
        return reply

    def _read(self) -> Any:
        line = self._file.readline()
        if not line:
            raise ConnectionError("the server went")
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else self._file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return [self._read() for _ in range(int(rest))]
        if kind == b":":
            return int(rest)
        return RuntimeError(rest.decode()) if kind == b"-" else rest

    def close(self) -> None:
        self._file.close()
        self._socket.close()


@dataclass
class Server:
    """A redis-server."""

    folder: Path
    port: int
    tls_port: int
    arguments: tuple[str, ...]
    process: subprocess.Popen[bytes] | None = None
    _admin: Admin | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(("redis-server", *self.arguments), cwd=self.folder, stdout=log, stderr=log)
        until(f"{self.name} answers: see {self.folder}/log", self._answers)

    def _answers(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            pytest.fail(f"{self.name} ended at once: {(self.folder / 'log').read_text()[-1000:]}")
        try:
            return bool(self.admin("PING") == b"PONG")
        except (OSError, AssertionError):
            self._forget()
            return False

    def admin(self, *arguments: str | int | bytes) -> Any:
        if self._admin is None:
            self._admin = Admin(self.port)
        try:
            return self._admin(*arguments)
        except OSError:
            self._forget()
            raise

    def _forget(self) -> None:
        if self._admin is not None:
            self._admin.close()
        self._admin = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._forget()
        if self.process is not None:
            self.process.kill()
            self.process.wait(SECONDS)
        self.process = None


@dataclass(frozen=True)
class Certificates:
    """Files of PEM: who signs, the servers', somebody else who signs, and a client's of each."""

    folder: Path

    @property
    def ca_file(self) -> str:
        return str(self.folder / "ca.pem")

    @property
    def other_ca_file(self) -> str:
        return str(self.folder / "other.pem")

    def client(self, signer: str) -> dict[str, str]:
        """The options of a client with a certificate that `signer`, "ca" or "other", signed."""
        files = {"certificate_file": f"client-of-{signer}.pem", "key_file": f"client-of-{signer}.key"}
        return {option: str(self.folder / file) for option, file in files.items()}

    @classmethod
    def make(cls, folder: Path) -> "Certificates":
        def openssl(*arguments: str) -> None:
            subprocess.run(("openssl", *arguments), cwd=folder, check=True, capture_output=True, timeout=SECONDS)

        new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        for name in ("ca", "other"):
            openssl("req", "-x509", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:redis.test\n")
        openssl("req", *new_key, "-keyout", "server.key", "-out", "server.csr", "-subj", "/CN=server")
        openssl(
            *("x509", "-req", "-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-out", "server.pem", "-extfile", "names"),
        )
        for signer in ("ca", "other"):
            name = f"client-of-{signer}"
            openssl("req", *new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", "/CN=client")
            signed_by = ("-CA", f"{signer}.pem", "-CAkey", f"{signer}.key", "-CAcreateserial")
            openssl("x509", "-req", "-in", f"{name}.csr", *signed_by, "-out", f"{name}.pem")
        return cls(folder)


class Cluster:
    """Six nodes: masters 0 to 2, and their replicas 3 to 5. Each has a plain port and one for TLS."""

    def __init__(self, servers: list[Server], certificates: Certificates) -> None:
        self.servers, self.certificates = servers, certificates

    def url(self, *, tls: bool = False, user: str = "reader", nodes: tuple[int, ...] = (0, 1, 2, 3, 4, 5)) -> str:
        """All nodes, or some, as entry points."""
        ports = [self.servers[node].tls_port if tls else self.servers[node].port for node in nodes]
        return f"redis{'s' if tls else ''}://{user}@" + ",".join(f"127.0.0.1:{port}" for port in ports)

    def masters(self) -> list[int]:
        """The numbers of the nodes that have slots now."""
        return sorted({self._number(found[2]) for found in self._alive().admin("CLUSTER", "SLOTS")})

    def slot_of(self, key: str) -> int:
        return int(self._alive().admin("CLUSTER", "KEYSLOT", key))

    def nodes_of(self, key: str) -> tuple[int, int]:
        """The numbers of the master and the replica that have the key's slot."""
        slot = self.slot_of(key)
        for first, last, *nodes in self._alive().admin("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return self._number(nodes[0]), self._number(nodes[1])
        raise AssertionError(f"nobody has slot {slot}")

    def admin(self, key: str, *arguments: str | int | bytes) -> Any:
        """Does a command on the master that has a key."""
        return self.servers[self.nodes_of(key)[0]].admin(*arguments)

    def all_keys(self) -> set[str]:
        return {key.decode() for node in self.masters() for key in self.servers[node].admin("KEYS", "*")}

    def clear(self) -> None:
        for node in self.masters():
            self.servers[node].admin("FLUSHALL")

    def await_whole(self) -> None:
        """Waits until all nodes know each other as they are; from then on none takes another for dead by itself."""
        for server in self.servers:
            until("all nodes see all slots and replicas", partial(_is_whole, server))
        for server in self.servers:  # A test that stops a node says itself who takes its place.
            server.admin("CONFIG", "SET", "cluster-node-timeout", 600_000)

    def await_owner(self, slot: int, owner: int) -> None:
        """Waits until every node, replicas too, sends clients to a node for a slot."""
        for server in self.servers:
            until(f"{server.name} knows who has slot {slot}", partial(self._names, server, slot, owner))

    def _names(self, server: Server, slot: int, owner: int) -> bool:
        ranges = server.admin("CLUSTER", "SLOTS")
        return any(first <= slot <= last and self._number(node) == owner for first, last, node, *_ in ranges)

    def _alive(self) -> Server:
        return next(server for server in self.servers if server.process is not None)

    def _number(self, node: list[Any]) -> int:
        return next(number for number, server in enumerate(self.servers) if server.port == node[1])


def free_ports(count: int) -> list[int]:
    """Gives ports that nobody has now, and that no connection is given before a server has them.

    Connections get theirs from 32768 on, and six nodes make many before the last of them listens. Of the processes of
    a test run each has ports of its own.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = range(10_000 + worker, 32_768, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        for port in random.SystemRandom().sample(own, 1000):
            each = stack.enter_context(contextlib.closing(socket.socket()))
            with contextlib.suppress(OSError):
                each.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == count:
                return found
    raise AssertionError(f"of 1000 ports, {len(found)} were free; expected {count}")


def new_server(
    folder: Path, certificates: Certificates, *, is_cluster: bool, asks_for_certificates: bool = False
) -> Server:
    folder.mkdir()
    port, tls_port, bus_port = free_ports(3)
    files, clients = certificates.folder, "yes" if asks_for_certificates else "optional"
    (folder / "users").write_text(USERS)
    arguments = [
        *("--port", str(port), "--tls-port", str(tls_port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"),
        *("--tls-cert-file", str(files / "server.pem"), "--tls-key-file", str(files / "server.key")),
        *("--tls-ca-cert-file", str(files / "ca.pem"), "--tls-auth-clients", clients),
        *("--aclfile", str(folder / "users"), "--masterauth", ADMIN, "--repl-diskless-sync-delay", "0"),
        *("--repl-ping-replica-period", "1"),  # A replica counts when it got something.
    ]
    if is_cluster:
        # TLS between the nodes makes them announce both ports.
        arguments += [
            *("--cluster-enabled", "yes", "--cluster-port", str(bus_port), "--cluster-node-timeout", "3000"),
            *("--tls-cluster", "yes", "--tls-replication", "yes", "--cluster-config-file", str(folder / "nodes")),
        ]
    return Server(folder, port, tls_port, tuple(arguments))


@contextlib.contextmanager
def redis_cluster(folder: Path) -> Iterator[Cluster]:
    """Starts a cluster, and ends it."""
    assert shutil.which("redis-server"), "the tests need redis-server: run `make setup`"
    certificates = Certificates.make(folder)
    servers = [new_server(folder / f"node{number}", certificates, is_cluster=True) for number in range(6)]
    try:
        for server in servers:
            server.start()
        _join(servers)
        cluster = Cluster(servers, certificates)
        cluster.await_whole()
        yield cluster
    finally:
        for server in servers:
            server.kill()


def _join(servers: list[Server]) -> None:
    bounds = (0, 5461, 10923, 16384)
    for number, server in enumerate(servers):
        server.admin("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        if number < 3:
            server.admin("CLUSTER", "ADDSLOTSRANGE", bounds[number], bounds[number + 1] - 1)
    for first, server in combinations(servers, 2):
        bus_port = server.arguments[server.arguments.index("--cluster-port") + 1]
        first.admin("CLUSTER", "MEET", "127.0.0.1", server.tls_port, bus_port)
    for server in servers:
        until("all nodes know each other", partial(_knows_all, server))
    for number in range(3):
        master = servers[number].admin("CLUSTER", "MYID")
        servers[number + 3].admin("CLUSTER", "REPLICATE", master)


def _knows_all(server: Server) -> bool:
    nodes = server.admin("CLUSTER", "NODES")
    return nodes.count(b"connected") == 6 and b"handshake" not in nodes and b"disconnected" not in nodes


def _is_whole(server: Server) -> bool:
    ranges = server.admin("CLUSTER", "SLOTS")
    is_ok = b"cluster_state:ok" in server.admin("CLUSTER", "INFO")
    return is_ok and len(ranges) >= 3 and all(len(found) == 4 for found in ranges)
