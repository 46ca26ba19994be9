"""The gateway as a child process: starting it, asking it, stopping it."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rankhouse.serving.processes import ChildProcess, address, answers_ok, free_ports

_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_ADMIN_HOST = "127.0.0.1"


@dataclass(frozen=True)
class GatewayPorts:
    """The ports to listen on; 0 takes a free one."""

    rest: int = 8080
    grpc: int = 8081
    admin: int = 8082

    def chosen(self, host: str) -> "GatewayPorts":
        """Returns the same ports with a free one for each 0.

        Raises:
            AddressError: A port is taken.
        """
        (admin,) = free_ports(_ADMIN_HOST, self.admin)
        rest, grpc = free_ports(host, self.rest, self.grpc)
        return GatewayPorts(rest, grpc, admin)


class GatewayProcess:
    """A gateway of our own. Use from one thread.

    Args:
        settings: The gateway's settings by their names without the prefix, in capitals: gateway/settings.py. Those that
            are None are left to their defaults.
        log_path: Gets its log.
        host: The address that REST and gRPC listen on; the admin API listens on this machine only.
        ports: The ports.

    Raises:
        AddressError: A port is taken.
    """

    def __init__(self, settings: Mapping[str, object], *, log_path: Path, host: str, ports: GatewayPorts) -> None:
        self._host = _ANY_ADDRESS.get(host, host)
        self._ports = ports.chosen(host)
        listening = {
            "HOST": host,
            "PORT": self._ports.rest,
            "GRPC_PORT": self._ports.grpc,
            "ADMIN_HOST": _ADMIN_HOST,
            "ADMIN_PORT": self._ports.admin,
        }
        given = {**settings, **listening}
        environment = {f"RANKHOUSE_{name}": str(value) for name, value in given.items() if value is not None}
        self.process = ChildProcess(
            "the gateway",
            [sys.executable, "-m", "rankhouse.serving.gateway"],
            log_path=log_path,
            environment=os.environ | environment,
        )

    @property
    def rest_url(self) -> str:
        """Its REST service, as this machine reaches it."""
        return f"http://{address(self._host, self._ports.rest)}"

    @property
    def grpc_url(self) -> str:
        """Its gRPC service, as this machine reaches it: host:port."""
        return address(self._host, self._ports.grpc)

    @property
    def admin_url(self) -> str:
        """Its admin API, on this machine."""
        return f"http://{address(_ADMIN_HOST, self._ports.admin)}"

    @property
    def is_ready(self) -> bool:
        """Whether it takes requests now."""
        return answers_ok(self._host, self._ports.rest, "/readyz")

    def start(self) -> None:
        """Starts it, on the same ports each time; does not wait until it is ready.

        Raises:
            ProcessFailedError: It cannot be executed.
        """
        self.process.start()

    def stop(self) -> None:
        """Stops it, after it has answered what it accepted. Harmless when repeated."""
        self.process.stop()

    def __enter__(self) -> "GatewayProcess":
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
