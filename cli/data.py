"""`rankhouse data`: synthetic logs, and from raw logs to a prepared dataset."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

if TYPE_CHECKING:
    from rankhouse.training.data import new_folder
    from rankhouse.training.data.feature_spec import FeatureSpec
    from rankhouse.training.data.prepared import PreparedDataset

app = typer.Typer(no_args_is_help=True)
console = Console()

Workers = Annotated[int, typer.Option(help="Dask processes on this machine; 0 works in this one.")]
Scheduler = Annotated[str, typer.Option(help="Address of a Dask scheduler to use instead, as tcp://10.0.0.1:8786.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


class FileFormat(str, Enum):
    """The formats that synthetic logs are written in."""

    tsv = "tsv"
    parquet = "parquet"


@app.callback()
def data() -> None:
    """Make synthetic logs, preprocess raw logs, look at a prepared dataset."""


@app.command()
def synth(
    out: Annotated[Path, typer.Argument(help="File to write; .gz compresses a TSV.")],
    rows: Annotated[int, typer.Option(min=1, help="Rows to write.")] = 1_000_000,
    day: Annotated[int, typer.Option(min=0, max=255, help="Later days drift and bring new ids.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Other rows of the same teacher.")] = 0,
    file_format: Annotated[FileFormat | None, typer.Option("--format", help="By default what the name says.")] = None,
) -> None:
    """Write synthetic logs in Criteo's layout, whose best reachable AUC is known."""
    from rankhouse.training.data.synth import synthesize

    chosen = file_format or (FileFormat.parquet if out.suffix == ".parquet" else FileFormat.tsv)
    with _bar() as bar:
        task = bar.add_task(f"writing {out}", total=rows)
        facts = synthesize(
            out,
            num_rows=rows,
            day=day,
            seed=seed,
            file_format=chosen.value,
            on_progress=lambda count: bar.advance(task, count),
        )
    console.print(
        f"{out}: {facts.num_rows:,} rows of day {facts.day}, click rate {facts.click_rate:.4f}, "
        f"best reachable AUC {facts.best_auc:.4f}, log loss {facts.best_log_loss:.4f}",
        highlight=False,
        soft_wrap=True,
    )


