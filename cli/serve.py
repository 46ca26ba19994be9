"""`rankhouse serve`."""

import shutil
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rankhouse.serving.supervisor import ExternalTriton, ServeOptions, Serving

_REFRESH = Annotated[
    str | None,
    typer.Option(
        help="What happens with new versions: direct (served at once), rollout (by the steps of --rollout), manual. "
        "By default what the state says, and direct where there is none."
    ),
]
_STATE = Annotated[
    str | None,
    typer.Option(
        help="Where replicas share who gets which version: sqlite:///folder/state.db or redis://host:port/0; by "
        "default state.db in the run folder."
    ),
]
_KEEP_LOADED = Annotated[
    float | None,
    typer.Option(
        help="What earlier versions may take in Triton, for going back at once; by default what the state says, and 4 "
        "where there is none.",
        min=0,
    ),
]
_DEVICE = Annotated[
    int | None,
    typer.Option(
        help="Number of the GPU on which Triton keeps hot rows and looks embeddings up, as many bytes of them as "
        "--engine device_cache_bytes=N says, by default 1 GiB; by default they are looked up on the CPU.",
        min=0,
    ),
]
_WHAT_HAPPENS = {
    "direct": "a new version in the store is served as soon as it is proven",
    "rollout": "a new version in the store takes the steps of the rollout",
    "manual": "new versions wait for you",
    "unknown": "as the last known state says; the state store is away",
}


def serve(
    store: Annotated[
        str,
        typer.Option(help="The version store, as `rankhouse export` wrote it: a folder or a URL, s3://bucket/models."),
    ] = "store",
    model: Annotated[str, typer.Option(help="Name of the model.")] = "dlrm",
    version: Annotated[
        str, typer.Option(help="Name of the one version to serve; `latest` goes on to new ones as they come.")
    ] = "latest",
    refresh: _REFRESH = None,
    rollout: Annotated[
        Path | None, typer.Option(help="Steps of a rollout, as YAML without a candidate, for --refresh rollout.")
    ] = None,
    state: _STATE = None,
    keep_loaded_gib: _KEEP_LOADED = None,
    host: Annotated[
        str, typer.Option(help="Address of the gateway; 0.0.0.0 is every one of this machine's.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of REST; 0 takes a free one.", min=0, max=65535)] = 8080,
    grpc_port: Annotated[int, typer.Option(help="Port of gRPC; 0 takes a free one.", min=0, max=65535)] = 8081,
    admin_port: Annotated[
        int, typer.Option(help="Port of the admin API on this machine; 0 takes a free one.", min=0, max=65535)
    ] = 8082,
    triton_bin: Annotated[
        Path | None, typer.Option(help="Another program `tritonserver` than the packaged one.")
    ] = None,
    triton_url: Annotated[str | None, typer.Option(help="gRPC address of a running Triton, host:port.")] = None,
    triton_repository: Annotated[Path | None, typer.Option(help="That Triton's model repository.")] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="An option of the embedding engine, as num_threads=2; may be given several times."),
    ] = None,
    device: _DEVICE = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder for logs and serving.json; by default one that goes when all went well.")
    ] = None,
) -> None:
    """Serve a model: start Triton and the gateway, go on to new versions, stop both on Ctrl-C or SIGTERM.

    No version takes traffic before its files were verified and its golden requests replayed.
    """
    from rankhouse.serving.gateway_process import GatewayPorts
    from rankhouse.serving.supervisor import LATEST, ServeOptions

    if triton_url and engine:
        raise typer.BadParameter("--engine goes to a Triton that starts here; that at --triton-url has its own options")
    engine_options = dict(_name_and_value(option) for option in engine or ())
    if "device" in engine_options:
        raise typer.BadParameter("--engine device=N: expected --device N, by which models look up there, too")
    if version != LATEST and refresh not in (None, "manual"):
        raise typer.BadParameter(f"--version {version} is served and no other; leave --refresh {refresh} out")
    options = ServeOptions(
        store,
        model,
        run_dir or Path(),
        version=version,
        refresh=_refresh(refresh, rollout),
        rollout=None if rollout is None else _steps(rollout),
        state=state,
        keep_loaded_bytes=None if keep_loaded_gib is None else int(keep_loaded_gib * 2**30),
        host=host,
        ports=GatewayPorts(port, grpc_port, admin_port),
        triton=_triton(triton_bin, triton_url, triton_repository),
        engine_options=engine_options,
        device=device,
    )
    if run_dir is None:
        _supervise_in_new_folder(options)
    else:
        _supervise(options)


