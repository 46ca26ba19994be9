"""The gateway as a child process: starting it, waiting for it, stopping it."""

import os
import sys
from pathlib import Path
from types import TracebackType

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.processes import ChildProcess, address, answers_ok, free_ports

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class GatewayProcess:
    """A gateway of our own, serving one version. Use as a context manager, from one thread.

    Args:
        version: The version, which Triton has loaded.
        triton_url: Triton's gRPC address, host:port.
        log_path: Gets its log.
        host: The address to listen on.
        port: The port of REST; 0 takes a free one.
        grpc_port: The port of gRPC; 0 takes a free one.

    Raises:
        AddressError: A port is taken.
    """

    def __init__(
        self, version: Version, *, triton_url: str, log_path: Path, host: str, port: int, grpc_port: int
    ) -> None:
        self._host = _ANY_ADDRESS.get(host, host)
        self._port, self._grpc_port = free_ports(host, port, grpc_port)
        settings = {
            "STORE": version.store.resolve(),
            "MODEL": version.model,
            "VERSION": version.name,
            "TRITON_URL": triton_url,
            "HOST": host,
            "PORT": self._port,
            "GRPC_PORT": self._grpc_port,
        }
        self.process = ChildProcess(
            "the gateway",
            [sys.executable, "-m", "rankhouse.serving.gateway"],
            log_path=log_path,
            environment=os.environ | {f"RANKHOUSE_{name}": str(value) for name, value in settings.items()},
        )

    @property
    def rest_url(self) -> str:
        """Its REST service, as this machine reaches it."""
        return f"http://{address(self._host, self._port)}"

    @property
    def grpc_url(self) -> str:
        """Its gRPC service, as this machine reaches it: host:port."""
        return address(self._host, self._grpc_port)

    def __enter__(self) -> "GatewayProcess":
        """Starts the gateway and waits until it is ready.

        Raises:
            ProcessFailedError: It died or was not ready in time; the message ends with the end of its log.
        """
        try:
            self.process.start()
            self.process.wait_until(lambda: answers_ok(self._host, self._port, "/readyz"), timeout_seconds=60.0)
        except BaseException:
            self.process.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stops the gateway, after it has answered what it accepted."""
        self.process.stop()
