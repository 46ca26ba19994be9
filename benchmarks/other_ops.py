"""Unique ids, vocabularies, DLRM's dot interaction and 8-bit rows, beside the peers.

    rankhouse bench other_ops
    rankhouse bench other_ops --filter unique

As embedding_ops: processes take turns, what they compute is compared first, medians over rounds. vocabulary-observe is
in steady state, most keys known; tf.lookup and dict count keys there, ours also notes when each was last seen. The
backward of the interaction comes with its forward. tf.unique gives keys in the order of their first sight, the others
sorted.
"""

import argparse
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import track

from benchmarks.support.machine import describe_machine
from benchmarks.support.operations.candidate import NAME
from benchmarks.support.operations.cases import Case, every_case
from benchmarks.support.peers import peers_python, peers_versions
from benchmarks.support.process import Figure, Process
from benchmarks.support.sheet import Sheet, report

KINDS = ("native", "torch", "tensorflow")
WORKER = "benchmarks.support.operations.worker"


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--filter", default="", help="words that a case's label must have")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.1, help="of a turn, at least")
    parser.add_argument("--output", type=Path, help="a markdown file to write")
    options = parser.parse_args()
    console = Console()
    peers_python()
    words = set(options.filter.split())
    cases = [case for case in every_case() if words <= set(case.label.split())]
    lines = []
    for threads in options.threads:
        with ExitStack() as stack:
            processes = [stack.enter_context(Process(WORKER, kind, threads, {})) for kind in KINDS]
            for case in track(cases, "measuring", console=console, transient=True, disable=not console.is_terminal):
                lines += measure(processes, case, threads, options)
    machine = f"{describe_machine()}; {peers_versions()}"
    columns = ["operation", "threads", "candidate", "ms", "times Rankhouse's"]
    report(console, [machine], [Sheet("Other operations", columns, lines)], [], options.output)


def measure(processes: list[Process], case: Case, threads: int, options: argparse.Namespace) -> list[list[str]]:
    """Returns the lines of one case."""
    turns = []
    for process in processes:
        for number, name in enumerate(process.ask("case", case=asdict(case))["candidates"]):
            turns.append((process, number, Figure(case, threads, name)))
    with tempfile.TemporaryDirectory() as folder:
        agreeing = [turn for turn in turns if turn[0].agrees(turn[1], turn[2], Path(folder) / "expected.npy")]
    for _ in range(options.rounds):
        for process, number, figure in agreeing:
            process.time(number, figure, options.seconds)
    figures = [figure for _, _, figure in turns]
    ours = next(figure for figure in figures if figure.candidate == NAME)
    return [
        [
            *(case.label, str(threads), figure.candidate, figure.text),
            f"{figure.milliseconds / ours.milliseconds:.2f}" if figure.calls and ours.calls else figure.note,
        ]
        for figure in figures
    ]


if __name__ == "__main__":
    main()
