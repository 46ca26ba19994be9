"""Refreshes, canaries and rollbacks through a gateway: how long they take, and what requests feel of them.

    rankhouse bench rollout                         5 million rows, about 8 minutes
    rankhouse bench rollout --quick                 260,000 rows, about 2 minutes
    rankhouse bench rollout --requests 100000       that many answers held against the history: none may be wrong

A gateway with a Triton of its own and a SQLite state store serves a version of 26 tables; requests of 64 candidates
come at a steady rate, half over REST and half over gRPC, and one that has to wait counts from when it was due.

In each round, a process of low priority writes a delta of 1 % of the rows, as `export --delta` does; it is found,
verified, loaded, proven and admitted; then the admin API takes it back. A canary goes to 5, 25 and 50 % and is
promoted; another one is aborted at 50 %. Last, a candidate with no more than a ten-thousandth of the users scores none,
and then 10 %, of the others' requests as a shadow. All runs on one machine: what the refresh, the trainer, the callers
and Triton take, they take from each other.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from rich.console import Console

from benchmarks.support.embedding.cells import Cell, make_ids
from benchmarks.support.engine.dataset import MODEL, Dataset, make_dataset, table_dataset
from benchmarks.support.engine.page_cache import warm
from benchmarks.support.machine import CHECKOUT, describe_machine
from benchmarks.support.progress import progress
from benchmarks.support.rollout.callers import Callers, Plan
from benchmarks.support.rollout.exports import Exporter
from benchmarks.support.rollout.figures import proof_sheets, timing_sheets
from benchmarks.support.rollout.proof import prove
from benchmarks.support.rollout.replica import Replica
from benchmarks.support.rollout.timings import Stopwatch, Timings
from benchmarks.support.sheet import report
from rankhouse.serving.control.state_stores import open_state_store
from rankhouse.serving.gateway.messages import ScoreRequest
from rankhouse.serving.triton_server import TritonServer

ROWS, QUICK_ROWS, DIM, SHARE = 5_000_000, 260_000, 16, 0.01
PROOF = "Two clients without a pause, REST and gRPC; a delta every two seconds; canaries, one aborted; a rollback."
NUM_REQUESTS = 32  # Different ones, sent in turn.


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rows, two rounds")
    parser.add_argument("--requests", type=int, help="hold so many answers against the history instead of timing them")
    parser.add_argument("--rounds", type=int, help="by default 8, 2 with --quick")
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--rate", type=float, default=60.0, help="requests a second")
    parser.add_argument("--output", type=Path, help="a markdown file to write")
    options = parser.parse_args()
    console = Console(highlight=False)
    what = PROOF if options.requests else str(__doc__).split("\n\n", 2)[2]
    with progress(console) as say, tempfile.TemporaryDirectory(dir=scratch()) as temporary:
        folder = Path(temporary)
        with TritonServer(folder / "models", run_dir=folder) as server:
            if options.requests:
                proof = prove(server, folder, num_answers=options.requests, say=say)
                sheets, is_well = proof_sheets(proof), not proof.findings.wrong
            else:
                dataset = table_dataset(QUICK_ROWS if options.quick else ROWS, DIM, (), is_servable=True)
                make_dataset(dataset, say)
                warm(path for path in dataset.store.rglob("*") if path.is_file())
                options.rounds = options.rounds or (2 if options.quick else 8)
                with Exporter(dataset, folder / "store", share=SHARE) as exporter:
                    timings = measure(server, exporter, requests(dataset, options.candidates), options, say)
                sheets, is_well = timing_sheets(timings), not any(each.is_failed for each in timings.answers)
    report(console, [describe_machine(), what], sheets, [], options.output)
    if not is_well:
        raise SystemExit(1)


def measure(
    server: TritonServer,
    exporter: Exporter,
    bodies: list[ScoreRequest],
    options: argparse.Namespace,
    say: Callable[[str], None],
) -> Timings:
    """Returns what everything took."""
    folder = exporter.store.parent
    say("loading the first version")
    exporter.warm()
    state_url = f"sqlite://{folder / 'state.db'}"
    store = open_state_store(state_url)
    settings = {"STORE": exporter.store, "STATE_URL": state_url, "KEEP_LOADED_BYTES": 1 << 40}
    plan = Plan(MODEL, bodies, rate=options.rate, has_marks=False)
    try:
        with (
            Replica("one", model=MODEL, server=server, folder=folder / "gateway", settings=settings) as replica,
            Callers([replica.gateway], plan) as callers,
            replica.admin() as admin,
        ):
            return Stopwatch(MODEL, store, replica, callers, exporter.export, admin, say).run(options.rounds)
    finally:
        store.close()


def requests(dataset: Dataset, candidates: int) -> list[ScoreRequest]:
    """Requests of raw values that are Zipf-distributed."""
    batches = make_ids(Cell(dataset.tables, candidates, 1, "zipf"), NUM_REQUESTS)[..., 0]
    return [ScoreRequest([_row(values) for values in ids.T]) for ids in batches]


def _row(values: npt.NDArray[np.int64]) -> dict[str, float | int]:
    return {"price": 1.0, **{f"c{feature:02}": value for feature, value in enumerate(values.tolist())}}


def scratch() -> Path:
    """A folder on the disk of the data, so that versions can be links to them."""
    folder = CHECKOUT / "build" / "rollout"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


if __name__ == "__main__":
    main()
