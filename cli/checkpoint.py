"""`rankhouse checkpoint`: what a run has saved."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(help="List, inspect and verify the checkpoints of a run.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="PATH", help="A run, its checkpoints folder, or one checkpoint.")]


@app.command("list")
def list_checkpoints(path: Folder) -> None:
    """Lists the complete checkpoints, oldest first."""
    from rankhouse.training.checkpoint_files import Checkpoint, find_checkpoints

    table = _table("step", "ranks", "tables", "MiB", "folder")
    for folder in find_checkpoints(path):
        opened = Checkpoint.open(folder)
        num_ranks = str(opened.manifest["num_ranks"])
        table.add_row(str(opened.step), num_ranks, str(len(opened.tables)), _mebibytes(opened.num_bytes), str(folder))
    Console().print(table)


@app.command()
def inspect(path: Folder) -> None:
    """Shows what the latest checkpoint holds."""
    from rankhouse.training.checkpoint_files import Checkpoint, find_checkpoints

    opened = Checkpoint.open(find_checkpoints(path)[-1])
    console = Console(highlight=False, soft_wrap=True)
    optimizer = opened.manifest["optimizer"]["name"]
    console.print(f"[bold]{opened.path}[/]: step {opened.step}, {opened.manifest['num_ranks']} ranks, {optimizer}")
    console.print(
        f"id {opened.id}, {opened.iterations} steps over all runs, {len(opened.lineage) - 1} checkpoints before"
    )
    for name, value in opened.document.items():
        values = [f"{key} {item}" for key, item in value.items()] if isinstance(value, Mapping) else [str(value)]
        console.print(f"{name}: {', '.join(values)}", markup=False)
    tables = _table("table", "rows", "width", "arrays", "files", "MiB")
    for name, info in opened.tables.items():
        files = {item.file for item in opened.row_ranges if item.table == name}
        size = _mebibytes(sum(opened.files[file].bytes for file in files))
        tables.add_row(name, f"{info.num_rows:,}", str(info.dim), ", ".join(info.arrays), str(len(files)), size)
    console.print(tables)
    dense = _table("variable", "shape")
    for name, value in opened.dense().items():
        dense.add_row(name, " x ".join(map(str, value.shape)) or "scalar")
    console.print(dense)


@app.command()
def verify(path: Folder) -> None:
    """Reads every file of the checkpoints and compares its checksum."""
    from rankhouse.training.checkpoint_files import Checkpoint, find_checkpoints

    console = Console()
    for folder in find_checkpoints(path):
        opened = Checkpoint.open(folder)
        with console.status(f"verifying {folder}"):
            opened.verify()
        console.print(f"{folder}: sound, {_mebibytes(opened.num_bytes)} MiB", highlight=False, soft_wrap=True)


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, justify="left" if column in ("table", "arrays", "folder", "variable") else "right")
    return table


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f}"
