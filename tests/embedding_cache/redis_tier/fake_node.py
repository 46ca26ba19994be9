"""A node that answers what a test wants: what no real one says, and where clients must not break."""

import socket
import threading
from collections.abc import Callable
from types import TracebackType

Command = list[bytes]


def bulk(*texts: bytes) -> bytes:
    """Texts as a node sends them."""
    return b"".join(b"$%d\r\n%s\r\n" % (len(text), text) for text in texts)


def slots(*ports: int) -> bytes:
    """What CLUSTER SLOTS gives where nodes on 127.0.0.1 share the slots."""
    bounds = [16384 * number // len(ports) for number in range(len(ports) + 1)]
    ranges = (
        b"*3\r\n:%d\r\n:%d\r\n*2\r\n%s:%d\r\n" % (first, end - 1, bulk(b"127.0.0.1"), port)
        for first, end, port in zip(bounds, bounds[1:], ports, strict=False)
    )
    return b"*%d\r\n" % len(ports) + b"".join(ranges)


class FakeNode:
    """Listens on 127.0.0.1, and answers each command as `answer` says; b"" ends the connection. Use it with `with`.

    Args:
        answer: Gives the bytes that are sent for a command; several threads call it.
    """

    def __init__(self, answer: Callable[[Command], bytes]) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> "FakeNode":
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing a socket wakes nobody who waits for it.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(20)
        self._listener.close()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue  # The client went first.
        for thread in self._threads:
            thread.join(20)
        for connection in self._connections:
            connection.close()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection.makefile("rb") as commands:
                while line := commands.readline():
                    command = []
                    for _ in range(int(line[1:])):
                        command.append(commands.read(int(commands.readline()[1:]) + 2)[:-2])
                    reply = self._answer(command)
                    if not reply:
                        connection.shutdown(socket.SHUT_RDWR)
                        return
                    connection.sendall(reply)
        except (OSError, ValueError):
            return  # The client went, or we are being closed.
