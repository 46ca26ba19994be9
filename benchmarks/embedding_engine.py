"""Looking rows of a version up: our engine beside a C loop, NumPy, RocksDB, LMDB and Redis.

    rankhouse bench embedding_engine                       5 and 50 million rows, about an hour, 35 GB of disk
    rankhouse bench embedding_engine --quick               260,000 rows, about 3 minutes
    rankhouse bench embedding_engine --rounds 1 --cold 2 --minutes 28
                                                           the same as the first in half the time, or as much as fits
    rankhouse bench embedding_engine --rows 5000000 --dims 16

A request has 26 features of so many candidates, an id each, in 26 tables of one size; it gives the rows side by side,
float32. All candidates have the same rows and ids, and what they give is compared with what the tables were made of, to
the bit, before it is timed. One is open at a time, with its files read into the page cache; a figure is the median over
rounds of the median over requests. What is called through C is timed in C (support/engine/timed_calls.c), the others in
Python: each is compared with its like. For a cold page cache, the files are dropped from it and opened before every
single request; NumPy and the stores then pay for each page, as the engine does.

Ours after deltas: each changed 1 % of the rows. The Redis tier has a row cache of a tenth or of half of the rows'
bytes, and both it and the MGETs are timed on requests whose ids were drawn after those that the cache has seen. Data
are made once, below build/engine; a size for which there is no room is left out, and said.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.support.embedding.cells import Cell, make_ids
from benchmarks.support.engine.dataset import Dataset, make_dataset, table_dataset
from benchmarks.support.engine.redis_turns import time_redis
from benchmarks.support.engine.report import COLD, HOT, NEW, REDIS_TIER, Place, Timing, aims_sheet, sheets
from benchmarks.support.machine import CHECKOUT, describe_machine
from benchmarks.support.peers import STORES, peers_python, peers_versions
from benchmarks.support.process import CommandError, Process, ProcessError
from benchmarks.support.progress import progress
from benchmarks.support.sheet import report

WORKER = "benchmarks.support.engine.worker"
KINDS = ("native", "stores")
ROWS, DIMS, CANDIDATES = (5_000_000, 50_000_000), (16, 128), (64, 512, 4096)
QUICK_ROWS, QUICK_CANDIDATES = (260_000,), (64, 512)
DISTRIBUTIONS = ("uniform", "zipf")
DELTAS = (0.01,) * 8
# Times the bytes of the rows: the store with its deltas, the file of rows, LMDB's pages, RocksDB's blocks; and the page
# cache beside pinned rows.
DISK_COPIES, MEMORY_COPIES = 4.8, 2.5
ROW_OVERHEAD_BYTES = 60
# A large request takes seconds on a slow disk.
ENOUGH_COLD_SECONDS = 5.0
# A server takes a minute to be filled with so many.
MOST_REDIS_ROWS = 10_000_000
WHOSE_TIME = {HOT: "Rankhouse map", COLD: "Rankhouse map", NEW: f"{REDIS_TIER} 10%"}


def main() -> None:
    """Measures what is asked for and what the machine has room for, and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rows, two sizes of requests, one round")
    parser.add_argument("--rows", type=int, nargs="+", help="of all tables together")
    parser.add_argument("--dims", type=int, nargs="+", default=DIMS, choices=DIMS)
    parser.add_argument("--candidates", type=int, nargs="+")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seconds", type=float, default=0.2, help="of a candidate's turn, at least")
    parser.add_argument("--cold", type=int, default=5, help="most requests with a cold page cache; 0: none")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing more after so long")
    parser.add_argument("--no-redis", action="store_true", help="leave Redis out")
    parser.add_argument("--output", type=Path, help="a markdown file to write")
    options = parser.parse_args()
    options.rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    options.candidates = options.candidates or (QUICK_CANDIDATES if options.quick else CANDIDATES)
    options.rounds = options.rounds or (1 if options.quick else 2)
    options.end = time.monotonic() + 60 * options.minutes
    console = Console()
    peers_python(STORES)
    timings: list[Timing] = []
    notes: list[str] = []
    stopped: BaseException | None = None
    try:
        with progress(console) as say:
            for dataset in (table_dataset(rows, dim, DELTAS) for rows in options.rows for dim in options.dims):
                measure(dataset, options, timings, notes, say)
    except (KeyboardInterrupt, ProcessError, subprocess.CalledProcessError) as exc:
        stopped = exc
        console.print(f"stopped ({exc or 'interrupted'}): these are the figures so far")
    how = str(__doc__).split("\n\n", 2)[2]
    before = [f"{describe_machine()}; {peers_versions(STORES)}; threads: {options.threads}", how]
    report(console, before, [*sheets(timings, WHOSE_TIME), aims_sheet(timings)], notes, options.output)
    if stopped is not None:
        raise SystemExit(1)


