"""`rankhouse bench`: measures beside the peers, from a checkout of the repository."""

import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

CHECKOUT = Path(__file__).parents[1]


def bench(
    name: Annotated[str, typer.Argument(help="A file of benchmarks/ without its ending, or `all`.")] = "all",
    arguments: Annotated[list[str] | None, typer.Argument(help="What the benchmark takes: --help tells.")] = None,
) -> None:
    """Run the benchmarks of a checkout and print medians and ratios."""
    known = sorted(path.stem for path in (CHECKOUT / "benchmarks").glob("[a-z]*.py"))
    if name != "all" and name not in known:
        raise typer.BadParameter(f"{name!r} is none of {', '.join(known) or 'none: this is not a checkout'}, all")
    for module in known if name == "all" else [name]:
        subprocess.run([sys.executable, "-m", f"benchmarks.{module}", *(arguments or [])], cwd=CHECKOUT, check=True)
