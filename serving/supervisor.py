"""Serving one version on one machine: Triton and the gateway as child processes, started, watched and stopped.

The order is the point. The version's files are verified, Triton loads it, its golden requests are replayed, and only
then does the gateway start. The gateway stops first, so that it can finish what it has accepted.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.serving.errors import ModelLoadError, TritonError
from rankhouse.serving.gateway_process import GatewayProcess
from rankhouse.serving.golden import GoldenReport, replay_golden
from rankhouse.serving.model_repository import ensemble_name, write_models
from rankhouse.serving.processes import ChildProcess, free_ports
from rankhouse.serving.triton_client import TritonClient
from rankhouse.serving.triton_server import TritonServer

READY_FILE = "serving.json"

_WATCH_SECONDS = 0.2


@dataclass(frozen=True)
class ExternalTriton:
    """A Triton server that somebody else runs, under explicit model control.

    Attributes:
        url: Its gRPC address, host:port.
        repository: Its model repository, at the same path on both sides, as the version store.
        backends: Its folder of backends, where this side sees it: see `model_repository.write_models`.
    """

    url: str
    repository: Path
    backends: Path | None = None


@dataclass(frozen=True)
class ServeOptions:
    """What to serve, and where.

    Attributes:
        store: The version store: a folder or a URL. A URL is mirrored on this machine.
        model: The model's name.
        run_dir: Gets the logs, Triton's model repository and, once all is ready, `serving.json`.
        version: The version's name, or "latest".
        host: The address that the gateway listens on. Triton listens on this machine only.
        port: The gateway's port of REST; 0 takes a free one.
        grpc_port: The gateway's port of gRPC; 0 takes a free one.
        triton: Another Triton than the packaged one: the path of its program, or a server that already runs.
        engine_options: Options of the embedding engine, by name; a server that already runs has its own.
    """

    store: Path | str
    model: str
    run_dir: Path
    version: str = "latest"
    host: str = "127.0.0.1"
    port: int = 8080
    grpc_port: int = 8081
    triton: Path | ExternalTriton | None = None
    engine_options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Serving:
    """What is served, and where.

    Attributes:
        model: The model's name.
        version: The version's name.
        rest_url: The gateway's REST service.
        grpc_url: The gateway's gRPC service, host:port.
        triton_url: Triton's gRPC service, host:port.
        triton_metrics_url: Triton's metrics, or None where the server is somebody else's.
        golden: What the replay of the golden requests found.
        run_dir: Where the logs are.
    """

    model: str
    version: str
    rest_url: str
    grpc_url: str
    triton_url: str
    triton_metrics_url: str | None
    golden: GoldenReport
    run_dir: str


def serve(options: ServeOptions, *, on_ready: Callable[[Serving], None]) -> None:
    """Serves until it is interrupted (KeyboardInterrupt), and stops what it started. Call it in the main thread.

    Args:
        options: What to serve, and where.
        on_ready: Called once, when the gateway takes requests.

    Raises:
        AddressError: A port of the gateway is taken.
        FormatError: The version does not exist or its files are damaged.
        GoldenMismatchError: Triton's scores are not the trainer's.
        ModelLoadError: Triton refused the version.
        ProcessFailedError: Triton or the gateway died, or was not ready in time.
    """
    free_ports(options.host, options.port, options.grpc_port)  # A taken one is found before all the work, not after it.
    version = VersionStore(options.store).open(options.version, model=options.model)
    run_dir = options.run_dir.resolve()
    with ExitStack() as stack:
        if isinstance(options.triton, ExternalTriton):
            server, triton = None, options.triton
        else:
            server = stack.enter_context(
                TritonServer(
                    run_dir / "models",
                    run_dir=run_dir,
                    binary=options.triton,
                    engine_options=options.engine_options,
                )
            )
            triton = ExternalTriton(server.grpc_url, server.repository, server.backends)
        golden = stack.enter_context(_loaded(version, triton, server))
        gateway = stack.enter_context(
            GatewayProcess(
                version,
                triton_url=triton.url,
                log_path=run_dir / "gateway.log",
                host=options.host,
                port=options.port,
                grpc_port=options.grpc_port,
            )
        )
        serving = Serving(
            model=version.model,
            version=version.name,
            rest_url=gateway.rest_url,
            grpc_url=gateway.grpc_url,
            triton_url=triton.url,
            triton_metrics_url=server.metrics_url if server else None,
            golden=golden,
            run_dir=str(run_dir),
        )
        stack.enter_context(_ready_file(run_dir / READY_FILE, serving))
        on_ready(serving)
        _watch([gateway.process, *([server.process] if server else [])])


@contextmanager
def _loaded(version: Version, triton: ExternalTriton, server: TritonServer | None) -> Iterator[GoldenReport]:
    """Has Triton load the version unless it has it already, and replays its golden requests.

    Somebody else's server gets rid of what it loaded here; one of our own (`server`) stops as a whole.
    """
    ensemble = ensemble_name(version.model, version.name)

    async def load() -> bool:
        async with TritonClient(triton.url) as client:
            if await client.is_ready(ensemble):
                return False
            await client.load(write_models(version, repository=triton.repository, backends=triton.backends))
            return True

    async def replay() -> GoldenReport:
        async with TritonClient(triton.url) as client:
            return await replay_golden(client, ensemble, version)

    async def unload() -> None:
        async with TritonClient(triton.url) as client:
            await client.unload(ensemble)

    try:
        was_loaded_here = asyncio.run(load())
    except ModelLoadError as exc:
        if server is None:
            raise
        raise ModelLoadError(f"{exc}\nThe end of {server.process.log_path}:\n{server.process.log_tail()}") from exc
    try:
        yield asyncio.run(replay())
    finally:
        if server is None and was_loaded_here:
            with suppress(TritonError):
                asyncio.run(unload())


@contextmanager
def _ready_file(path: Path, serving: Serving) -> Iterator[None]:
    """Says in a file, as long as it is so, what is served where: for programs that start this one."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(asdict(serving), indent=1) + "\n")
    os.replace(temporary, path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _watch(children: Sequence[ChildProcess]) -> None:
    """Returns never: raises when a child dies, or is interrupted."""
    while True:
        for child in children:
            if child.exit_status is not None:
                raise child.failure(f"died (status {child.exit_status})")
        time.sleep(_WATCH_SECONDS)
