"""New versions while requests go on: how long requests take meanwhile, how fast it goes back, and whether all is whole.

    rankhouse bench refresh                         5 million rows, about 10 minutes
    rankhouse bench refresh --quick                 260,000 rows, about 2 minutes
    rankhouse bench refresh --requests 100000       that many answers while versions come and go: none may be mixed

A version of 26 tables serves; a delta over it, of 1 % and then of 10 % of the rows, is opened, switched to, and the one
before is closed. Through the engine alone: a thread looks up batches without a pause, another opens, switches and
closes. Through Triton: requests come at a steady rate, and one that has to wait counts from when it was due; the new
version's models are loaded, the target is switched, the old ones drained and unloaded.

`during` is from the begin of the opening to the end of the closing; `at rest` is as long again or longer, with nothing
opened. `back` is a switch to the version before, which is kept open or loaded: until its first answer. `back, closed`
opens or loads it first. The files are in the page cache.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.support.engine.dataset import Dataset, make_dataset, table_dataset
from benchmarks.support.engine.page_cache import warm
from benchmarks.support.machine import describe_machine
from benchmarks.support.refresh.consistency import refresh_under_load
from benchmarks.support.refresh.figures import Refresh, refresh_sheets
from benchmarks.support.refresh.through_engine import time_engine
from benchmarks.support.refresh.through_triton import time_triton
from benchmarks.support.sheet import Sheet, report
from rankhouse.serving.triton_server import TritonServer

SHARES = (0.01, 0.1)
ROWS, QUICK_ROWS, DIM = 5_000_000, 260_000, 16


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rows, one round")
    parser.add_argument("--requests", type=int, help="check so many answers instead of timing them")
    parser.add_argument("--concurrency", type=int, default=8, help="of the checked requests")
    parser.add_argument("--rows", type=int, help="of all tables together")
    parser.add_argument("--rounds", type=int, help="of refreshes; by default 5, 1 with --quick")
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second to Triton")
    parser.add_argument("--output", type=Path, help="a markdown file to write")
    options = parser.parse_args()
    console = Console(highlight=False)
    if options.requests:
        sheets, is_whole = check(options.requests, options.concurrency)
        report(console, [describe_machine()], sheets, [], options.output)
        if not is_whole:
            raise SystemExit(1)
        return
    dataset = table_dataset(options.rows or (QUICK_ROWS if options.quick else ROWS), DIM, SHARES, is_servable=True)
    make_dataset(dataset, console.print)
    refreshes = measure(dataset, options, options.rounds or (1 if options.quick else 5), console)
    report(
        console, [describe_machine(), str(__doc__).split("\n\n", 2)[2]], refresh_sheets(refreshes), [], options.output
    )


def measure(dataset: Dataset, options: argparse.Namespace, rounds: int, console: Console) -> list[Refresh]:
    """Returns what refreshes took, through the engine and through Triton."""
    warm(path for path in dataset.store.rglob("*") if path.is_file())
    console.print("through the engine")
    found = time_engine(dataset, candidates=options.candidates, rounds=rounds)
    console.print("through Triton")
    return found + asyncio.run(time_triton(dataset, candidates=options.candidates, rate=options.rate, rounds=rounds))


def check(num_answers: int, concurrency: int) -> tuple[list[Sheet], bool]:
    """Checks answers while versions come and go; returns what was found, and whether all was well."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        with TritonServer(folder / "models", run_dir=folder) as server:
            findings = asyncio.run(
                refresh_under_load(server, folder / "versions", num_answers=num_answers, concurrency=concurrency)
            )
    line = [
        f"{count:,}"
        for count in (findings.num_answers, findings.num_versions, len(findings.mixed), len(findings.failures))
    ]
    sheets = [Sheet("Answers under continuous refresh", ("answers", "of versions", "mixed", "failed"), [line])]
    wrong = (findings.mixed + findings.failures)[:20]
    if wrong:
        sheets.append(Sheet("What was wrong", ("what",), [[text] for text in wrong]))
    return sheets, not wrong


if __name__ == "__main__":
    main()
