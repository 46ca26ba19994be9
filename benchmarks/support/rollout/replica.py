"""A replica of a test: a gateway process beside a Triton, that can be killed and started again on its ports."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.support.rollout.callers import Gateway
from rankhouse.serving.admin.keys import write_key_file
from rankhouse.serving.admin_client import AdminClient
from rankhouse.serving.gateway_process import GatewayPorts, GatewayProcess
from rankhouse.serving.processes import free_ports
from rankhouse.serving.triton_server import TritonServer

SECONDS = 300.0
_LOOK_SECONDS = 0.01


class Replica:
    """A gateway that loads versions itself. Use from one thread.

    Args:
        name: What it is called.
        model: The model's name.
        server: Its Triton.
        folder: Gets its log and files.
        settings: More of the gateway's settings, by their names in capitals; STORE and STATE_URL are needed.
    """

    def __init__(
        self, name: str, *, model: str, server: TritonServer, folder: Path, settings: Mapping[str, object]
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name, self.server = name, server
        self._key_file = folder / "admin.key"
        if not self._key_file.exists():
            write_key_file(self._key_file)
        # Chosen here, so that the gateway has the same ones after each start.
        ports = GatewayPorts(*free_ports("127.0.0.1", 0, 0, 0))
        self.process = GatewayProcess(
            {
                "MODEL": model,
                "TRITON_URL": server.grpc_url,
                "TRITON_REPOSITORY": server.repository,
                "TRITON_BACKENDS": server.backends,
                "ADMIN_KEY_FILE": self._key_file,
                "REPLICA": name,
                "DRAIN_SECONDS": 0,
                **settings,
            },
            log_path=folder / "gateway.log",
            host="127.0.0.1",
            ports=ports,
        )

    @property
    def gateway(self) -> Gateway:
        """Where it is asked."""
        return Gateway(self.name, self.process.rest_url, self.process.grpc_url)

    @property
    def pid(self) -> int:
        """Of the gateway."""
        assert self.process.process.pid is not None
        return self.process.process.pid

    def admin(self) -> AdminClient:
        """A client of its admin API."""
        return AdminClient.of_file(self.process.admin_url, self._key_file)

    def start(self) -> None:
        """Starts it and waits until it takes requests.

        Raises:
            ProcessFailedError: It died, or was not ready in five minutes; the message ends with the end of its log.
        """
        self.process.start()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Waits until it takes requests.

        Raises:
            ProcessFailedError: It died, or was not ready in five minutes; the message ends with the end of its log.
        """
        self.process.process.wait_until(lambda: self.process.is_ready, timeout_seconds=SECONDS)

    def kill(self) -> None:
        """Ends it as a machine does that loses its power: nothing is finished, nobody is told."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.stop()

    def stop(self) -> None:
        """Has it finish what it accepted, and end. Harmless when repeated."""
        self.process.stop()

    def log(self) -> str:
        """What it said since its last start."""
        return self.process.process.log_path.read_text(errors="replace")

    def __enter__(self) -> "Replica":
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def eventually(
    is_so: Callable[[], object], what: Callable[[], object] = lambda: "it", *, seconds: float = SECONDS
) -> None:
    """Waits until something is so.

    Raises:
        TimeoutError: It was not in time; the message is what `what` gives.
    """
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what()}")
        time.sleep(_LOOK_SECONDS)
