"""`rankhouse plan`: which rank would hold which table, and what a training step would cost."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from rankhouse.training.planner.workload import Workload


def plan(
    dataset: Annotated[
        Path | None, typer.Argument(metavar="[DATASET]", help="A prepared dataset's folder.", show_default=False)
    ] = None,
    ranks: Annotated[int, typer.Option(help="How many ranks would train.", min=1)] = 2,
    threshold: Annotated[
        int | None, typer.Option(help="Tables with fewer rows lie on every rank; 0 is none.", min=0, show_default=False)
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Instead of a dataset: a synthetic model, tiny to colossal, or criteo.")
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(help="Plan by cost for: a100, h100, h200, 2-cores, or the file that --calibrate wrote."),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Samples of a step, over all ranks.", min=1)] = 65536,
    memory: Annotated[float | None, typer.Option(help="GiB of each rank, if other than the hardware's.")] = None,
    optimizer: Annotated[str, typer.Option(help="Its rule, which says what is kept beside each row.")] = "adagrad",
    constraints: Annotated[
        Path | None, typer.Option(help="YAML: mode, ranks, device and more of tables, by name or pattern.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the plan into this .svg or .png file.")] = None,
    calibrate: Annotated[Path | None, typer.Option(help="Measure this machine, write its profile here.")] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show predicted beside published step times, as Markdown.")
    ] = False,
) -> None:
    """Shows which rank would hold which embedding table, and why.

    With --hardware or --model it plans by cost, and shows memory, bytes
    on the wire and time before anything is allocated. What does not fit
    is refused, with what would.
    """
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if calibrate is not None:
        _calibrate(console, calibrate)
    elif compare:
        from rankhouse.training.planner.published import comparison

        console.print(comparison())
    elif (dataset is None) == (model is None):
        raise typer.BadParameter("give a prepared dataset or a --model, one of them")
    elif dataset is not None and hardware is None:
        _show_default(console, dataset, ranks=ranks, threshold=threshold)
    else:
        workload = _workload(dataset, model, batch_size=batch_size, optimizer=optimizer)
        _show_by_cost(
            console,
            workload,
            ranks=ranks,
            hardware=hardware or "a100",
            memory=memory,
            constraints=constraints,
            picture=picture,
        )


def _calibrate(console: Console, path: Path) -> None:
    from rankhouse.training.planner.calibration import calibrate
    from rankhouse.training.ranks import Ranks

    ranks = Ranks.init()
    measured = calibrate(path.stem, ranks=ranks)
    if ranks.rank > 0:
        return
    measured.save(path)
    console.print(f"wrote what this machine achieves to {path}; plan with --hardware {path}")
    if ranks.size == 1:
        console.print(
            "Exchanges were not measured, and are taken to be those of the profile 2-cores: a rank has no other to "
            f"exchange with. To measure them: horovodrun -np 2 rankhouse plan --calibrate {path}"
        )


def _workload(dataset: Path | None, model: str | None, *, batch_size: int, optimizer: str) -> "Workload":
    from rankhouse.kernels.optimizer_settings import RULES
    from rankhouse.training.data.prepared import PreparedDataset
    from rankhouse.training.models.synthetic_models import ID_EXPONENT, synthetic_model
    from rankhouse.training.plan import TableSpec
    from rankhouse.training.planner.workload import TableLoad, Workload, synthetic_workload

    if optimizer not in RULES:
        raise typer.BadParameter(f"there is no optimizer {optimizer!r}; expected one of {', '.join(RULES)}")
    rule = RULES[optimizer]()
    if model is not None:
        return synthetic_workload(synthetic_model(model), batch_size=batch_size, optimizer=rule)
    assert dataset is not None
    opened = PreparedDataset.open(dataset)
    loads = []
    for name, info in opened.tables.items():
        num_inputs = len(opened.spec.tables[name])
        # Known values come by falling frequency, and those of logs follow about such a law.
        loads.append(TableLoad(TableSpec(name, info.num_rows, info.dim, float(num_inputs)), num_inputs, ID_EXPONENT))
    return Workload(tuple(loads), batch_size, optimizer=rule)


def _show_by_cost(
    console: Console,
    workload: "Workload",
    *,
    ranks: int,
    hardware: str,
    memory: float | None,
    constraints: Path | None,
    picture: Path | None,
) -> None:
    from rankhouse.training.planner.constraints import load_constraints
    from rankhouse.training.planner.explanation import explain
    from rankhouse.training.planner.hardware import hardware_profile
    from rankhouse.training.planner.placing import plan_tables
    from rankhouse.training.planner.workload import Cluster

    cluster = Cluster(ranks, hardware_profile(hardware), None if memory is None else memory * 2**30)
    decided = load_constraints(constraints) if constraints is not None else {}
    made = plan_tables(workload, cluster, constraints=decided)
    console.print(explain(made))
    if picture is not None:
        from rankhouse.training.planner.picture import draw

        draw(made, picture)
        console.print(f"\ndrawn into {picture}")


def _show_default(console: Console, dataset: Path, *, ranks: int, threshold: int | None) -> None:
    from rankhouse.training.data.prepared import PreparedDataset
    from rankhouse.training.plan import DATA_PARALLEL_THRESHOLD_ROWS, TableSpec, make_plan

    opened = PreparedDataset.open(dataset)
    tables = [
        TableSpec(name, info.num_rows, info.dim, float(len(opened.spec.tables[name])))
        for name, info in opened.tables.items()
    ]
    limit = DATA_PARALLEL_THRESHOLD_ROWS if threshold is None else threshold
    made = make_plan(tables, num_ranks=ranks, data_parallel_threshold_rows=limit)
    console.print(
        f"Tables with fewer than {limit:,} rows lie on every rank; each other one, largest first, on the least loaded "
        "rank.\n"
    )
    placed = Table("table", box=None, header_style="bold", pad_edge=False)
    for column in ("rows", "width", "MiB"):
        placed.add_column(column, justify="right")
    placed.add_column("held by")
    for table in sorted(made.tables, key=lambda table: -table.weight_bytes):
        size = f"{table.weight_bytes / 2**20:,.2f}"
        placed.add_row(table.name, f"{table.num_rows:,}", str(table.dim), size, made.placement(table.name).held_by)
    console.print(placed)
    console.print()
    for rank in range(ranks):
        console.print(made.explain_rank(rank))
