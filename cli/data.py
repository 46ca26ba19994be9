"""`rankhouse data`."""

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def data() -> None:
    """To be written."""
