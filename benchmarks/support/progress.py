"""What a benchmark is at, for those who wait for it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def progress(console: Console) -> Iterator[Callable[[str], None]]:
    """Gives a function that shows a line of text, with the time so far; silent where the console is no terminal."""
    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as line:
        task = line.add_task("starting")
        yield lambda text: line.update(task, description=text)