def measure(
    dataset: Dataset,
    options: argparse.Namespace,
    timings: list[Timing],
    notes: list[str],
    say: Callable[[str], None],
) -> None:
    """Measures all candidates on one dataset into `timings`; `notes` says what could not be measured."""
    if lacks := _lacks(dataset):
        notes.append(f"{dataset.folder.name}: left out, there is no room: {lacks}")
        return
    if time.monotonic() > options.end:
        notes.append(f"{dataset.folder.name}: left out, the minutes were over")
        return
    make_dataset(dataset, say)
    with Bench(dataset, options, timings, say) as bench:
        notes += bench.notes
        bench.hot()
        if not options.no_redis and rows_of(dataset) <= MOST_REDIS_ROWS and time.monotonic() < options.end:
            timings += time_redis(dataset, options.candidates, options.threads, say)
        bench.cold()
        if time.monotonic() > options.end:
            notes.append(f"{dataset.folder.name}: some of it is left out, the minutes were over")


class Bench:
    """Measures all candidates on one dataset into `timings`."""

    def __init__(
        self, dataset: Dataset, options: argparse.Namespace, timings: list[Timing], say: Callable[[str], None]
    ) -> None:
        self._dataset, self._options, self._timings, self._say = dataset, options, timings, say
        self.notes: list[str] = []
        self._cells = [
            Cell(dataset.tables, size, 1, distribution) for size in options.candidates for distribution in DISTRIBUTIONS
        ]
        self._candidates: list[tuple[Process, int, dict[str, Any]]] = []

    def __enter__(self) -> "Bench":
        self._stack = ExitStack()
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        dataset = self._dataset
        arguments = {
            "native": {"folder": str(dataset.folder), "tables": asdict(dataset.tables), "shares": dataset.shares},
            "stores": {"folder": str(dataset.folder), "rows_of_table": dataset.tables.rows},
        }
        for kind in KINDS:
            self._say(f"{dataset.folder.name}: making what {kind} candidates need")
            process = self._stack.enter_context(Process(WORKER, kind, self._options.threads, {}))
            answer = process.ask("dataset", **arguments[kind])
            self.notes += answer["notes"]
            self._candidates += [(process, number, each) for number, each in enumerate(answer["candidates"])]
        for number, cell in enumerate(self._cells):
            np.save(self._folder / f"{number}.npy", make_ids(cell)[..., 0])
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def hot(self) -> None:
        """Times all candidates with their files in the page cache."""
        found = {
            (number, each["name"]): Timing(Place(cell, HOT), each["name"])
            for number, cell in enumerate(self._cells)
            for _, _, each in self._candidates
        }
        for turn in range(self._options.rounds):
            if turn > 0 and time.monotonic() > self._options.end:
                break
            for process, candidate, each in self._candidates:
                self._say(f"{self._dataset.folder.name}: {each['name']}, turn {turn + 1}")
                process.ask("open", candidate=candidate, warmed=True)
                for number in range(len(self._cells)):
                    process.ask("batches", path=str(self._ids(number)))
                    if turn == 0:
                        self._check(process, number, each)
                    seconds = process.ask("time", seconds=self._options.seconds)["seconds"]
                    found[number, each["name"]].seconds.append(median(seconds))
                process.ask("close")
        self._timings += found.values()

    def cold(self) -> None:
        """Times all candidates that read files with none of them in the page cache."""
        os.sync()
        for number, cell in enumerate(self._cells):
            for process, candidate, each in self._candidates:
                if each["in_files"] and self._options.cold and time.monotonic() < self._options.end:
                    self._say(f"{cell.label}: {each['name']}, cold")
                    timing = Timing(Place(cell, COLD), each["name"])
                    for batch in range(min(self._options.cold, cell.num_batches)):
                        if sum(timing.seconds) < ENOUGH_COLD_SECONDS:
                            arguments = {"candidate": candidate, "batch": batch, "path": str(self._ids(number))}
                            timing.seconds.append(process.ask("time_cold", **arguments)["seconds"])
                    self._timings.append(timing)

    def _ids(self, number: int) -> Path:
        return self._folder / f"{number}.npy"

    def _check(self, process: Process, number: int, each: dict[str, Any]) -> None:
        batch, path = 1, self._folder / "result.npy"
        process.ask("result", batch=batch, path=str(path))
        expected = self._dataset.expected(np.load(self._ids(number))[batch], each["num_deltas"])
        if not np.array_equal(np.load(path), expected):
            raise CommandError(f"{each['name']} gives other rows than the tables were made of: {self._cells[number]}")


def rows_of(dataset: Dataset) -> int:
    """Returns the rows of all tables together."""
    return dataset.tables.num_tables * dataset.tables.rows


def _lacks(dataset: Dataset) -> str:
    """Says what there is too little of for a dataset; nothing if there is enough."""
    tables = dataset.tables
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if tables.num_bytes * MEMORY_COPIES > memory:
        return f"{tables.num_bytes * MEMORY_COPIES / 1e9:.0f} GB of memory"
    disk = int(tables.num_bytes * DISK_COPIES) + rows_of(dataset) * ROW_OVERHEAD_BYTES
    used = sum(path.stat().st_size for path in dataset.folder.rglob("*") if path.is_file())
    return f"{disk / 1e9:.0f} GB of disk" if disk - used > shutil.disk_usage(CHECKOUT).free else ""


if __name__ == "__main__":
    main()
