"""What it costs a training step to note which rows it wrote.

    rankhouse bench touched_rows

Two models of the shipped recipe, one of which notes nothing, learn from the same batches in one process. They take
turns step by step, each as often first as second, so that whatever else the machine does meets both. The time of all
cores stands beside the wall clock's: it moves less where other processes run.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from unittest.mock import patch

from rich.console import Console

from benchmarks.support.machine import describe_machine, example_dataset
from rankhouse.training.data.rows import Batch

WARMUP_STEPS = 5


def main() -> None:
    """Measures both and prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=8192, help="samples per step")
    parser.add_argument("--steps", type=int, default=200, help="timed steps of each")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as of `rankhouse train`")
    parser.add_argument("--dataset", type=Path, help="a prepared dataset; by default one of 400,000 synthetic rows")
    options = parser.parse_args()
    from rankhouse.training.runs.launch import ALLOCATOR

    if os.environ.get("GLIBC_TUNABLES") != ALLOCATOR:  # glibc reads it only at process start.
        command = [sys.executable, "-m", "benchmarks.touched_rows", *sys.argv[1:]]
        os.execve(command[0], command, {**os.environ, "GLIBC_TUNABLES": ALLOCATOR})
    taken = measure(options)
    console = Console(highlight=False, soft_wrap=True)
    console.print(describe_machine())
    console.print(f"settings besides the recipe's: {', '.join(options.settings) or 'none'}")
    console.print(f"batch {options.batch_size}, {len(taken[0])} steps each, medians:")
    for clock, name in enumerate(("wall clock", "all cores")):
        noting, plain = ([step[clock] for step in steps] for steps in taken)
        difference = median(a - b for a, b in zip(noting, plain, strict=True))
        console.print(
            f"  {name}: {1e3 * median(noting):.2f} ms with notes, {1e3 * median(plain):.2f} ms without; "
            f"{1e6 * difference:+.0f} us between the two of a pair ({difference / median(plain):+.2%})"
        )


def measure(options: argparse.Namespace) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Returns the seconds of each step with and without notes, each by the wall clock and of all cores together."""
    from rankhouse.training.config import load_recipe
    from rankhouse.training.data.loader import BatchLoader
    from rankhouse.training.data.prepared import PreparedDataset
    from rankhouse.training.models.ranking_model import RankingModel
    from rankhouse.training.optimizers.optimizers import Optimizer
    from rankhouse.training.ranks import Ranks
    from rankhouse.training.train_step import TrainStep

    config = load_recipe("dlrm", overrides=[f"training.batch_size={options.batch_size}", *options.settings])
    dataset = PreparedDataset.open(options.dataset or example_dataset())
    ranks = Ranks(0, 1)
    loader = BatchLoader(dataset, "train", batch_size=options.batch_size, seed=1, shuffle=True)
    noting = TrainStep(RankingModel.build(config, dataset, ranks=ranks))
    with patch.object(Optimizer, "_note", lambda *_: None):
        plain = TrainStep(RankingModel.build(config, dataset, ranks=ranks))
    steps: list[Callable[[Batch, int, bool], object]] = [noting, plain]
    taken: tuple[list[tuple[float, float]], list[tuple[float, float]]] = ([], [])
    done, epoch = 0, 0
    while done < WARMUP_STEPS + options.steps:
        for batch in loader.batches(0, epoch):
            # Only full batches: the last one of an epoch may be smaller.
            if batch.num_samples < options.batch_size or done == WARMUP_STEPS + options.steps:
                break
            for which in (0, 1) if done % 2 else (1, 0):
                wall, cores = time.perf_counter(), time.process_time()
                steps[which](batch, options.batch_size, False)
                if done >= WARMUP_STEPS:
                    taken[which].append((time.perf_counter() - wall, time.process_time() - cores))
            done += 1
        epoch += 1
    return taken


if __name__ == "__main__":
    main()
