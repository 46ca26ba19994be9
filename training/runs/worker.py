"""One rank of a run: `python -m rankhouse.training.runs.worker <run folder>`.

`rankhouse train` starts these. Under mpirun or Kubernetes users start them by themselves, all on one shared folder that
`rankhouse train --prepare-only` has made. A rank goes on from the newest checkpoint, so starting it again is safe.

Exit statuses: 0 finished, 1 an error, 75 another rank went away, 130 told to stop and saved (0 if by the `stop` file).
"""

import argparse
import ctypes
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf
from rich.console import Console
from rich.markup import escape

from rankhouse.training.errors import TrainingError
from rankhouse.training.ranks import Ranks
from rankhouse.training.runs.folder import Result, RunFolder, write_text
from rankhouse.training.runs.observers import MetricsFile, Observer, ProgressBar, TensorBoard
from rankhouse.training.runs.report import write_report
from rankhouse.training.runs.stop import LOST_PEERS, StopRequest
from rankhouse.training.trainer import Trainer

log = logging.getLogger("rankhouse.training.runs.worker")
# How many ranks share this machine, as the launchers say it.
LOCAL_SIZES = ("HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
# A check of ours that failed in a step: its message says all, and the trace of the graph around it nothing that users
# can mend. TensorFlow's own checks have more after the bracket, and are shown whole.
_FAILED_CHECK = re.compile(r"^assertion failed: \[([^\n]*)\]$", re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains on this rank and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m rankhouse.training.runs.worker", description="One rank of a run.")
    parser.add_argument("run_folder", type=Path)
    folder = parser.parse_args(arguments).run_folder
    stop = StopRequest(RunFolder(folder).stop_file)
    _end_with_launcher()
    _share_cores()
    try:
        return _train(RunFolder.open(folder), stop)
    except TrainingError as error:
        return _say(str(error))
    except tf.errors.InvalidArgumentError as error:
        found = _FAILED_CHECK.search(error.message)
        if found is None:
            raise
        return _say(found[1])


def _say(error: str) -> int:
    Console(stderr=True).print(f"[bold red]error:[/] {escape(error)}", highlight=False, soft_wrap=True)
    return 1


def _train(run: RunFolder, stop: StopRequest) -> int:
    ranks = Ranks.init()
    console = Console(quiet=ranks.rank > 0, highlight=False, soft_wrap=True)
    try:
        with _logging(run, console, rank=ranks.rank):
            result = _do_steps(run, ranks, stop, console)
    except tf.errors.UnknownError as error:  # How Horovod's operations end when they lose the connection to a rank.
        if ranks.size == 1:
            raise
        print(f"rank {ranks.rank} lost another rank: {_reason(error)}", file=sys.stderr)
        return LOST_PEERS
    return stop.exit_status if result is None else 0


def _do_steps(run: RunFolder, ranks: Ranks, stop: StopRequest, console: Console) -> Result | None:
    if run.result is not None and ranks.rank == 0:
        run.clear_result()
    trainer = Trainer(run, ranks=ranks)
    if ranks.rank == 0:
        _write_plan(run, trainer)
    log.info("%s", _story(run, trainer))
    with _observers(run, trainer, console) as observers:
        result = trainer.train(observers, stop=stop)
    traffic = trainer.collect_traffic()
    if traffic.exchanges:
        log.info("%s", traffic.explain())
    for table, stats in trainer.collect_host_stats().items():
        log.info("table %s on the host: %s", table, stats.explain())
    rows = {table.name: table.num_rows for table in trainer.model.embedding.plan.tables}
    for table, taken in trainer.collect_rows_taken().items():
        log.info("table %s has learnt its keys: %s of %s rows are taken", table, f"{taken:,}", f"{rows[table]:,}")
    if ranks.rank == 0:
        write_text(run.traffic_file, traffic.to_json())
        if result is not None:
            run.write_result(result)
        write_report(run)
    log.info("%s", _outcome(run, trainer, result))
    return result


def _story(run: RunFolder, trainer: Trainer) -> str:
    ranks = f"{trainer.ranks.size} rank{'s' if trainer.ranks.size > 1 else ''}"
    tables = trainer.model.embedding.plan.tables
    table_bytes = sum(table.weight_bytes for table in tables)
    source = trainer.config.training.continue_from
    start = f"from what {source} has learnt" if source else "from the start"
    if trainer.position.step:
        start = f"going on from step {trainer.position.step}"
    return (
        f"training {run.path} on {ranks}, {start}: {trainer.num_steps} steps of {trainer.config.training.batch_size} "
        f"samples, {len(tables)} tables of {table_bytes / 2**20:,.1f} MiB together"
    )


def _outcome(run: RunFolder, trainer: Trainer, result: Result | None) -> str:
    if result is None:
        return f"stopped at step {trainer.position.step} of {trainer.num_steps}, state saved; go on with --resume"
    auc = "undefined" if result.auc is None else f"{result.auc:.4f}"
    speed = result.num_samples / result.seconds
    return f"finished {result.num_steps} steps: AUC {auc}, {speed:,.0f} samples/s; look at {run.report_file}"


def _write_plan(run: RunFolder, trainer: Trainer) -> None:
    plan = trainer.model.embedding.plan
    write_text(run.plan_json_file, json.dumps(plan.document(), indent=1) + "\n")
    write_text(run.plan_text_file, plan.explain() + "\n")


@contextmanager
def _observers(run: RunFolder, trainer: Trainer, console: Console) -> Iterator[list[Observer]]:
    """Yields those who watch this rank: on rank 0 all, elsewhere nobody."""
    if trainer.ranks.rank > 0:
        yield []
        return
    first_step = trainer.position.step
    observers: list[Observer] = [
        MetricsFile(run, first_step=first_step),
        TensorBoard(run),
        ProgressBar(console, first_step=first_step, num_steps=trainer.num_steps),
    ]
    try:
        yield observers
    finally:
        for observer in observers:
            observer.close()


@contextmanager
def _logging(run: RunFolder, console: Console, *, rank: int) -> Iterator[None]:
    """Sends the package's messages of rank 0 to `train.log`, with times, and to the console."""
    package = logging.getLogger("rankhouse.training")
    if rank > 0:
        yield
        return
    to_file = logging.FileHandler(run.log_file, encoding="utf-8")
    to_file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    to_console = _ConsoleHandler(console)
    level = package.level
    package.setLevel(logging.INFO)
    for handler in (to_file, to_console):
        package.addHandler(handler)
    try:
        yield
    finally:
        package.setLevel(level)
        for handler in (to_file, to_console):
            package.removeHandler(handler)
            handler.close()


class _ConsoleHandler(logging.Handler):
    """Prints messages above the progress bar."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        self._console.print(record.getMessage(), markup=False)


def _share_cores() -> None:
    """Gives each rank of a machine its part of the cores; more threads than cores make all ranks slower."""
    local_ranks = max(int(os.environ.get(name, "1")) for name in LOCAL_SIZES)
    num_threads = max(1, len(os.sched_getaffinity(0)) // local_ranks)
    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    tf.config.threading.set_inter_op_parallelism_threads(num_threads)


def _end_with_launcher() -> None:
    """Lets the kernel tell us to stop when the launcher dies, so that no rank is left behind."""
    launcher = os.environ.get("RANKHOUSE_LAUNCHER_PID")
    if launcher is None:
        return
    set_parent_death_signal = 1
    ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGTERM)
    if os.getppid() != int(launcher):
        sys.exit(LOST_PEERS)


def _reason(error: tf.errors.OpError) -> str:
    lines = [line for line in str(error.message).splitlines() if line.strip()]
    return lines[-1] if lines else "the connection is gone"


if __name__ == "__main__":
    sys.exit(main())
