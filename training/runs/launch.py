"""Starts the ranks of a run and watches over them.

On one machine the ranks are child processes of this one, with Horovod's own rendezvous server and Gloo between them;
one rank needs neither. Over several machines `horovodrun` starts them. Either way each rank runs
`python -m rankhouse.training.runs.worker <run folder>`, which users may also start by themselves (mpirun, Kubernetes).

    SIGINT, SIGTERM   are passed on; the ranks save a checkpoint and leave. A second one ends them at once.
    a rank dies       the others are ended within seconds, and the last lines of the dead one are shown.

The signals do not reach the ranks from the terminal, as each has a session of its own: they come once, through us.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from rankhouse.training.config import Config
from rankhouse.training.errors import LaunchError
from rankhouse.training.runs.folder import RunFolder
from rankhouse.training.runs.stop import LOST_PEERS, STOP_SIGNALS, STOPPED

POLL_SECONDS = 0.05
GRACE_SECONDS = 3.0
SHOWN_LINES = 20

# Reusing freed blocks instead of handing them back to the kernel, and huge pages: 12 % faster steps of DLRM.
# glibc reads them only at process start.
ALLOCATOR = ":".join(
    (
        "glibc.malloc.mmap_threshold=68719476736",
        "glibc.malloc.trim_threshold=68719476736",
        "glibc.malloc.top_pad=67108864",
        "glibc.malloc.hugetlb=1",
    )
)

# Milliseconds after which Horovod looks again for exchanges that all ranks are ready for. Each exchange waits for that,
# so its own 1 is long beside a step's four exchanges of 1 to 3 ms each. On two busy cores 0.5 made steps of 2048
# samples 0.64 to 1.04 times as long, and those of 8192 no shorter; 0.2 and 0.1 were not clearly better.
HOROVOD_SETTINGS = {"HOROVOD_CYCLE_TIME": "0.5"}


def launch(run: RunFolder, *, num_ranks: int, hosts: str | None = None) -> int:
    """Trains a run to its end, or until it is told to stop. Call it in the main thread: it handles signals.

    Rank 0 shares this process's terminal; each other rank writes into `rank-<r>.log` of the run folder.

    Args:
        run: The run; if it has a checkpoint, training continues from the newest.
        num_ranks: How many processes train together, at least 1.
        hosts: Machines and their slots, `host-a:4,host-b:4`; None is this machine. All must see the run folder.

    Returns:
        0 if the run is finished, 130 if it was told to stop and saved its state, 1 if rank 0 failed and said why.

    Raises:
        LaunchError: A rank died.
    """
    if num_ranks < 1:
        raise LaunchError(f"cannot train on {num_ranks} ranks; expected at least 1")
    check_lanes(run.config, num_ranks=num_ranks)
    run.stop_file.unlink(missing_ok=True)
    if hosts is not None:
        return _launch_on_hosts(run, num_ranks=num_ranks, hosts=hosts)
    with _rendezvous(num_ranks) as port, _Ranks(run, num_ranks=num_ranks, port=port) as ranks:
        return ranks.wait()


class _Ranks:
    """The local processes of a run. Leaving the context ends those that still live."""

    def __init__(self, run: RunFolder, *, num_ranks: int, port: int | None) -> None:
        self._run = run
        self._signals: list[int] = []
        self._num_passed_on = 0
        self._logs: list[IO[bytes]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._handlers = {number: signal.signal(number, self._notice) for number in STOP_SIGNALS}
        for rank in range(num_ranks):
            self._processes.append(self._start(rank, _environment(rank, num_ranks, port)))

    def __enter__(self) -> "_Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        for log in self._logs:
            log.close()

    def wait(self) -> int:
        """Waits for all ranks and returns what `launch` returns.

        Raises:
            LaunchError: A rank died.
        """
        while True:
            self._pass_signals_on()
            statuses = [process.poll() for process in self._processes]
            if any(status not in (None, 0, STOPPED) for status in statuses):
                return self._end_after_death()
            if None not in statuses:
                return max(status for status in statuses if status is not None)
            time.sleep(POLL_SECONDS)

    def _start(self, rank: int, environment: dict[str, str]) -> "subprocess.Popen[bytes]":
        output = None
        if rank > 0:
            output = self._log_file(rank).open("wb")
            self._logs.append(output)
        # Blocked for the rank until it can notice them (`StopRequest`).
        blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            return subprocess.Popen(
                _worker_command(self._run),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)

    def _log_file(self, rank: int) -> Path:
        return self._run.path / f"rank-{rank}.log"

    def _notice(self, number: int, _: object) -> None:
        # Passed on by `wait`, when all ranks are there: a signal may come while they are being started.
        self._signals.append(number)

    def _pass_signals_on(self) -> None:
        while self._num_passed_on < len(self._signals):
            first = self._num_passed_on == 0
            number = self._signals[self._num_passed_on] if first else signal.SIGKILL
            self._num_passed_on += 1
            for process in self._processes:
                if process.poll() is None:
                    process.send_signal(number)

    def _end_after_death(self) -> int:
        """Ends the others and tells whose death was not another's fault; returns 1 if rank 0 has told so itself."""
        time.sleep(POLL_SECONDS)  # So that those who died of the same cause are counted as well.
        statuses = [process.poll() for process in self._processes]
        died = [rank for rank, status in enumerate(statuses) if status not in (None, 0, STOPPED, LOST_PEERS)]
        self._end()
        if self._num_passed_on > 1:
            raise LaunchError("told to stop twice: ended all ranks at once, without saving their state")
        if statuses[0] == 1:
            return 1
        causes = died or [rank for rank, status in enumerate(statuses) if status == LOST_PEERS]
        raise LaunchError("\n".join(self._obituary(rank, statuses[rank]) for rank in causes))

    def _obituary(self, rank: int, status: int | None) -> str:
        how = f"by signal {signal.Signals(-status).name}" if status and status < 0 else f"with exit status {status}"
        message = f"rank {rank} of {len(self._processes)} died {how}, so the run ended; go on with --resume"
        if rank == 0:
            return f"{message}. Its output is above."
        lines = self._log_file(rank).read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN_LINES:]
        return "\n".join((f"{message}. The last lines of {self._log_file(rank)}:", *(f"  {line}" for line in lines)))

    def _end(self) -> None:
        """Ends what still lives: politely, then not. A rank that waits for a dead one cannot hear a signal."""
        deadline = time.monotonic() + GRACE_SECONDS
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _worker_command(run: RunFolder) -> list[str]:
    return [sys.executable, "-m", "rankhouse.training.runs.worker", str(run.path)]


