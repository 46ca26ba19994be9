"""Serving on one machine: Triton and the gateway as child processes, started, kept alive and stopped.

The gateway's refresh agent brings versions into Triton and proves them, now and later; nothing takes traffic before its
golden requests were replayed. Here is only what needs a parent: the order of starting, and starting again. The gateway
stops first, so that it can finish what it has accepted.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from rankhouse.embedding_cache.format.errors import ManifestError
from rankhouse.embedding_cache.format.version import VersionStore
from rankhouse.serving.admin.keys import write_key_file
from rankhouse.serving.control.rollout_spec import RolloutSpec
from rankhouse.serving.control.state_stores import open_state_store
from rankhouse.serving.errors import NothingServedError, StoreUnavailableError
from rankhouse.serving.first_state import Refresh, Wish, settle_state
from rankhouse.serving.gateway_process import GatewayPorts, GatewayProcess
from rankhouse.serving.golden import GoldenReport
from rankhouse.serving.keeper import Keeper
from rankhouse.serving.refresh.report import AgentReport, read_report
from rankhouse.serving.triton_client import TritonClient
from rankhouse.serving.triton_server import TritonServer

READY_FILE = "serving.json"
LATEST = "latest"

_WATCH_SECONDS = 0.2
# A failure that passes by itself, as of a Triton that is just starting, is over by then.
_MOST_ATTEMPTS, _DEAD_END_SECONDS = 3, 3.0


@dataclass(frozen=True)
class ExternalTriton:
    """A Triton server that somebody else runs, under explicit model control.

    Attributes:
        url: Its gRPC address, host:port.
        repository: Its model repository, at the same path on both sides, as the version store.
        backends: Its folder of backends, where this side sees it: see `model_repository.write_models`.
        metrics_url: Where its metrics are read, if that is known.
    """

    url: str
    repository: Path
    backends: Path | None = None
    metrics_url: str | None = None


@dataclass(frozen=True)
class ServeOptions:
    """What to serve, and where.

    Attributes:
        store: The version store: a folder or a URL. A URL is mirrored on this machine.
        model: The model's name.
        run_dir: Gets the logs, Triton's model repository and, once all is ready, `serving.json`.
        version: A version's name: it is served and no other; or "latest".
        refresh: What happens with new versions; None: what the state says, `direct` where there is none.
        rollout: The steps that new versions take where `refresh` is `rollout`.
        state: The URL of the state that replicas share; None is a file in `run_dir`.
        keep_loaded_bytes: What earlier versions may take, so that going back to them is instant; None: what the state
            says, 4 GiB where there is none.
        host: The address that the gateway listens on. Triton and the admin API listen on this machine only.
        ports: The gateway's ports.
        triton: Another Triton than the packaged one: the path of its program, or a server that already runs.
        engine_options: Options of the embedding engine, by name; a server that already runs has its own.
        device: The number of the GPU that Triton looks embeddings up on; None: the CPU. A server that already runs was
            started with the engine's option of that name.
    """

    store: Path | str
    model: str
    run_dir: Path
    version: str = LATEST
    refresh: Refresh | None = None
    rollout: RolloutSpec | None = None
    state: str | None = None
    keep_loaded_bytes: int | None = None
    host: str = "127.0.0.1"
    ports: GatewayPorts = field(default_factory=GatewayPorts)
    triton: Path | ExternalTriton | None = None
    engine_options: Mapping[str, str] = field(default_factory=dict)
    device: int | None = None


@dataclass(frozen=True)
class Serving:
    """What is served, and where.

    Attributes:
        model: The model's name.
        version: The version's name.
        refresh: What happens with new versions.
        rest_url: The gateway's REST service.
        grpc_url: The gateway's gRPC service, host:port.
        triton_url: Triton's gRPC service, host:port.
        triton_metrics_url: Triton's metrics, or None where the server is somebody else's.
        admin_url: The admin API, on this machine.
        admin_key_file: The file of its first key.
        golden: What the replay of the golden requests found.
        run_dir: Where the logs are.
    """

    model: str
    version: str
    refresh: str
    rest_url: str
    grpc_url: str
    triton_url: str
    triton_metrics_url: str | None
    admin_url: str
    admin_key_file: str
    golden: GoldenReport
    run_dir: str


def serve(
    options: ServeOptions, *, on_ready: Callable[[Serving], None], on_news: Callable[[str], None] = lambda line: None
) -> None:
    """Serves until it is interrupted (KeyboardInterrupt), and stops what it started. Call it in the main thread.

    Args:
        options: What to serve, and where.
        on_ready: Called once, when the gateway takes requests.
        on_news: Told in a line what goes on.

    Raises:
        AddressError: A port of the gateway is taken.
        ControlError: The state cannot be used, or does not allow the version.
        FormatError: There is no such store or version.
        NothingServedError: No version could be made ready: damaged, wrong golden scores, or refused by Triton.
        ProcessFailedError: Triton or the gateway died at the start, or again and again.
    """
    options.ports.chosen(options.host)  # A taken one is found before all the work, not after it.
    _check_version(options)
    folder = _RunFolder(options.run_dir.resolve(), options.model)
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.report.unlink(missing_ok=True)
    state_url = options.state or f"sqlite://{quote(str(folder.path / 'state.db'))}"
    refresh = _settle(options, state_url, folder.last_known_state, on_news)
    with ExitStack() as stack:
        server, triton = _triton(options, folder.path, stack)
        gateway = stack.enter_context(_gateway(options, folder, triton, state_url))
        first = _wait_until_ready(gateway, server, folder.report, on_news)
        assert first.served is not None
        assert first.golden is not None
        serving = Serving(
            model=options.model,
            version=first.served,
            refresh=refresh,
            rest_url=gateway.rest_url,
            grpc_url=gateway.grpc_url,
            triton_url=triton.url,
            triton_metrics_url=triton.metrics_url,
            admin_url=gateway.admin_url,
            admin_key_file=str(folder.admin_key),
            golden=first.golden,
            run_dir=str(folder.path),
        )
        with _ready_file(folder.path / READY_FILE, serving) as update:
            on_ready(serving)
            keeper = Keeper([gateway, *([server] if server else [])], on_death=on_news)
            while True:
                keeper.look()
                update(read_report(folder.report))
                time.sleep(_WATCH_SECONDS)


@dataclass(frozen=True)
class _RunFolder:
    """What lies where in the folder of a run."""

    path: Path
    model: str

    @property
    def report(self) -> Path:
        """What the refresh agent knows."""
        return self.path / "refresh.json"

    @property
    def last_known_state(self) -> Path:
        """The state that the gateway read last."""
        return self.path / f"{self.model}.last_known_state.json"

    @property
    def admin_key(self) -> Path:
        """The first admin key: the file that the environment names, or one of this run."""
        given = os.environ.get("RANKHOUSE_ADMIN_KEY_FILE")
        return Path(given).resolve() if given else self.path / "admin.key"


def _gateway(options: ServeOptions, folder: _RunFolder, triton: ExternalTriton, state_url: str) -> GatewayProcess:
    if not folder.admin_key.exists():
        write_key_file(folder.admin_key)
    settings = {
        # The gateway has another working folder.
        "STORE": options.store if "://" in str(options.store) else Path(options.store).resolve(),
        "MODEL": options.model,
        "STATE_URL": state_url,
        "STATE_FILE": folder.last_known_state,
        "TRITON_URL": triton.url,
        "TRITON_REPOSITORY": triton.repository.resolve(),
        "TRITON_BACKENDS": triton.backends,
        "TRITON_DEVICE": options.device,
        "TRITON_METRICS_URL": triton.metrics_url,
        "TRITON_SHARED": isinstance(options.triton, ExternalTriton),
        "REFRESH_FILE": folder.report,
        "ADMIN_KEY_FILE": folder.admin_key,
    }
    return GatewayProcess(settings, log_path=folder.path / "gateway.log", host=options.host, ports=options.ports)


def _check_version(options: ServeOptions) -> None:
    """Refuses a store or version that is not there, before anything starts."""
    try:
        VersionStore(options.store).read(options.version, model=options.model)
    except ManifestError:
        if options.version != LATEST:
            raise
        # Of an unreadable newest version the agent says so, and serves the one before it.


def _triton(
    options: ServeOptions, run_dir: Path, stack: ExitStack
) -> tuple[TritonServer, ExternalTriton] | tuple[None, ExternalTriton]:
    if isinstance(options.triton, ExternalTriton):
        asyncio.run(_check_triton(options.triton.url))
        return None, options.triton
    device = {} if options.device is None else {"device": str(options.device)}
    server = TritonServer(
        run_dir / "models", run_dir=run_dir, binary=options.triton, engine_options={**options.engine_options, **device}
    )
    stack.enter_context(server)
    return server, ExternalTriton(server.grpc_url, server.repository, server.backends, server.metrics_url)


async def _check_triton(url: str) -> None:
    async with TritonClient(url) as client:
        await client.metadata()


def _settle(options: ServeOptions, url: str, state_file: Path, on_news: Callable[[str], None]) -> str:
    """Has the state store hold what the options ask for; returns what happens with new versions.

    Where the store is away, the last known state holds, if this run folder has one.
    """
    wish = Wish(
        version=None if options.version == LATEST else options.version,
        refresh=options.refresh,
        rollout=options.rollout,
        keep_loaded_bytes=options.keep_loaded_bytes,
    )
    try:
        store = open_state_store(url)
        try:
            policy = settle_state(store, options.model, wish).policy
        finally:
            store.close()
    except StoreUnavailableError as exc:
        if not state_file.exists():
            raise
        on_news(f"the last known state holds: {exc}")
        return "unknown"
    return f"{policy.admit}, held" if policy.is_held else policy.admit


def _wait_until_ready(
    gateway: GatewayProcess, server: TritonServer | None, report_path: Path, on_news: Callable[[str], None]
) -> AgentReport:
    """Waits until the first version is served; as long as it takes, but not where nothing can come of it."""
    told, dead_since = "", None
    while True:
        for process in (gateway.process, *([server.process] if server else [])):
            if process.exit_status is not None:
                raise process.failure(f"died at its start (status {process.exit_status})")
        report = read_report(report_path) or AgentReport()
        if report.is_ready and report.golden is not None and gateway.is_ready:
            return report
        now = time.monotonic()
        is_dead_end = not report.preparing and bool(report.quarantined or report.failed)
        dead_since = (dead_since or now) if is_dead_end else None
        is_too_often = max(report.attempts.values(), default=0) >= _MOST_ATTEMPTS
        if is_too_often or (dead_since is not None and not report.failed and now - dead_since > _DEAD_END_SECONDS):
            raise _nothing_served(report, server)
        going_on = {
            **(report.preparing or report.failed),
            **({"store": report.store_problem} if report.store_problem else {}),
        }
        news = "; ".join(f"{name}: {what}" for name, what in going_on.items())
        if news and news != told:
            on_news(told := news)
        time.sleep(_WATCH_SECONDS / 4)


def _nothing_served(report: AgentReport, server: TritonServer | None) -> NothingServedError:
    reasons = {**report.quarantined, **report.failed}
    lines = [f"no version can be served: {'; '.join(reasons.values())}"]
    if server is not None and report.failed:
        lines.append(f"The end of {server.process.log_path}:\n{server.process.log_tail()}")
    return NothingServedError("\n".join(lines))


@contextmanager
def _ready_file(path: Path, serving: Serving) -> Iterator[Callable[[AgentReport | None], None]]:
    """Says in a file, as long as it is so, what is served where: for programs that start this one."""
    written = serving

    def write() -> None:
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(asdict(written), indent=1) + "\n")
        os.replace(temporary, path)

    def update(report: AgentReport | None) -> None:
        nonlocal written
        if report is None or report.served is None or report.golden is None:
            return
        now = replace(written, version=report.served, golden=report.golden)
        if now != written:
            written = now
            write()

    write()
    try:
        yield update
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
