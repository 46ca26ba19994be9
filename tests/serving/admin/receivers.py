"""Somebody who takes webhooks: a real HTTP server, which can refuse, hang and remember."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


class Receiver:
    """Takes POSTs on a free port until the `with` ends.

    Attributes:
        taken: The events that it has answered 2xx for, in order.
        headers: The headers of each.
        bodies: The bytes of each.
        statuses: What to answer next; 204 once it is empty.
        num_calls: All calls, refused ones too.
    """

    def __init__(self, *statuses: int, port: int = 0) -> None:
        self.taken: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.statuses = list(statuses)
        self.num_calls = 0
        self._arrived = threading.Condition()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                with receiver._arrived:
                    receiver.num_calls += 1
                    status = receiver.statuses.pop(0) if receiver.statuses else 204
                    if status < 300:
                        receiver.taken.append(json.loads(body))
                        receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
                        receiver.bodies.append(body)
                    receiver._arrived.notify_all()
                self.send_response(status)
                if status in (301, 302):
                    self.send_header("location", "/elsewhere")
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/events"

    def wait(self, *, taken: int = 0, calls: int = 0) -> None:
        """Waits until so many events were taken, and so many calls made."""
        with self._arrived:
            is_there = self._arrived.wait_for(lambda: len(self.taken) >= taken and self.num_calls >= calls, 300.0)
        assert is_there, f"{len(self.taken)} of {taken} events, {self.num_calls} of {calls} calls"

    def wait_for(self, kind: str, number: int) -> None:
        """Waits until so many different events of a kind were taken."""

        def is_there() -> bool:
            return len({event["number"] for event in self.taken if event["kind"] == kind}) >= number

        with self._arrived:
            assert self._arrived.wait_for(is_there, 300.0), self.taken

    def __enter__(self) -> "Receiver":
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
