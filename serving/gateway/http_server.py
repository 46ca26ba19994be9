"""HTTP on one port of this process, in the event loop of the rest."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from rankhouse.serving.errors import AddressError
from rankhouse.serving.processes import address

_BACKLOG = 1024
# More than a head may have (settings.py) and what is read at a time, which can hold an earlier request's body too.
_LARGEST_HEAD_BYTES = 1 << 20


class _BoundedHead(HttpToolsProtocol):
    """Closes a connection whose headers do not end: uvicorn keeps them all until then, and only then can we refuse."""

    _head_bytes: int | None = None  # Of a head that is not complete yet.

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._head_bytes > _LARGEST_HEAD_BYTES:
                self.transport.abort()

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        super().on_headers_complete()


class _Server(uvicorn.Server):
    """Uvicorn, which leaves the signals to us: we announce the end before the sockets close."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves an application. Listen, serve and stop it in one event loop.

    Args:
        app: The application.
        what: What it is called where its port is taken: "REST".
        setting: The setting of its port: "PORT".
        grace_seconds: How long what is in flight may take at the end.
    """

    def __init__(self, app: FastAPI, *, what: str, setting: str, grace_seconds: int) -> None:
        config = uvicorn.Config(
            app,
            http=_BoundedHead,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=grace_seconds,
        )
        self._server = _Server(config)
        self._what = what
        self._setting = setting
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None

    def listen(self, host: str, port: int) -> int:
        """Takes a port; nothing is answered yet.

        Args:
            host: The address to listen on.
            port: The port; 0 takes a free one.

        Returns:
            The port.

        Raises:
            AddressError: It is taken, or not ours to take.
        """
        self._socket = listening_socket(host, port, what=self._what, setting=self._setting)
        return int(self._socket.getsockname()[1])

    async def serve(self) -> None:
        """Answers from now on; call `listen` before it."""
        assert self._socket is not None
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        while not self._server.started and not self._serving.done():
            await asyncio.sleep(0.005)

    async def stop(self) -> None:
        """Answers what is in flight and gives the port back; harmless where nothing began."""
        self._server.should_exit = True
        if self._serving is not None:
            await self._serving
        elif self._socket is not None:
            self._socket.close()


def listening_socket(host: str, port: int, *, what: str = "REST", setting: str = "PORT") -> socket.socket:
    """Listens on a port.

    Raises:
        AddressError: It is taken, or not ours to take.
    """
    # asyncio turns Nagle's algorithm off only where the protocol is named; with it, answers come 40 ms late.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as exc:
        listener.close()
        raise AddressError(taken(host, port, what, setting) + f" ({exc.strerror})") from exc
    return listener


def taken(host: str, port: int, what: str, setting: str) -> str:
    """Says that a port cannot be listened on."""
    return (
        f"{what} cannot listen on {address(host, port)}; free the port, or set RANKHOUSE_{setting} (0 takes a free one)"
    )
