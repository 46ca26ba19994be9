"""`rankhouse train`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def train(
    data: Annotated[
        Path | None, typer.Option(help="A prepared dataset, or raw logs (TSV, CSV, Parquet), which are prepared first.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="A shipped recipe by name, or a YAML file; dlrm, or with --from that run's own, if left out."
        ),
    ] = None,
    spec: Annotated[
        str | None,
        typer.Option(help="Columns of raw logs, a YAML file; by default criteo, or with --from that run's."),
    ] = None,
    run: Annotated[str, typer.Option(help="Name of the run.")] = "dlrm",
    runs: Annotated[Path, typer.Option(help="Folder of runs; the run's is RUNS/RUN.")] = Path("runs"),
    np: Annotated[
        int | None, typer.Option(min=1, help="Ranks: processes that train together; by default 1, resumed as before.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: optimizer.learning_rate=0.01. May be repeated.")
    ] = None,
    hosts: Annotated[str | None, typer.Option(help="Machines and their slots: host-a:4,host-b:4.")] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Go on from this checkpoint, or the newest of this run, in a new run on new data."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where the run was stopped, by its own recipe.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete an earlier run of this name first.")] = False,
    prepare_only: Annotated[
        bool, typer.Option("--prepare-only", help="Only make the run's folder; you start the ranks yourself.")
    ] = False,
) -> None:
    """Train a model on one rank or many.

    Ctrl-C or SIGTERM saves a checkpoint and exits with status 130.
    --resume goes on from there as if the run had never stopped, with as
    many ranks as before, or as --np says.
    --from starts a new run where another one ended, on the next day's raw
    logs, or on a dataset that extends the one that was learnt from.
    """
    from rankhouse.training.runs.folder import RunFolder
    from rankhouse.training.runs.launch import check_hosts, launch
    from rankhouse.training.runs.setup import StartRoom, new_run, resumed_run, steps_left

    console = Console(highlight=False, soft_wrap=True)
    _check_options(resume=resume, overwrite=overwrite, source=source)
    folder, settings = runs / run, settings or []
    num_ranks = np or (RunFolder.open(folder).num_ranks if resume else 1)
    if hosts is not None:
        check_hosts(hosts, num_ranks=num_ranks)
    if data is not None:
        data = _prepared(data, spec=spec, source=source, console=console)
    room = None if prepare_only else StartRoom.of(num_ranks, hosts)
    if resume:
        made = resumed_run(folder, data=data, settings=settings, room=room)
    else:
        made = new_run(
            folder, recipe=recipe, data=data, settings=settings, source=source, overwrite=overwrite, room=room
        )
    if prepare_only:
        console.print(f"{folder} is ready; start each rank with: python -m rankhouse.training.runs.worker {folder}")
    elif not steps_left(made):
        console.print(f"{folder} is finished already; look at {made.report_file}, or train on: --set training.epochs=N")
    else:
        if np is None and num_ranks > 1:
            console.print(f"going on with {num_ranks} ranks, as before; --np takes another number")
        raise typer.Exit(launch(made, num_ranks=num_ranks, hosts=hosts))


def _check_options(*, resume: bool, overwrite: bool, source: Path | None) -> None:
    if resume and overwrite:
        raise typer.BadParameter("--resume goes on with the run that --overwrite would delete; give one of them")
    if resume and source is not None:
        raise typer.BadParameter("--resume goes on with a run, --from starts another one; give one of them")


def _prepared(data: Path, *, spec: str | None, source: Path | None, console: Console) -> Path:
    """Returns the dataset that raw logs became, or was given."""
    from rankhouse.training.continuation import source_checkpoint, source_dataset
    from rankhouse.training.data.raw_data import prepare

    known = source_dataset(source_checkpoint(source)) if source is not None else None
    return prepare(data, spec=spec, folder=Path("data/prepared"), say=console.print, extends=known)
