"""Servers of objects for tests, as processes of their own: what a client sees of them is what it sees of a storage."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.embedding_cache.redis_tier.servers import free_ports

KEYS = {"AWS_ACCESS_KEY_ID": "RANKHOUSETESTS", "AWS_SECRET_ACCESS_KEY": "only-for-tests"}


@contextmanager
def rclone(folder: Path) -> Iterator[str]:
    """Starts rclone's S3 server over a folder: its sub-folders are buckets. It ignores `If-None-Match`.

    Yields:
        The server's address.
    """
    program = shutil.which("rclone", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program, "rclone is not installed; `make setup` installs it"
    keys = f"{KEYS['AWS_ACCESS_KEY_ID']},{KEYS['AWS_SECRET_ACCESS_KEY']}"
    [port] = free_ports(1)
    command = [
        program,
        "serve",
        "s3",
        "--addr",
        f"127.0.0.1:{port}",
        "--auth-key",
        keys,
        "--config",
        os.devnull,
        folder,
    ]
    with _running(command, port, log=folder.with_suffix(".log")) as address:
        yield address


@contextmanager
def moto(folder: Path) -> Iterator[str]:
    """Starts moto's S3 server, which keeps objects in memory and honours `If-None-Match`.

    Yields:
        The server's address.
    """
    [port] = free_ports(1)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with _running(command, port, log=folder.with_suffix(".log")) as address:
        yield address


@contextmanager
def unreliable(address: str, *, breaks: Callable[[int], bool]) -> Iterator[str]:
    """Starts a relay in front of a server that resets some connections after it passed the request on.

    Args:
        address: The server's address.
        breaks: Says of each connection, by its number from 0, whether the client loses it instead of an answer.

    Yields:
        The relay's address.
    """
    host, port = address.removeprefix("http://").split(":")
    listener = socket.create_server(("127.0.0.1", 0))
    number = -1

    def serve() -> None:
        nonlocal number
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            number += 1
            threading.Thread(target=_relay, args=(client, (host, int(port)), breaks(number)), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield "http://{}:{}".format(*listener.getsockname())
    finally:
        listener.shutdown(socket.SHUT_RDWR)  # Closing a socket wakes nobody who waits for it.
        listener.close()


def _relay(client: socket.socket, server: tuple[str, int], is_broken: bool) -> None:
    with client, socket.create_connection(server) as upstream:

        def pump(source: socket.socket, target: socket.socket, *, drop: bool) -> None:
            try:
                while data := source.recv(1 << 16):
                    if drop:
                        break
                    target.sendall(data)
            except OSError:
                pass
            for side in (client, upstream):
                with contextlib.suppress(OSError):
                    side.shutdown(socket.SHUT_RDWR)

        answers = threading.Thread(target=pump, args=(upstream, client), kwargs={"drop": is_broken}, daemon=True)
        answers.start()
        pump(client, upstream, drop=False)
        answers.join()


@contextmanager
def _running(command: list[object], port: int, *, log: Path) -> Iterator[str]:
    with open(log, "wb") as output:
        process = subprocess.Popen([str(part) for part in command], stdout=output, stderr=output)
    try:
        _wait(process, port, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(120)


def _wait(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, f"the server stopped: {log.read_text()}"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(f"the server does not answer: {log.read_text()}")
