"""Pooled lookup, and lookup with backward and Adagrad, beside the machine's limit and the peers.

    rankhouse bench embedding_ops                     all cells, an hour or two
    rankhouse bench embedding_ops --quick             a few cells, about 5 minutes
    rankhouse bench embedding_ops --filter 'dim=16 zipf hotness=10'

The candidates are in three processes: ours with a C loop that is the machine's limit, TensorFlow's, and PyTorch's with
FBGEMM and TorchRec, in an environment of its own (build/peers, made the first time). The processes take turns, one at
work while the others wait, on the same ids and the same tables, and no batch is seen again before 64 MiB of the tables
were read. Before a cell is timed, what the candidates compute is compared. A figure is the median over rounds of the
median over calls.
"""

import argparse
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from benchmarks.support.embedding.cells import Cell, every_cell, quick_cells
from benchmarks.support.embedding.report import aims_sheet, notes, sheets
from benchmarks.support.embedding.turns import Kind, Turns
from benchmarks.support.machine import describe_machine
from benchmarks.support.peers import peers_python, peers_versions
from benchmarks.support.process import Figure, ProcessError
from benchmarks.support.progress import progress
from benchmarks.support.sheet import report
from rankhouse.training.runs.launch import ALLOCATOR

# What `rankhouse train` sets, for the peers too: without it they pay for fresh pages in each call, and on some virtual
# machines for little else.
TUNED = (("GLIBC_TUNABLES", ALLOCATOR),)
KINDS = (Kind("native"), Kind("torch", TUNED), Kind("tensorflow", TUNED))
KINDS_AS_THEY_COME = (Kind("native"), Kind("torch"), Kind("tensorflow"))
PROCESSES = [kind.kind for kind in KINDS]
EXPLANATION = (
    "Sum pooling, float32, int64 ids. Rankhouse and the C loop have rows in huge pages as `rh_allocate` gives them, "
    "and outputs made once. Peers have what their framework gives, with the allocator settings that `rankhouse train` "
    "sets: huge pages, freed blocks kept; in the tables `as they come` without. FBGEMM runs without its check of ids. "
    "All bags of a batch have one size, which Rankhouse is told; in the column `offsets` it is not. "
    "* one call only."
)


def main() -> None:
    """Measures what is asked for and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few cells that show each aim")
    parser.add_argument("--filter", default="", help="words that a cell must have: forward or training, dim=16, ...")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--processes", nargs="+", default=[kind.kind for kind in KINDS], help="whose candidates to time"
    )
    parser.add_argument("--rounds", type=int, help="turns of each candidate in a cell; by default 3, 2 with --quick")
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn, at least")
    parser.add_argument("--output", type=Path, help="a markdown file to write")
    options = parser.parse_args()
    console = Console()
    cells = _chosen(options, quick_cells() if options.quick else every_cell())
    if not cells:
        label = next(every_cell()).label
        parser.error(f"no cell has all the words of --filter {options.filter!r}; one cell is {label!r}")
    if "torch" in options.processes:
        peers_python()
    figures: list[Figure[Cell]] = []
    as_they_come: list[Figure[Cell]] = []
    stopped: BaseException | None = None
    try:
        with progress(console) as say:
            measure(options, KINDS, cells, figures, say)
            if options.processes != ["native"]:
                measure(options, KINDS_AS_THEY_COME, _chosen(options, _allocating_cells()), as_they_come, say)
    except (KeyboardInterrupt, ProcessError) as exc:
        stopped = exc
        console.print(f"stopped ({exc or 'interrupted'}): these are the figures so far")
    found = sheets(figures, "All with our allocator settings")
    found += sheets(as_they_come, "Peers as they come")
    found.append(aims_sheet(figures))
    machine = f"{describe_machine()}; {peers_versions()}"
    report(console, [machine, EXPLANATION], found, notes(figures), options.output)
    if stopped is not None:
        raise SystemExit(1)


def measure(
    options: argparse.Namespace,
    kinds: tuple[Kind, ...],
    cells: list[Cell],
    figures: list[Figure[Cell]],
    say: Callable[[str], None],
) -> None:
    """Measures cells at all numbers of threads into `figures`."""
    if not cells:
        return
    kinds = tuple(kind for kind in kinds if kind.kind in options.processes)
    for threads in options.threads:
        rounds = options.rounds or (2 if options.quick else 3)
        with Turns(
            kinds, num_threads=threads, rounds=rounds, seconds=options.seconds, figures=figures, progress=say
        ) as turns:
            turns.measure(cells)


def _chosen(options: argparse.Namespace, cells: Iterator[Cell]) -> list[Cell]:
    words = set(options.filter.split())
    return [cell for cell in cells if words <= set(cell.label.split())]


def _allocating_cells() -> Iterator[Cell]:
    """Yields those quick cells whose outputs frameworks allocate anew in each call."""
    return (cell for cell in quick_cells() if cell.tables.dim == 128)


if __name__ == "__main__":
    main()
