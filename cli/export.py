"""`rankhouse export`: a trained run becomes a version."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from rankhouse.embedding_cache.format.version import Version


class RowType(str, Enum):
    """What rows can be stored as."""

    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"
    int8 = "int8"


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's folder, runs/NAME.")],
    store: Annotated[str, typer.Option(help="The version store: a folder or a URL, s3://bucket/models.")] = "store",
    model: Annotated[str, typer.Option(help="The model's name in the store and in the gateway's paths.")] = "dlrm",
    checkpoint: Annotated[Path | None, typer.Option(help="A checkpoint's folder; default is the newest.")] = None,
    delta: Annotated[
        bool, typer.Option("--delta", help="Write only the rows that changed since the parent, and share the others.")
    ] = False,
    parent: Annotated[
        str | None, typer.Option(help="With --delta: the version to change; default is the newest of the model.")
    ] = None,
    row_type: Annotated[
        RowType | None, typer.Option(help="What rows are stored as; default is float32, a delta has its parent's.")
    ] = None,
    max_auc_loss: Annotated[
        float, typer.Option(min=0, help="How much lower the held-out AUC may be than with float32 rows.")
    ] = 0.001,
) -> None:
    """Write a run's model as a new version, after checking that it scores as the trainer does."""
    from rankhouse.training.export.export import export_delta, export_version

    if delta and row_type is not None:
        raise typer.BadParameter("a delta has its parent's row type; leave --row-type out, or --delta")
    if parent is not None and not delta:
        raise typer.BadParameter("--parent names what a delta changes; give --delta with it")
    console, began = Console(highlight=False, soft_wrap=True), time.monotonic()
    with _progress(console) as on_bytes:
        if delta:
            version = export_delta(
                run,
                store=store,
                model=model,
                parent=parent or "latest",
                checkpoint=checkpoint,
                max_auc_loss=max_auc_loss,
                on_bytes=on_bytes,
            )
        else:
            version = export_version(
                run,
                store=store,
                model=model,
                checkpoint=checkpoint,
                row_type=(row_type or RowType.float32).value,
                max_auc_loss=max_auc_loss,
                on_bytes=on_bytes,
            )
    written = delta_summary(store, version) if delta else f"{version.num_bytes:,} bytes, {_rows(version)}"
    console.print(f"[bold]{version.name}[/] of {model} in {store}: {written}, {time.monotonic() - began:.1f} s")
    for line in _costs(version):
        console.print(line)
    console.print(f"golden requests: {sum(len(golden.scores) for golden in version.golden())} rows reproduced")


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[int, int], None]]:
    columns = (TextColumn("exporting rows"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("rows", total=None)
        yield lambda written, total: progress.update(task, completed=written, total=total)


def _rows(version: "Version") -> str:
    return f"{sum(table.num_rows for table in version.tables):,} rows in {len(version.tables)} tables"


def delta_summary(store: str, version: "Version") -> str:
    """Says what a delta that was just written holds beyond its parent, or in all where the parent cannot be read."""
    from rankhouse.embedding_cache.format.errors import FormatError
    from rankhouse.embedding_cache.format.version import VersionStore
    from rankhouse.embedding_cache.maintenance.inventory import additions

    assert version.parent is not None
    try:
        parent = VersionStore(store).read(version.parent.name)
    except FormatError:  # It was collected meanwhile; the version is there, and complete without it.
        return f"a delta beyond {version.parent.name}; {version.num_bytes:,} bytes, {_rows(version)} in all"
    added = additions([parent, version])[-1]
    return (
        f"{added.num_rows:,} rows and {added.num_removed:,} tombstones beyond {parent.name}, "
        f"{added.num_bytes:,} bytes; {_rows(version)} in all"
    )


def _costs(version: "Version") -> Iterator[str]:
    """What the row types cost."""
    metrics, row_types = version.metrics, sorted({table.dtype for table in version.tables})
    if "row_error_max" in metrics:
        yield (
            f"rows in {', '.join(row_types)}: error {metrics['row_error_max']:.3g} at most, "
            f"{metrics['row_error_mean']:.3g} on average"
        )
    if "auc_loss" in metrics:
        rows = f"the first {metrics['auc_loss_rows']:,} held-out rows"
        yield f"AUC on {rows}: {metrics['auc_loss']:+.6f} lost against float32"
