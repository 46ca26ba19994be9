"""`rankhouse serve`."""

import shutil
import signal
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from rankhouse.serving.supervisor import Serving


def serve(
    store: Annotated[
        str,
        typer.Option(help="The version store, as `rankhouse export` wrote it: a folder or a URL, s3://bucket/models."),
    ] = "store",
    model: Annotated[str, typer.Option(help="Name of the model.")] = "dlrm",
    version: Annotated[str, typer.Option(help="Name of the version.")] = "latest",
    host: Annotated[
        str, typer.Option(help="Address of the gateway; 0.0.0.0 is every one of this machine's.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of REST; 0 takes a free one.", min=0, max=65535)] = 8080,
    grpc_port: Annotated[int, typer.Option(help="Port of gRPC; 0 takes a free one.", min=0, max=65535)] = 8081,
    triton_bin: Annotated[
        Path | None, typer.Option(help="Another program `tritonserver` than the packaged one.")
    ] = None,
    triton_url: Annotated[str | None, typer.Option(help="gRPC address of a running Triton, host:port.")] = None,
    triton_repository: Annotated[Path | None, typer.Option(help="That Triton's model repository.")] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option(help="An option of the embedding engine, as num_threads=2; may be given several times."),
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option(help="Folder for logs and serving.json; by default one that goes when all went well.")
    ] = None,
) -> None:
    """Serve a version: start Triton and the gateway, check the golden scores, stop both on Ctrl-C or SIGTERM."""
    from rankhouse.serving.supervisor import ExternalTriton, ServeOptions
    from rankhouse.serving.supervisor import serve as supervise

    if triton_url and triton_bin:
        raise typer.BadParameter("give --triton-url or --triton-bin, not both")
    if (triton_url is None) != (triton_repository is None):
        raise typer.BadParameter("--triton-url and --triton-repository go together")
    if triton_url and engine:
        raise typer.BadParameter("--engine goes to a Triton that starts here; that at --triton-url has its own options")
    external = ExternalTriton(triton_url, triton_repository) if triton_url and triton_repository else None
    folder = run_dir or Path(tempfile.mkdtemp(prefix="rankhouse-serve-"))
    options = ServeOptions(
        store,
        model,
        folder,
        version=version,
        host=host,
        port=port,
        grpc_port=grpc_port,
        triton=external or triton_bin,
        engine_options=dict(_name_and_value(option) for option in engine or ()),
    )
    signal.signal(signal.SIGTERM, _interrupt_once)
    signal.signal(signal.SIGINT, _interrupt_once)
    console = Console()
    is_clean = False
    try:
        with console.status(f"Verifying {model} {version}, starting Triton, replaying golden requests") as status:

            def show(serving: "Serving") -> None:
                status.stop()
                console.print(_panel(serving))

            supervise(options, on_ready=show)
    except KeyboardInterrupt:
        is_clean = True
        console.print("Stopped.")
    finally:
        # After a failure its message names the logs.
        if run_dir is None and (is_clean or not any(folder.iterdir())):
            shutil.rmtree(folder)


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
        "golden": f"{golden.num_scores} scores, at most {golden.max_difference:.1e} from the trainer's",
        "logs": serving.run_dir,
        "stop": "Ctrl-C, or SIGTERM",
    }
    table = Table.grid(padding=(0, 2))
    for name, value in lines.items():
        table.add_row(name, Text(value))
    return Panel(table, title=f"{serving.model} {serving.version}", expand=False)
