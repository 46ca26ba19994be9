"""`rankhouse plan`: which rank would hold which table."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


def plan(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="A prepared dataset's folder.")],
    ranks: Annotated[int, typer.Option(help="How many ranks would train.", min=1)] = 2,
    threshold: Annotated[
        int | None, typer.Option(help="Tables with fewer rows lie on every rank; 0 is none.", min=0, show_default=False)
    ] = None,
) -> None:
    """Shows which rank would hold which embedding table, and why."""
    from rankhouse.training.data.prepared import PreparedDataset
    from rankhouse.training.plan import DATA_PARALLEL_THRESHOLD_ROWS, TableSpec, make_plan

    opened = PreparedDataset.open(dataset)
    tables = [
        TableSpec(name, info.num_rows, info.dim, float(len(opened.spec.tables[name])))
        for name, info in opened.tables.items()
    ]
    limit = DATA_PARALLEL_THRESHOLD_ROWS if threshold is None else threshold
    made = make_plan(tables, num_ranks=ranks, data_parallel_threshold_rows=limit)

    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"Tables with fewer than {limit:,} rows lie on every rank; each other one, largest first, on the least loaded "
        "rank.\n"
    )
    placed = Table("table", box=None, header_style="bold", pad_edge=False)
    for column in ("rows", "width", "MiB"):
        placed.add_column(column, justify="right")
    placed.add_column("held by")
    for table in sorted(made.tables, key=lambda table: -table.weight_bytes):
        placement = made.placement(table.name)
        size = f"{table.weight_bytes / 2**20:,.2f}"
        placed.add_row(table.name, f"{table.num_rows:,}", str(table.dim), size, placement.held_by)
    console.print(placed)
    console.print()
    for rank in range(ranks):
        console.print(made.explain_rank(rank))
