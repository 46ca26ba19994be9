"""`rankhouse version`: what is in a version store, and what is done with versions after they exist."""

import re
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

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
    dense = "no dense part" if opened.record.num_dense is None else f"dense \\[B, {opened.num_dense}]"
    console.print(f"{dense}, embeddings \\[B, {opened.embeddings_dim}]", highlight=False)
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
    """Reads every file of a store's versions, each once, and compares its checksum."""
    from rankhouse.embedding_cache.format.version import VersionStore
    from rankhouse.embedding_cache.maintenance.verification import verify_versions

    opened = VersionStore(store)
    names = [opened.open(version, verify=False).name if version == "latest" else version] if version else opened.names()
    console, began = Console(highlight=False, soft_wrap=True), time.monotonic()
    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("bytes", total=None)
        found = verify_versions(
            opened, names, on_bytes=lambda done, total: progress.update(task, completed=done, total=total)
        )
    for name in names:
        state = f"sound, {_size(found.sound[name])}" if name in found.sound else "[bold red]damaged[/]"
        console.print(f"{name}: {state}")
    for damage in found.damages:
        console.print(f"[bold red]damaged:[/] {escape(damage.reason)} [dim](needed by {', '.join(damage.versions)})[/]")
    console.print(f"{_count(len(names), 'version')} read in {time.monotonic() - began:.1f} s")
    if found.damages:
        raise typer.Exit(1)


@app.command()
def gc(
    store: Store,
    keep: Annotated[int, typer.Option(min=1, help="How many versions of each model stay, the newest.")],
    grace_hours: Annotated[
        float, typer.Option(min=0, help="How long an unfinished write must have been left alone before it goes.")
    ] = 24,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would go.")] = False,
) -> None:
    """Removes old versions and the files that no version needs any more.

    It waits for writers. Readers go on: what a process has open stays readable, and its space is freed when it lets go.
    """
    from rankhouse.embedding_cache.format.version import VersionStore
    from rankhouse.embedding_cache.maintenance.collection import collect_garbage, find_garbage

    opened, console = VersionStore(store), Console(highlight=False, soft_wrap=True)
    if dry_run:
        garbage = find_garbage(opened, keep=keep, grace_seconds=3600 * grace_hours)
    else:
        garbage = collect_garbage(
            opened,
            keep=keep,
            grace_seconds=3600 * grace_hours,
            on_wait=lambda: console.print("a writer is at work in the store; waiting until it is done"),
        )
    verb = "would go" if dry_run else "removed"
    table = _table(verb, "what it is", "size")
    for item in garbage:
        path = item.path.relative_to(store)
        kind = {"version": f"version of {item.model}", "segment": "rows that no version names"}
        table.add_row(_short(str(path)), kind.get(item.kind, "unfinished write"), _size(item.bytes))
    if garbage:
        console.print(table)
    num_versions, left = sum(item.kind == "version" for item in garbage), len(opened.names())
    console.print(
        f"{verb}: {_count(num_versions, 'version')} and {_count(len(garbage) - num_versions, 'file')}, "
        f"{_size(sum(item.bytes for item in garbage))}; {left - num_versions * dry_run} of the store's versions stay"
    )


def _metric(value: object) -> str:
    return f"{value:.5f}" if isinstance(value, float) else str(value)


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in ("rows", "width", "size", "AUC") else "left")
    return table


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _short(path: str) -> str:
    """A path with the hash in its name cut to what tells it apart."""
    return re.sub(r"([0-9a-f]{16})[0-9a-f]{48}", r"\1", path).removesuffix(".safetensors")


def _size(num_bytes: int) -> str:
    size = float(num_bytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