def _environment(rank: int, num_ranks: int, port: int | None) -> dict[str, str]:
    """Returns what horovodrun would set for a rank on one machine, and what makes our process faster."""
    # On a busy machine one rank may be there half a minute after another, which is as long as Gloo waits by itself.
    waits = {"HOROVOD_GLOO_TIMEOUT_SECONDS": "300"}
    environment = {"GLIBC_TUNABLES": ALLOCATOR, "PYTHONUNBUFFERED": "1", **HOROVOD_SETTINGS, **waits, **os.environ}
    environment["RANKHOUSE_LAUNCHER_PID"] = str(os.getpid())
    if port is None:
        return environment
    return environment | {
        "HOROVOD_HOSTNAME": "localhost",
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(num_ranks),
        "HOROVOD_LOCAL_RANK": str(rank),
        "HOROVOD_LOCAL_SIZE": str(num_ranks),
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": "lo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "NCCL_SOCKET_IFNAME": "lo",
    }


@contextmanager
def _rendezvous(num_ranks: int) -> Iterator[int | None]:
    """Runs Horovod's rendezvous server, where the ranks of this machine find each other; yields its port."""
    if num_ranks == 1:
        yield None
        return
    try:
        from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
    except ImportError as exc:
        raise LaunchError(
            f"training on {num_ranks} ranks needs Horovod, which cannot be imported ({exc}); build it with "
            "`make setup`, or train with --np 1"
        ) from exc
    server = RendezvousHTTPServer(("127.0.0.1", 0), RendezvousHandler, 0)
    server.daemon_threads = True
    server.init(get_host_assignments([HostInfo("localhost", num_ranks)], num_ranks))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def _launch_on_hosts(run: RunFolder, *, num_ranks: int, hosts: str) -> int:
    """Runs horovodrun, which picks MPI or Gloo. It kills its ranks at a signal, so they are asked to stop by a file."""
    horovodrun = shutil.which("horovodrun") or str(Path(sys.executable).parent / "horovodrun")
    command = [horovodrun, "-np", str(num_ranks), "-H", hosts, *_worker_command(run)]
    environment = {"GLIBC_TUNABLES": ALLOCATOR, **HOROVOD_SETTINGS, **os.environ}
    try:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as exc:
        raise LaunchError(f"cannot start {horovodrun}: {exc.strerror}; --hosts needs Horovod's launcher") from exc

    def ask_to_stop(number: int, _: object) -> None:
        if run.stop_file.exists():
            process.send_signal(number)
        run.stop_file.touch()

    handlers = {number: signal.signal(number, ask_to_stop) for number in STOP_SIGNALS}
    try:
        status = process.wait()
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    if status != 0:
        raise LaunchError(f"horovodrun ended with exit status {status}; its output is above. Continue with --resume")
    return STOPPED if run.stop_file.exists() else 0


def check_hosts(hosts: str, *, num_ranks: int) -> None:
    """Checks the form of `host-a:4,host-b:4` and that there are enough slots.

    Raises:
        LaunchError: The form is wrong, or there are fewer slots than ranks.
    """
    slots = 0
    for host in hosts.split(","):
        name, colon, count = host.strip().partition(":")
        if not (name and colon and count.isdigit()):
            raise LaunchError(f"--hosts has {host!r}; expected name:slots, such as host-a:4,host-b:4")
        slots += int(count)
    if slots < num_ranks:
        raise LaunchError(f"--hosts has {slots} slots for {num_ranks} ranks; add slots or lower --np")


def check_lanes(config: Config, *, num_ranks: int) -> None:
    """Checks that each rank gets a lane of the data.

    Raises:
        LaunchError: There are more ranks than lanes.
    """
    num_lanes = config.data.num_lanes
    if num_ranks > num_lanes:
        raise LaunchError(
            f"cannot train on {num_ranks} ranks: the data is read in {num_lanes} lanes, and each rank needs one of its "
            f"own; start the run anew with --set data.num_lanes={num_ranks}, or train on fewer ranks"
        )