def _supervise_in_new_folder(options: "ServeOptions") -> None:
    folder = Path(tempfile.mkdtemp(prefix="rankhouse-serve-"))
    is_clean = False
    try:
        _supervise(replace(options, run_dir=folder))
        is_clean = True
    finally:
        # After a failure its message names the logs.
        if is_clean or not any(folder.iterdir()):
            shutil.rmtree(folder)


def _supervise(options: "ServeOptions") -> None:
    """Serves until it is interrupted."""
    from rankhouse.serving.supervisor import serve as supervise

    signal.signal(signal.SIGTERM, _interrupt_once)
    signal.signal(signal.SIGINT, _interrupt_once)
    console = Console()
    is_ready = False
    try:
        with console.status(f"Starting Triton and the gateway for {options.model} {options.version}") as status:

            def show(serving: "Serving") -> None:
                nonlocal is_ready
                is_ready = True
                status.stop()
                console.print(_panel(serving))

            def tell(line: str) -> None:
                if is_ready:
                    console.print(line, style="yellow", highlight=False, soft_wrap=True)
                else:
                    status.update(line)

            supervise(options, on_ready=show, on_news=tell)
    except KeyboardInterrupt:
        console.print("Stopped.")


def _triton(binary: Path | None, url: str | None, repository: Path | None) -> "Path | ExternalTriton | None":
    from rankhouse.serving.supervisor import ExternalTriton

    if url and binary:
        raise typer.BadParameter("give --triton-url or --triton-bin, not both")
    if (url is None) != (repository is None):
        raise typer.BadParameter("--triton-url and --triton-repository go together")
    return ExternalTriton(url, repository) if url and repository else binary


def _refresh(refresh: str | None, rollout: Path | None) -> Any:
    if refresh not in (None, "direct", "rollout", "manual"):
        raise typer.BadParameter(f"--refresh {refresh}: expected direct, rollout or manual")
    if (refresh == "rollout") != (rollout is not None):
        raise typer.BadParameter("--refresh rollout and --rollout FILE go together")
    return refresh


def _steps(path: Path) -> Any:
    """Reads the steps that each new version takes."""
    import yaml

    from rankhouse.serving.control.rollout_spec import parse_rollout

    try:
        return parse_rollout(yaml.safe_load(path.read_text(encoding="utf-8")), is_template=True)
    except (OSError, yaml.YAMLError) as exc:
        raise typer.BadParameter(f"--rollout {path}: cannot be read as YAML ({exc})") from exc


def _name_and_value(option: str) -> tuple[str, str]:
    name, separator, value = option.partition("=")
    if not name or not separator:
        raise typer.BadParameter(f"--engine {option}: expected name=value, as in --engine num_threads=2")
    return name, value


def _interrupt_once(number: int, frame: Any) -> None:
    """Turns the first signal into a KeyboardInterrupt; further ones do not disturb the stopping, which is bounded."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _panel(serving: "Serving") -> Panel:
    golden = serving.golden
    lines = {
        "REST": f"{serving.rest_url}/v1/models/{serving.model}/score",
        "try it": f"{serving.rest_url}/docs",
        "gRPC": f"{serving.grpc_url}  rankhouse.v1.Ranking/Score",
        "metrics": f"{serving.rest_url}/metrics",
        "Triton": "  ".join(filter(None, [serving.triton_url, serving.triton_metrics_url])),
        "refresh": _WHAT_HAPPENS[serving.refresh.split(",")[0]]
        + (" (held)" if serving.refresh.endswith("held") else ""),
        "golden": f"{golden.num_scores} scores, at most {golden.max_difference:.1e} from the trainer's",
        "operations": f"{serving.admin_url}/  key in {serving.admin_key_file}",
        "logs": serving.run_dir,
        "stop": "Ctrl-C, or SIGTERM",
    }
    table = Table.grid(padding=(0, 2))
    for name, value in lines.items():
        table.add_row(name, Text(value))
    return Panel(table, title=f"{serving.model} {serving.version}", expand=False)
