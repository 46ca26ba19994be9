"""A scoring request whose body is on its way: it holds its place in the gateway until the other half comes."""

import re
import socket
import time
from types import TracebackType
from urllib.parse import urlsplit

import httpx

_FIRST, _SECOND = b'{"candidates": ', b"[{}]}"
_SECONDS = 300.0


class HalfRequest:
    """Sends the first half and, unless told otherwise, waits until the gateway counts the request as in flight."""

    def __init__(self, url: str, *, is_awaited: bool = True) -> None:
        self._url = urlsplit(url)
        self._is_awaited = is_awaited

    def __enter__(self) -> "HalfRequest":
        assert self._url.hostname
        assert self._url.port
        self._socket = socket.create_connection((self._url.hostname, self._url.port), timeout=_SECONDS)
        head = f"POST {self._url.path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(_FIRST + _SECOND)}\r\n\r\n"
        self._socket.sendall(head.encode() + _FIRST)
        deadline = time.monotonic() + _SECONDS
        while self._is_awaited and not self._is_in_flight():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    def finish(self) -> str:
        """Sends the other half and returns the answer."""
        self._socket.sendall(_SECOND)
        return self.read()

    def read(self) -> str:
        """Returns what the gateway answers."""
        return self._socket.recv(65536).decode()

    def _is_in_flight(self) -> bool:
        metrics = httpx.get(f"{self._url.scheme}://{self._url.netloc}/metrics", timeout=_SECONDS).text
        return re.search(r"^rankhouse_requests_in_flight 1.0$", metrics, re.MULTILINE) is not None
