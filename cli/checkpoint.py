"""`rankhouse checkpoint`: what a run has saved."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from rankhouse.training.checkpoint.files import Checkpoint

app = typer.Typer(help="List, inspect and verify the checkpoints of a run.", no_args_is_help=True)

Folder = Annotated[Path, typer.Argument(metavar="PATH", help="A run, its checkpoints folder, or one checkpoint.")]


@app.command("list")
def list_checkpoints(path: Folder) -> None:
    """Lists the complete checkpoints, oldest first."""
    from rankhouse.training.checkpoint.files import Checkpoint, find_checkpoints

    table = _table("step", "ranks", "tables", "MiB", "folder")
    for folder in find_checkpoints(path):
        opened = Checkpoint.open(folder)
        num_ranks = str(opened.manifest["num_ranks"])
        table.add_row(str(opened.step), num_ranks, str(len(opened.tables)), _mebibytes(opened.num_bytes), str(folder))
    Console().print(table)


@app.command()
def inspect(
    path: Folder,
    as_json: Annotated[bool, typer.Option("--json", help="Print all of it as one JSON object.")] = False,
) -> None:
    """Shows what the latest checkpoint holds: tables, slots, sizes, the plan, and the checkpoints that led to it."""
    from rankhouse.training.checkpoint.files import Checkpoint, find_checkpoints

    summary = summarize(Checkpoint.open(find_checkpoints(path)[-1]))
    if as_json:
        print(json.dumps(summary, indent=1))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"[bold]{summary['path']}[/]: step {summary['step']}, {summary['num_ranks']} ranks, {summary['optimizer']}, "
        f"{_mebibytes(summary['bytes'])} MiB"
    )
    for name, value in summary["document"].items():
        values = [f"{key} {item}" for key, item in value.items()] if isinstance(value, Mapping) else [str(value)]
        console.print(f"{name}: {', '.join(values)}", markup=False)
    for rows in (_lineage_rows(summary), _table_rows(summary), _dense_rows(summary)):
        console.print(rows)


@app.command()
def verify(path: Folder) -> None:
    """Reads every file of the checkpoints, compares its checksum, and names all that are damaged."""
    from rankhouse.training.checkpoint.files import Checkpoint, find_checkpoints, find_damage
    from rankhouse.training.errors import CheckpointError

    console, damages = Console(), []
    for folder in find_checkpoints(path):
        with console.status(f"verifying {folder}"):
            found = find_damage(folder)
        faults = f"{len(found)} fault{'s' if len(found) > 1 else ''}"
        state = f"damaged, {faults}" if found else f"sound, {_mebibytes(Checkpoint.open(folder).num_bytes)} MiB"
        console.print(f"{folder}: {state}", highlight=False, soft_wrap=True)
        damages += found
    if damages:
        raise CheckpointError("\n".join(damages))


def summarize(opened: "Checkpoint") -> dict[str, Any]:
    """Returns what a checkpoint holds as JSON values, without its contents."""
    return {
        "path": str(opened.path),
        "step": opened.step,
        "id": opened.id,
        "iterations": opened.iterations,
        "num_ranks": opened.manifest["num_ranks"],
        "optimizer": opened.manifest["optimizer"]["name"],
        "bytes": opened.num_bytes,
        "document": dict(opened.document),
        "lineage": [{"id": name, "iterations": iterations} for name, iterations in opened.lineage],
        "plan": opened.manifest["plan"],
        "tables": {name: _summarize_table(opened, name) for name in opened.tables},
        "vocabularies": {
            name: {array: list(values.shape) for array, values in kept.items()}
            for name, kept in opened.vocabularies().items()
        },
        "dense": {
            name: {"shape": list(value.shape), "dtype": str(value.dtype)} for name, value in opened.dense().items()
        },
    }


def _summarize_table(opened: "Checkpoint", name: str) -> dict[str, Any]:
    info = opened.tables[name]
    placed = [item for item in opened.manifest["plan"]["placements"] if item["table"] == name]
    return {
        "num_rows": info.num_rows,
        "dim": info.dim,
        "initial_rows": info.initial_rows,
        "mode": placed[0]["mode"] if placed else None,
        "arrays": {array: _summarize_array(opened, name, array) for array in info.arrays},
    }


def _summarize_array(opened: "Checkpoint", table: str, array: str) -> dict[str, Any]:
    pieces = [piece for piece in opened.pieces if (piece.table, piece.array) == (table, array)]
    info, (dtype, has_columns) = opened.tables[table], opened.array_type(table, array)
    return {
        "shape": [info.num_rows, info.dim] if has_columns else [info.num_rows],
        "dtype": dtype,
        "bytes": sum(opened.files[piece.file].bytes for piece in pieces),
        "files": [
            {
                "file": piece.file,
                "rows": [piece.start, piece.stop],
                "columns": [piece.column_start, piece.column_stop],
            }
            for piece in pieces
        ],
    }


def _lineage_rows(summary: Mapping[str, Any]) -> Table:
    rows = _table("lineage", "iterations")
    for item in summary["lineage"]:
        rows.add_row(item["id"], str(item["iterations"]))
    return rows


def _table_rows(summary: Mapping[str, Any]) -> Table:
    rows = _table("table", "mode", "array", "shape", "type", "files", "MiB")
    for name, table in summary["tables"].items():
        for array, info in table["arrays"].items():
            shape = " x ".join(f"{size:,}" for size in info["shape"])
            files = str(len(info["files"]))
            rows.add_row(name, table["mode"] or "", array, shape, info["dtype"], files, _mebibytes(info["bytes"]))
    return rows


def _dense_rows(summary: Mapping[str, Any]) -> Table:
    rows = _table("variable", "shape")
    for name, info in summary["dense"].items():
        rows.add_row(name, " x ".join(map(str, info["shape"])) or "scalar")
    return rows


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    texts = ("table", "mode", "array", "type", "folder", "variable", "lineage")
    for column in columns:
        table.add_column(column, justify="left" if column in texts else "right")
    return table


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:,.1f}"
