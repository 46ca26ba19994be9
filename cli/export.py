"""`rankhouse export`: a trained run becomes a version."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder, runs/NAME.")],
    store: Annotated[Path, typer.Option(help="The version store's folder.")] = Path("store"),
    model: Annotated[str, typer.Option(help="The model's name in the store and in the gateway's paths.")] = "dlrm",
    checkpoint: Annotated[Path | None, typer.Option(help="A checkpoint's folder; default is the newest.")] = None,
) -> None:
    """Writes a run's model as a new version, after checking that it scores as the trainer does."""
    from rankhouse.training.export import export_version

    console = Console()
    began = time.monotonic()
    columns = (TextColumn("exporting rows"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("rows", total=None)
        version = export_version(
            run,
            store=store,
            model=model,
            checkpoint=checkpoint,
            on_bytes=lambda written, total: progress.update(task, completed=written, total=total),
        )
    rows = sum(table.num_rows for table in version.tables)
    console.print(
        f"[bold]{version.name}[/] of {model} in {store}: {version.num_bytes:,} bytes, {rows:,} rows in "
        f"{len(version.tables)} tables, {time.monotonic() - began:.1f} s",
        highlight=False,
        soft_wrap=True,
    )
    console.print(f"golden requests: {sum(len(golden.scores) for golden in version.golden())} rows reproduced")
