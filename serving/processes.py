"""A child process with its log in a file, stopped together with everything that it started."""

import contextlib
import ctypes
import http.client
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rankhouse.serving.errors import AddressError, ProcessFailedError

_PR_SET_PDEATHSIG = 1
# Connections get theirs from 32768 on, and one of those could be taken before the child that it is for listens.
_PORTS_OF_NO_CONNECTION, _NUM_TRIES = range(10_000, 32_768), 50
_libc = ctypes.CDLL(None, use_errno=True)


class ChildProcess:
    """Starts a program in a session of its own and stops it, and whatever it started, by process id.

    The session of its own keeps a terminal's Ctrl-C away from it: who starts children decides in which order they
    stop. Should the starter be killed, the kernel sends its children SIGTERM. That is tied to the thread that called
    `start`, so this thread must outlive the child. Use from one thread.

    Args:
        name: What messages call it.
        command: Program and arguments.
        log_path: Gets its standard output and error; an older file is replaced. Its folder is the working directory,
            so paths in `command` must be absolute.
        environment: Its complete environment; this process's own by default.
    """

    def __init__(
        self, name: str, command: Sequence[str], *, log_path: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log_path = log_path
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the program.

        Raises:
            ProcessFailedError: The program cannot be executed.
        """
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("wb") as log:
            try:
                self._process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.log_path.parent,
                    env=self._environment,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            except OSError as exc:
                raise ProcessFailedError(f"{self.name} cannot be started: {self.command[0]}: {exc.strerror}") from exc

    @property
    def pid(self) -> int | None:
        """Its process id, or None before it was started."""
        return self._process.pid if self._process else None

    @property
    def exit_status(self) -> int | None:
        """Its exit status (negative: the signal that ended it), or None while it runs or before it was started."""
        return self._process.poll() if self._process else None

    def log_tail(self, num_lines: int = 30) -> str:
        """Returns the last lines of its log."""
        with contextlib.suppress(FileNotFoundError):
            return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-num_lines:])
        return ""

    def failure(self, what: str) -> ProcessFailedError:
        """Returns an error that says what happened, with the end of the log."""
        return ProcessFailedError(f"{self.name} {what}; the end of {self.log_path}:\n{self.log_tail()}")

    def wait_until(self, is_ready: Callable[[], bool], *, timeout_seconds: float) -> None:
        """Waits until it is ready.

        Raises:
            ProcessFailedError: It died, or was not ready in time; the message ends with the end of its log.
        """
        deadline = time.monotonic() + timeout_seconds
        while not is_ready():
            if self.exit_status is not None:
                raise self.failure(f"died at its start (status {self.exit_status})")
            if time.monotonic() > deadline:
                raise self.failure(f"was not ready within {timeout_seconds:g} s")
            time.sleep(0.05)

    def stop(self, *, grace_seconds: float = 15.0) -> None:
        """Asks the program to end, waits, and kills what is left of it and of its children. Harmless when repeated."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_seconds)
        # The session's id is the program's pid, and stays taken as long as one process of the session lives.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


def answers_ok(host: str, port: int, path: str) -> bool:
    """Says whether an HTTP server there answers a GET with 200."""
    connection = http.client.HTTPConnection(host, port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def address(host: str, port: int) -> str:
    """Returns host:port as URLs and gRPC write it, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def free_ports(host: str, *ports: int) -> list[int]:
    """Returns different TCP ports that nobody listens on now: the given ones, and any for each 0.

    A child that finds its port taken dies; asked for beforehand, whoever has the port cannot pass for the child.

    Raises:
        AddressError: A port is taken, or the host is no address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        free = []
        for port in ports:
            try:
                listener = stack.enter_context(_listener(host, port, family))
            except OSError as exc:
                # Python adds what it was doing, in brackets.
                reason = str(exc.strerror).split(" (")[0]
                raise AddressError(f"cannot listen on {host} port {port}: {reason}; choose another or 0") from exc
            free.append(listener.getsockname()[1])
        return free


def _listener(host: str, port: int, family: socket.AddressFamily) -> socket.socket:
    if port == 0:
        for tried in random.SystemRandom().sample(_PORTS_OF_NO_CONNECTION, _NUM_TRIES):
            with contextlib.suppress(OSError):
                return socket.create_server((host, tried), family=family)
    return socket.create_server((host, port), family=family)


def die_with_parent() -> None:
    """Asks the kernel for a SIGTERM when the parent dies. Runs in the child between fork and exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
