"""`rankhouse version`: what is in a version store."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rankhouse.embedding_cache.format.errors import FormatError

app = typer.Typer(help="List, show and verify the versions of a store.", no_args_is_help=True)

Store = Annotated[Path, typer.Argument(metavar="STORE", help="The store's folder.")]
Name = Annotated[str, typer.Argument(metavar="VERSION", help="A version's name, or latest.")]


@app.command("list")
def list_versions(store: Store) -> None:
    """Lists the versions of a store, oldest first."""
    from rankhouse.embedding_cache.format.version import VersionStore

    opened = VersionStore(store)
    table = _table("version", "model", "created (UTC)", "rows", "size", "AUC")
    for name in opened.names():
        version = opened.open(name, verify=False)
        rows = sum(entry.num_rows for entry in version.tables)
        auc = version.metrics.get("auc")
        table.add_row(
            name,
            version.model,
            version.created_at.strftime("%Y-%m-%d %H:%M:%S"),
            f"{rows:,}",
            _size(version.num_bytes),
            "" if auc is None else f"{auc:.5f}",
        )
    Console().print(table)


@app.command()
def show(store: Store, version: Name = "latest") -> None:
    """Shows a version: its files, tables and features."""
    from rankhouse.embedding_cache.format.version import VersionStore

    opened = VersionStore(store).open(version, verify=False)
    console = Console()
    metrics = ", ".join(f"{name} {_metric(value)}" for name, value in opened.metrics.items()) or "none"
    console.print(f"[bold]{opened.name}[/] of the model [bold]{opened.model}[/], {_size(opened.num_bytes)}")
    console.print(f"created {opened.created_at.isoformat(timespec='seconds')}, metrics: {metrics}", highlight=False)
    console.print(f"dense \\[B, {opened.num_dense}], embeddings \\[B, {opened.embeddings_dim}]", highlight=False)
    files = _table("file", "size", "sha256")
    for name, record in opened.manifest.files.items():
        files.add_row(name, _size(record.bytes), record.sha256[:16])
    tables = _table("table", "rows", "width", "size", "segments", "features")
    for entry in opened.tables:
        users = [f"{feature.name} ({feature.combiner})" for feature in opened.features if feature.table == entry.name]
        size = _size(sum(segment.bytes for segment in entry.segments))
        segments = ", ".join(segment.sha256[:8] for segment in entry.segments)
        tables.add_row(entry.name, f"{entry.num_rows:,}", str(entry.dim), size, segments, ", ".join(users))
    console.print(files)
    console.print(tables)


@app.command()
def verify(
    store: Store, version: Annotated[str, typer.Argument(metavar="[VERSION]", help="Only this one.")] = ""
) -> None:
    """Reads every file of a store's versions and compares its checksum."""
    from rankhouse.embedding_cache.format.version import VersionStore

    opened = VersionStore(store)
    console = Console(highlight=False, soft_wrap=True)
    damaged = []
    for name in [version] if version else opened.names():
        try:
            with console.status(f"verifying {name}"):
                checked = opened.open(name)
        except FormatError as error:
            damaged.append(name)
            console.print(f"[bold]{name}[/]: [bold red]damaged[/]: {escape(str(error))}")
        else:
            console.print(f"{checked.name}: sound, {_size(checked.num_bytes)}")
    if damaged:
        raise typer.Exit(1)


def _metric(value: object) -> str:
    return f"{value:.5f}" if isinstance(value, float) else str(value)


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in ("rows", "width", "size", "AUC") else "left")
    return table


def _size(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
