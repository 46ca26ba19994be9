"""`rankhouse plan`: which rank would hold which table, and what a training step would cost."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from rankhouse.training.config import Config
    from rankhouse.training.plan import Plan
    from rankhouse.training.planner.forecast import Forecast
    from rankhouse.training.planner.workload import Cluster

# That of the models' published step times.
MODEL_BATCH_SIZE = 65536


def plan(
    dataset: Annotated[
        Path | None, typer.Argument(metavar="DATASET", help="A prepared dataset's folder.", show_default=False)
    ] = None,
    ranks: Annotated[int, typer.Option(help="How many ranks would train.", min=1)] = 2,
    recipe: Annotated[str, typer.Option(help="What would train: a shipped recipe by name, or a YAML file.")] = "dlrm",
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting of the recipe: training.batch_size=8192.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Instead of a dataset: a synthetic model, tiny to colossal, or criteo.")
    ] = None,
    hardware: Annotated[
        str | None,
        typer.Option(
            help="Plan by cost for: a100, h100, h200, 2-cores, `here`, which is measured, or a file of --calibrate."
        ),
    ] = None,
    threshold: Annotated[
        int | None, typer.Option(help="Tables with fewer rows lie on every rank; 0 is none.", min=0, show_default=False)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Samples of a step, over all ranks; by default the recipe's.", min=1)
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="Its rule; by default the recipe's.")] = None,
    memory: Annotated[float | None, typer.Option(help="GiB of each rank, if other than the hardware's.")] = None,
    constraints: Annotated[
        Path | None, typer.Option(help="YAML: mode, ranks, device and more of tables, by name or pattern.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the plan here; train with it by --set parallel.plan=FILE.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the plan into this .svg or .png file.")] = None,
    calibrate: Annotated[Path | None, typer.Option(help="Measure this machine, write its profile here.")] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Show predicted beside published step times, as Markdown.")
    ] = False,
) -> None:
    """Show which rank would hold which embedding table, and why.

    With --hardware or --model it plans by cost, and shows memory, bytes
    on the wire and time before anything is allocated. What does not fit
    is refused, with what would. Without, it shows the plan of the recipe.
    """
    console = Console(highlight=False, soft_wrap=True, markup=False)
    if calibrate is not None:
        _calibrate(console, calibrate)
        return
    if compare:
        from rankhouse.training.planner.published import comparison

        console.print(comparison())
        return
    if (dataset is None) == (model is None):
        raise typer.BadParameter("give a prepared dataset or a --model, one of them")
    if model is not None:
        made = _plan_model(
            model, _cluster(ranks, hardware or "a100", memory), constraints, batch_size=batch_size, optimizer=optimizer
        )
    elif dataset is not None:
        options = {
            "training.batch_size": batch_size,
            "optimizer.rule": optimizer,
            "parallel.data_parallel_threshold_rows": threshold,
            "parallel.plan": "auto" if hardware is not None else None,
        }
        changes = [f"{key}={value}" for key, value in options.items() if value is not None]
        config = _recipe(recipe, [*changes, *(settings or [])], constraints)
        made = _plan_dataset(console, dataset, config, ranks=ranks, hardware=hardware, memory=memory)
    _write(console, made, output=output, picture=picture)


def _write(console: Console, made: "Forecast", *, output: Path | None, picture: Path | None) -> None:
    if output is not None:
        try:
            output.write_text(json.dumps(made.plan.document(), indent=1) + "\n", encoding="utf-8")
        except OSError as exc:
            raise typer.BadParameter(f"--output {output} cannot be written: {exc.strerror}") from exc
        console.print(f"\nwrote the plan to {output}; train with it by --set parallel.plan={output}")
    if picture is not None:
        from rankhouse.training.planner.picture import draw

        draw(made, picture)
        console.print(f"\ndrawn into {picture}")


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


def _recipe(recipe: str, changes: list[str], constraints: Path | None) -> "Config":
    """Returns a recipe with what else users decide; tables in a file of constraints go before those of the recipe."""
    from rankhouse.training.config import load_recipe, override
    from rankhouse.training.planner.constraints import load_constraints

    config = load_recipe(recipe, overrides=changes)
    if constraints is None:
        return config
    tables = {name: asdict(table) for name, table in config.parallel.tables.items()}
    return override(config, [f"parallel.tables={json.dumps({**tables, **load_constraints(constraints)})}"])


def _plan_model(
    name: str, cluster: "Cluster", constraints: Path | None, *, batch_size: int | None, optimizer: str | None
) -> "Forecast":
    from rankhouse.kernels.optimizer_settings import RULES
    from rankhouse.training.models.synthetic_models import synthetic_model
    from rankhouse.training.planner.constraints import load_constraints
    from rankhouse.training.planner.placing import plan_tables
    from rankhouse.training.planner.workload import synthetic_workload

    optimizer = optimizer or "adagrad"
    if optimizer not in RULES:
        raise typer.BadParameter(f"there is no optimizer {optimizer!r}; expected one of {', '.join(RULES)}")
    workload = synthetic_workload(
        synthetic_model(name), batch_size=batch_size or MODEL_BATCH_SIZE, optimizer=RULES[optimizer]()
    )
    decided = load_constraints(constraints) if constraints is not None else {}
    made = plan_tables(workload, cluster, constraints=decided)
    _explain(made)
    return made


def _plan_dataset(
    console: Console, path: Path, config: "Config", *, ranks: int, hardware: str | None, memory: float | None
) -> "Forecast":
    from rankhouse.training.config import AUTO_PLAN
    from rankhouse.training.data.prepared import PreparedDataset
    from rankhouse.training.planner.recipe_plan import plan_recipe

    dataset, by_cost = PreparedDataset.open(path), config.parallel.plan == AUTO_PLAN
    if memory is not None and not by_cost:
        raise typer.BadParameter("--memory limits a plan by cost; give --hardware too, or --set parallel.plan=auto")
    hardware = hardware or config.parallel.hardware or "here" if by_cost else "2-cores"
    made = plan_recipe(config, dataset, _cluster(ranks, hardware, memory or config.parallel.memory_gib or None))
    if by_cost:
        _explain(made)
    else:
        _show(console, made.plan, config)
    return made


def _cluster(ranks: int, hardware: str, memory: float | None) -> "Cluster":
    from rankhouse.training.planner.hardware import hardware_profile
    from rankhouse.training.planner.workload import Cluster

    if hardware == "here":
        from rankhouse.training.planner.calibration import calibrate

        profile = calibrate("this machine")
        profile = replace(profile, memory_bytes=profile.memory_bytes / ranks)
    else:
        profile = hardware_profile(hardware)
    return Cluster(ranks, profile, None if memory is None else memory * 2**30)


def _explain(made: "Forecast") -> None:
    from rankhouse.training.planner.explanation import explain

    Console(highlight=False, soft_wrap=True, markup=False).print(explain(made))


def _show(console: Console, made: "Plan", config: "Config") -> None:
    limit = config.parallel.data_parallel_threshold_rows
    rule = (
        f"Tables with fewer than {limit:,} rows lie on every rank; each other one, largest first, on the least loaded "
        "rank."
    )
    console.print(f"{config.parallel.plan or rule}\n")
    placed = Table("table", box=None, header_style="bold", pad_edge=False)
    for column in ("rows", "width", "held as", "MiB"):
        placed.add_column(column, justify="right")
    placed.add_column("held by")
    for table in sorted(made.tables, key=lambda table: -table.weight_bytes):
        size = f"{table.weight_bytes / 2**20:,.2f}"
        shape = (f"{table.num_rows:,}", str(table.dim), table.dtype)
        placed.add_row(table.name, *shape, size, made.placement(table.name).held_by)
    console.print(placed)
    console.print()
    for rank in range(made.num_ranks):
        console.print(made.explain_rank(rank))
