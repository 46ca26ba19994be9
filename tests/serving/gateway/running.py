"""A gateway in a thread of the test's process: real sockets, a real event loop."""

import asyncio
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

from rankhouse.serving.control.state_stores import open_state_store
from rankhouse.serving.gateway.served_model import ServedModel
from rankhouse.serving.gateway.server import Gateway
from rankhouse.serving.gateway.settings import Settings
from tests.serving.small_version import MODEL

START_SECONDS = 300.0


class RunningGateway:
    """Serves on free ports until the `with` ends. `settings` replace the defaults."""

    def __init__(self, store: Path, triton_url: str, **settings: Any) -> None:
        defaults = {"port": 0, "grpc_port": 0, "request_timeout_seconds": 60.0}
        self._settings = Settings(store=store, model=MODEL, triton_url=triton_url, **{**defaults, **settings})
        self._is_running = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "RunningGateway":
        self._thread.start()
        assert self._is_running.wait(START_SECONDS)
        if self._error:
            self._thread.join()
            raise self._error
        if self._settings.state_url:
            self._wait_until_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(START_SECONDS)
        assert not self._thread.is_alive()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while httpx.get(f"{self.url}/readyz", timeout=START_SECONDS).status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        settings = self._settings
        try:
            state_store = open_state_store(settings.state_url) if settings.state_url else None
            model = ServedModel.open(settings.store, settings.model, settings.version)
            gateway = Gateway(settings, model, state_store)
            await gateway.start()
        except BaseException as exc:
            self._error = exc
            self._is_running.set()
            return
        self.url = f"http://{settings.host}:{gateway.port}"
        self.score_url = f"{self.url}/v1/models/{MODEL}/score"
        self.grpc_address = f"{settings.host}:{gateway.grpc_port}"
        self.admin_url = f"http://{settings.host}:{gateway.admin_port}"
        self._is_running.set()
        await self._end.wait()
        await gateway.stop()
