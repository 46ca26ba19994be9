"""`rankhouse version import-hps`: models of NVIDIA's Hierarchical Parameter Server become versions."""

import time
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table


class Combiner(str, Enum):
    """What becomes of a sample's keys of a table."""

    SUM = "sum"
    MEAN = "mean"
    CONCAT = "concat"


class RowType(str, Enum):
    """How rows are stored."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"


_COMBINED = {
    Combiner.SUM: "the rows of a sample's keys of a table are added up (HPS does not pool: see --combiner)",
    Combiner.MEAN: "of the rows of a sample's keys of a table the mean is taken (HPS does not pool: see --combiner)",
    Combiner.CONCAT: "the rows of a sample's keys of a table stay side by side, as in HPS",
}


def import_models(
    ps_json: Annotated[Path, typer.Argument(metavar="PS_JSON", help="The configuration file of HPS.")],
    store: Annotated[Path, typer.Option(help="The version store's folder.")] = Path("store"),
    model: Annotated[str | None, typer.Option(help="Only this model of the file; default is all.")] = None,
    dense: Annotated[
        Path | None, typer.Option(help="The model's dense part, ONNX; without one it cannot be served.")
    ] = None,
    row_type: Annotated[RowType, typer.Option(help="How rows are stored.")] = RowType.FLOAT32,
    combiner: Annotated[
        Combiner,
        typer.Option(help="What becomes of a sample's keys of a table; concat leaves them apart, as HPS does."),
    ] = Combiner.SUM,
) -> None:
    """Takes models of HPS over, each as a new version, and says what takes the place of every setting in PS_JSON."""
    from rankhouse.embedding_cache.hps.importing import ImportOptions, import_hps
    from rankhouse.embedding_cache.hps.ps_json import read_ps_json

    found, console = read_ps_json(ps_json), Console(highlight=False)
    console.print(
        _table((setting.name, setting.value, setting.field.there, setting.field.here) for setting in found.settings)
    )
    part = None
    if dense is not None:
        from rankhouse.serving.triton_models.dense import DensePart

        part = DensePart(dense)
    began = time.monotonic()
    columns = (TextColumn("checking, then writing rows"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("rows", total=None)
        versions = import_hps(
            found,
            store=store,
            model=model,
            options=ImportOptions(row_type.value, combiner.value, part),
            on_bytes=lambda done, total: progress.update(task, completed=done, total=total),
        )
    for version in versions:
        rows = sum(table.num_rows for table in version.tables)
        console.print(
            f"[bold]{version.name}[/] of {version.model} in {store}: {version.num_bytes:,} bytes, {rows:,} rows in "
            f"{len(version.tables)} tables",
            soft_wrap=True,
        )
    console.print(f"{time.monotonic() - began:.1f} s; {_COMBINED[combiner]}", soft_wrap=True)
    if dense is None:
        console.print("without a dense part it can be looked up, but not served: give one as ONNX by --dense")


def _table(rows: Iterable[tuple[str, str, str, str]]) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("setting", "value", "in HPS", "here"):
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table
