"""`rankhouse checkpoint`."""

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def checkpoint() -> None:
    """To be written."""
