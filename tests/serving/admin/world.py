"""A model's state in a real store, replicas that say what they have, and an admin port on a real socket."""

import asyncio
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import numpy as np

from rankhouse.serving.admin.app import create_admin_app
from rankhouse.serving.admin.catalog import VersionCatalog
from rankhouse.serving.admin.commands import Commands
from rankhouse.serving.admin.keys import KeyRing, read_key_file, write_key_file
from rankhouse.serving.admin.operations import Admin
from rankhouse.serving.admin.overview import Reader
from rankhouse.serving.analysis.summary import Summary
from rankhouse.serving.control.model_state import ModelState, ReplicaReport
from rankhouse.serving.control.state_store import StateStore, summary_key
from rankhouse.serving.gateway.http_server import HttpServer

MODEL = "small"
V1, V2, V3, V4 = "000001-aaaaaaaa", "000002-bbbbbbbb", "000003-cccccccc", "000004-dddddddd"
SPEC = {"candidate": V2, "steps": [{"weight": 5, "pause": "10m"}, {"weight": 100}]}
START_SECONDS = 300.0


def has_stable(store: StateStore, version: str = V1, **more: Any) -> None:
    """Gives the model its first state."""
    number = int(version[:6])
    store.create(ModelState(model=MODEL, stable=version, floor=number, salt="salt", **more))


def reports(store: StateStore, *replicas: str, loaded: Sequence[str] = (V1, V2), **more: Any) -> None:
    """Has replicas say what they have loaded."""
    for replica in replicas or ("one",):
        report = ReplicaReport(replica=replica, model=MODEL, at=time.time(), loaded=tuple(loaded), **more)
        store.report(report, ttl_seconds=3600.0)


def publish(
    store: StateStore, rollout: str, *, stable: int, candidate: int, failures: int = 0, version: str = V2
) -> None:
    """Has a replica publish so many answers of both arms; `failures` of the candidate's are errors."""
    arms = {("stable", V1): (stable, 0), ("candidate", version): (candidate, failures)}
    contents = {}
    for (arm, name), (num_answers, num_failures) in arms.items():
        summary = Summary()
        for number in range(num_answers):
            status = 500 if number < num_failures else 200
            scores = np.full(4, 0.5, np.float32) if status == 200 else None
            summary.observe_answer(status, 0.002, scores)
        contents[summary_key(rollout, name, arm)] = summary.to_bytes()
    store.publish_summaries("one", MODEL, contents)


class Replica:
    """The replica behind an admin port: what the gateway gives it."""

    name = "one"

    def __init__(self) -> None:
        self.is_draining = False
        self.num_looks = 0

    def drain(self) -> None:
        self.is_draining = True

    def undrain(self) -> None:
        self.is_draining = False

    def refresh_now(self) -> None:
        self.num_looks += 1


class RunningAdmin:
    """An admin port in a thread of the test's process, until the `with` ends."""

    def __init__(
        self,
        store: StateStore,
        folder: Path,
        *,
        model: str = MODEL,
        catalog: VersionCatalog | None = None,
        **options: Any,
    ) -> None:
        self.key_file = folder / "admin.key"
        write_key_file(self.key_file)
        self.key = read_key_file(self.key_file)
        self.replica = Replica()
        self.keys = KeyRing(store, key_file=self.key_file)
        commands, reader = Commands(store, model, catalog=catalog), Reader(store, model, catalog=catalog)
        self._admin = Admin(store, model, commands, reader, self.keys, self.replica)
        self._options = options
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._is_running = threading.Event()

    def client(self, key: str | None = None, **options: Any) -> httpx.Client:
        headers = {"authorization": f"Bearer {self.key if key is None else key}"}
        return httpx.Client(base_url=f"{self.url}/admin/v1", headers=headers, timeout=60.0, **options)

    def __enter__(self) -> "RunningAdmin":
        self._thread.start()
        assert self._is_running.wait(START_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(START_SECONDS)
        assert not self._thread.is_alive()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        app = create_admin_app(self._admin, **self._options)
        server = HttpServer(app, what="the admin API", setting="ADMIN_PORT", grace_seconds=5)
        self.url = f"http://127.0.0.1:{server.listen('127.0.0.1', 0)}"
        await server.serve()
        self._is_running.set()
        await self._end.wait()
        await server.stop()
