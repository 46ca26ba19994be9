"""`rankhouse version import-hps`: models of NVIDIA's Hierarchical Parameter Server become versions."""

import time
from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

if TYPE_CHECKING:
    from rankhouse.embedding_cache.hps.ps_json import Setting


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
    store: Annotated[str, typer.Option(help="The version store: a folder or a URL, s3://bucket/models.")] = "store",
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
    console.print("The settings in the file and what they do in HPS, under what takes their place here:")
    for place, settings in _by_place(found.settings).items():
        console.print(f"\n[bold]{escape(place)}[/]")
        console.print(_table((f"{setting.name} = {setting.value}", setting.field.there) for setting in settings))
    console.print()
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


def _by_place(settings: "Iterable[Setting]") -> "dict[str, list[Setting]]":
    """The settings under what takes their place; those that are taken over come first."""
    places: dict[str, list[Setting]] = {}
    for setting in settings:
        places.setdefault(setting.field.here, []).append(setting)
    return dict(sorted(places.items(), key=lambda item: not item[0].startswith("taken over")))


def _table(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 0, 0, 2))
    for _ in range(2):
        table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    return table
