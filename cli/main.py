"""The command line `rankhouse`: one verb for each arrow of the data flow.

The modules beside this one hold the verbs. They import what they run inside the command, so that `rankhouse --help` is
instant and a machine needs only the packages of its own role.
"""

import importlib.metadata
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from rankhouse.cli import bench, checkpoint, data, demo, export, plan, rollout, score, serve, train, version
from rankhouse.embedding_cache.errors import EmbeddingCacheError
from rankhouse.embedding_cache.format.errors import FormatError
from rankhouse.kernels.errors import KernelError
from rankhouse.serving.errors import ServingError
from rankhouse.training.errors import TrainingError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"rankhouse {importlib.metadata.version('rankhouse')}")
        raise typer.Exit


@app.callback()
def rankhouse(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Train ranking models with large embedding tables, from raw logs, and serve them.

    In order: data, train, export, serve, score. `demo` does all of it.
    """


app.add_typer(data.app, name="data")
app.add_typer(checkpoint.app, name="checkpoint")
app.add_typer(version.app, name="version")
app.add_typer(rollout.app, name="rollout")
app.command()(train.train)
app.command()(plan.plan)
app.command()(export.export)
app.command()(serve.serve)
app.command()(score.score)
app.command()(demo.demo)
app.command(context_settings={"ignore_unknown_options": True})(bench.bench)


def main() -> None:
    """Runs a command; the project's own errors become one line on stderr and exit status 1."""
    try:
        app()
    except (EmbeddingCacheError, FormatError, KernelError, ServingError, TrainingError) as error:
        Console(stderr=True).print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
