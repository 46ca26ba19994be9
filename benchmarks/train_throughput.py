"""Training throughput on 1 and 2 ranks, beside the same DLRM in plain Keras and in plain Horovod data parallel.

    rankhouse bench train_throughput

Candidates take turns in processes of their own, on the same prepared dataset and the same global batches; the figure of
a turn is the median over its steps, the figure shown the median over its turns. Each candidate gets the environment
that it comes with: ours the allocator settings of our launcher, which plain Keras gets as well in a row of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.support.machine import describe_machine, example_dataset

WARMUP_STEPS = 5


def main() -> None:
    """Measures all candidates in turn, or is one candidate's process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=8192, help="samples per step over all ranks")
    parser.add_argument("--steps", type=int, default=30, help="timed steps of a turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--candidate", choices=["rankhouse", "keras"], help=argparse.SUPPRESS)
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as of `rankhouse train`")
    parser.add_argument("--dataset", type=Path, help="a prepared dataset; by default one of 400,000 synthetic rows")
    options = parser.parse_args()
    if options.candidate:
        measure(options)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Runs the candidates in turn and prints medians and ratios."""
    from rankhouse.training.runs.launch import ALLOCATOR

    dataset = options.dataset or example_dataset()
    ours = {"GLIBC_TUNABLES": ALLOCATOR}
    candidates: list[tuple[str, str, int, dict[str, str]]] = [
        ("plain Keras", "keras", 1, {}),
        ("plain Keras, our allocator", "keras", 1, ours),
        ("Rankhouse", "rankhouse", 1, ours),
        ("plain Horovod data parallel", "keras", 2, {}),
        ("Rankhouse", "rankhouse", 2, ours),
    ]
    rates: list[list[float]] = [[] for _ in candidates]
    for _ in range(options.turns):
        for figures, (_, candidate, num_ranks, environment) in zip(rates, candidates, strict=True):
            figures.append(run_candidate(candidate, num_ranks, environment, dataset, options))
    console = Console()
    console.print(describe_machine(), highlight=False)
    console.print(f"settings besides the defaults: {', '.join(options.settings) or 'none'}", highlight=False)
    table = Table(title=f"DLRM, batch {options.batch_size}: samples/s, medians of {options.turns} turns")
    for column in ("candidate", "ranks", "samples/s", "of the peer on as many ranks"):
        table.add_column(column, justify="left" if column == "candidate" else "right")
    peers = {1: median(rates[0]), 2: median(rates[3])}
    for (name, _, num_ranks, _), figures in zip(candidates, rates, strict=True):
        table.add_row(name, str(num_ranks), f"{median(figures):,.0f}", f"{median(figures) / peers[num_ranks]:.2f}x")
    console.print(table)


def run_candidate(
    candidate: str, num_ranks: int, environment: dict[str, str], dataset: Path, options: argparse.Namespace
) -> float:
    """Returns the samples per second of one turn."""
    command = [sys.executable, "-m", "benchmarks.train_throughput", "--candidate", candidate]
    command += ["--dataset", str(dataset), "--batch-size", str(options.batch_size), "--steps", str(options.steps)]
    command += [word for setting in options.settings for word in ("--set", setting)]
    if num_ranks > 1:
        horovodrun = str(Path(sys.executable).with_name("horovodrun"))
        command = [horovodrun, "-np", str(num_ranks), "--gloo", *command]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    figures = [line for line in done.stdout.splitlines() if "samples_per_second" in line]
    if not figures:
        raise SystemExit(f"{candidate} on {num_ranks} ranks gave no figure:\n{done.stdout}\n{done.stderr[-3000:]}")
    # horovodrun puts the rank's name before each line.
    return float(json.loads(figures[0][figures[0].index("{") :])["samples_per_second"])


def measure(options: argparse.Namespace) -> None:
    """Is one rank of one candidate: trains some steps and prints the rate over all ranks."""
    import tensorflow as tf

    from rankhouse.training.config import override, parse_config
    from rankhouse.training.data.loader import BatchLoader
    from rankhouse.training.data.prepared import PreparedDataset
    from rankhouse.training.ranks import Ranks

    ranks = Ranks.init()
    num_threads = max(1, len(os.sched_getaffinity(0)) // ranks.size)
    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    tf.config.threading.set_inter_op_parallelism_threads(num_threads)
    config = override(
        parse_config("", source="defaults"), [f"training.batch_size={options.batch_size}", *options.settings]
    )
    dataset = PreparedDataset.open(options.dataset)
    loader = BatchLoader(
        dataset, "train", batch_size=options.batch_size, rank=ranks.rank, num_ranks=ranks.size, seed=1, shuffle=True
    )
    step: Callable[..., object]
    if options.candidate == "keras":
        from benchmarks.support.keras_baseline import KerasBaseline

        step = KerasBaseline(config, dataset, num_ranks=ranks.size).step
    else:
        from rankhouse.training.models.ranking_model import RankingModel
        from rankhouse.training.trainer import make_train_step

        train_step = make_train_step(RankingModel.build(config, dataset, ranks=ranks))
        step = partial(train_step, num_samples=options.batch_size, stop=False)
    seconds = []
    batches = loader.batches()
    # All full batches: the last one of an epoch may be smaller.
    for number in range(min(WARMUP_STEPS + options.steps, loader.num_steps - 1)):
        batch = next(batches)
        start = time.perf_counter()
        step(batch)
        if number >= WARMUP_STEPS:
            seconds.append(time.perf_counter() - start)
    if ranks.rank == 0:
        print(json.dumps({"samples_per_second": options.batch_size / median(seconds)}), flush=True)


if __name__ == "__main__":
    main()
