"""A way to a server that can be cut, as between two machines."""

import contextlib
import selectors
import socket
import threading
from types import TracebackType


class Link:
    """Passes TCP connections on until it is cut, and again once it is mended. Runs in a thread until the `with` ends.

    Args:
        port: The server's port on this machine.

    Attributes:
        port: Where the link is entered.
    """

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._peers: dict[socket.socket, socket.socket] = {}
        self._is_cut = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="link")

    def cut(self) -> None:
        """Ends all connections, and takes no new ones."""
        self._is_cut.set()

    def mend(self) -> None:
        """Takes connections again."""
        self._is_cut.clear()

    def __enter__(self) -> "Link":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        self._thread.join()
        for one in list(self._peers):
            self._drop(one)
        self._selector.close()
        self._listener.close()

    def _run(self) -> None:
        while not self._is_over.is_set():
            for key, _ in self._selector.select(timeout=0.02):
                if key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._peers:
                    self._pass_on(key.fileobj)
            if self._is_cut.is_set():
                for one in list(self._peers):
                    self._drop(one)

    def _accept(self) -> None:
        one, _ = self._listener.accept()
        if self._is_cut.is_set():
            one.close()
            return
        other = socket.create_connection(("127.0.0.1", self._target))
        self._peers |= {one: other, other: one}
        for each in (one, other):
            self._selector.register(each, selectors.EVENT_READ)

    def _pass_on(self, one: socket.socket) -> None:
        try:
            content = one.recv(1 << 16)
            if content:
                self._peers[one].sendall(content)
                return
        except OSError:
            pass
        self._drop(one)

    def _drop(self, one: socket.socket) -> None:
        other = self._peers.pop(one, None)
        if other is None:
            return
        self._peers.pop(other, None)
        for each in (one, other):
            with contextlib.suppress(KeyError):
                self._selector.unregister(each)
            each.close()
