"""`rankhouse version`."""

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def version() -> None:
    """To be written."""