@app.command()
def preprocess(
    out: Annotated[Path, typer.Argument(help="Folder of the prepared dataset.")],
    train: Annotated[str, typer.Option(help="Raw files to fit on: a file, a folder or a pattern.")],
    valid: Annotated[
        list[str] | None,
        typer.Option(help="Held-out raw files, as PATH or NAME=PATH; again for more. The name is valid by default."),
    ] = None,
    spec: Annotated[
        str | None,
        typer.Option(
            help="Feature spec: a shipped one by name, or a YAML file. By default criteo.", show_default=False
        ),
    ] = None,
    extend: Annotated[
        Path | None,
        typer.Option(help="Prepared dataset of earlier days: its fit and its spec stay, its vocabularies grow."),
    ] = None,
    workers: Workers = 0,
    scheduler: Scheduler = "",
    frequency_threshold: Annotated[
        int | None, typer.Option(min=0, help="For all tables: values seen less often are unknown ones.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Fit the workflow on raw logs and transform them; or transform a new day's as earlier ones were (--extend)."""
    from rankhouse.training.data.feature_spec import FeatureSpec

    paths = {"train": train, **_named_paths(valid or [])}
    if extend is not None:
        if workers or scheduler or frequency_threshold is not None:
            raise typer.BadParameter(
                "works in this process and keeps the dataset's thresholds; leave out --workers, --scheduler and "
                "--frequency-threshold",
                param_hint="--extend",
            )
        dataset = _extended(extend, out, paths, FeatureSpec.load(spec) if spec else None, overwrite=overwrite)
    else:
        from rankhouse.training.data.preprocess import Workers, preprocess

        features = FeatureSpec.load(spec or "criteo")
        if frequency_threshold is not None:
            features = features.with_frequency_threshold(frequency_threshold)
        with _progress() as progress:
            dataset = preprocess(
                out, features, paths, workers=Workers(workers, scheduler), overwrite=overwrite, progress=progress
            )
    _print_summary(dataset)


def _extended(
    parent: Path, out: Path, paths: dict[str, str], spec: "FeatureSpec | None", *, overwrite: bool
) -> "PreparedDataset":
    from rankhouse.training.data.extend import extend
    from rankhouse.training.data.prepared import PreparedDataset

    with _progress() as progress:
        dataset = extend(parent, out, paths, spec=spec, overwrite=overwrite, progress=progress)
    before = PreparedDataset.open(parent)
    grown = sum(table.num_rows - before.tables[name].num_rows for name, table in dataset.tables.items())
    freed = sum(map(len, dataset.freed_since(len(before.layers)).values()))
    console.print(
        f"{parent} extended: {grown:,} rows more, {freed:,} values made way",
        highlight=False,
        soft_wrap=True,
    )
    return dataset


@app.command()
def transform(
    dataset: Annotated[Path, typer.Argument(help="Folder of the prepared dataset.")],
    path: Annotated[str, typer.Argument(help="Raw files: a file, a folder or a pattern.")],
    split: Annotated[str, typer.Option(help="Name of the new split.")],
    workers: Workers = 0,
    scheduler: Scheduler = "",
    overwrite: Overwrite = False,
) -> None:
    """Transform more raw logs, as a later day's, with the workflow of a prepared dataset."""
    from rankhouse.training.data.preprocess import Workers, add_split

    with _progress() as progress:
        prepared = add_split(
            dataset, split, path, workers=Workers(workers, scheduler), overwrite=overwrite, progress=progress
        )
    _print_summary(prepared)


@app.command()
def show(dataset: Annotated[Path, typer.Argument(help="Folder of the prepared dataset.")]) -> None:
    """Print a prepared dataset's splits and features: missing rates, tables and their rows."""
    from rankhouse.training.data.prepared import PreparedDataset

    prepared = PreparedDataset.open(dataset)
    table = Table(title=f"{prepared.spec.name}: {len(prepared.features)} features", box=None, header_style="bold")
    for name in ("feature", "kind", "type", "table"):
        table.add_column(name, no_wrap=True)
    for name in ("rows", "width", *(f"missing in {name}" for name in prepared.splits)):
        table.add_column(name, justify="right", min_width=len("100.0%"))
    for feature in prepared.features:
        name = getattr(feature, "table", "")
        info = prepared.tables.get(name)
        table.add_row(
            feature.name,
            feature.kind,
            f"list of {feature.dtype}" if feature.is_list else feature.dtype,
            name,
            "learnt" if name in prepared.spec.learnt_tables else f"{info.num_rows:,}" if info else "",
            str(info.dim) if info else "",
            *(f"{split.missing_rates[feature.name]:.1%}" for split in prepared.splits.values()),
        )
    console.print(table)
    _print_summary(prepared)


def _named_paths(values: list[str]) -> dict[str, str]:
    paths: dict[str, str] = {}
    for value in values:
        name, path = value.split("=", 1) if "=" in value else ("valid", value)
        if name in paths or name == "train":
            raise typer.BadParameter(f"two splits have the name {name!r}; write NAME=PATH", param_hint="--valid")
        paths[name] = path
    return paths


def _print_summary(dataset: "PreparedDataset") -> None:
    rows = sum(table.num_rows for table in dataset.tables.values())
    parameters = sum(table.num_rows * table.dim for table in dataset.tables.values())
    for name, split in dataset.splits.items():
        newest = "" if split.newest_event is None else f", newest event {_time(split.newest_event)}"
        console.print(
            f"{name}: {split.num_rows:,} rows, click rate {split.positive_rate:.4f}{newest}",
            highlight=False,
            soft_wrap=True,
        )
    console.print(
        f"{dataset.path}: {len(dataset.tables)} tables of {rows:,} rows in all, {parameters:,} parameters",
        highlight=False,
        soft_wrap=True,
    )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def _bar() -> Progress:
    """A progress bar that is silent where nobody looks at it."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


@contextmanager
def _progress() -> "Iterator[new_folder.Progress]":
    """Shows each stage of preprocessing on a line of its own, with the rows read so far."""
    from rankhouse.training.data.new_folder import Progress as Listener

    with _bar() as bar:

        def on_stage(stage: str) -> None:
            for task in bar.tasks:
                bar.stop_task(task.id)
            bar.add_task(stage, total=None)

        yield Listener(on_stage, lambda count: bar.advance(bar.tasks[-1].id, count))
