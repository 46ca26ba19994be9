"""What it costs a training step to note which rows it wrote.

    rankhouse bench touched_rows

Two models of the shipped recipe, one of which notes nothing, learn from the same batches in one process. They take
turns step by step, each as often first as second, so that whatever else the machine does meets both.
"""

import argparse
import os
import time
from pathlib import Path
from statistics import median
from unittest.mock import patch

from rich.console import Console

from benchmarks.support.machine import describe_machine, example_dataset

WARMUP_STEPS = 5


def main() -> None:
    """Measures both and prints the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=8192, help="samples per step")
    parser.add_argument("--steps", type=int, default=200, help="timed steps of each")
    parser.add_argument("--set", dest="settings", action="append", default=[], help="as of `rankhouse train`")
    parser.add_argument("--dataset", type=Path, help="a prepared dataset; by default one of 400,000 synthetic rows")
    options = parser.parse_args()
    from rankhouse.training.launch import ALLOCATOR

    if os.environ.get("GLIBC_TUNABLES") != ALLOCATOR:  # glibc reads it only at process start.
        command = [os.sys.executable, "-m", "benchmarks.touched_rows", *os.sys.argv[1:]]
        os.execve(command[0], command, {**os.environ, "GLIBC_TUNABLES": ALLOCATOR})
    seconds = measure(options)
    console = Console(highlight=False)
    console.print(describe_machine())
    console.print(f"settings besides the recipe's: {', '.join(options.settings) or 'none'}")
    noting, plain = (median(taken) for taken in seconds)
    difference = median(a - b for a, b in zip(*seconds, strict=True))
    console.print(f"batch {options.batch_size}, {len(seconds[0])} steps each: medians")
    console.print(f"  {1e3 * noting:.2f} ms with notes, {1e3 * plain:.2f} ms without")
    console.print(f"  {1e6 * difference:+.0f} us between the two of a pair: {difference / plain:+.2%}")


def measure(options: argparse.Namespace) -> tuple[list[float], list[float]]:
    """Returns the seconds of each step, with and without notes."""
    import rankhouse.training.optimizers as optimizers
    from rankhouse.training.config import load_recipe
    from rankhouse.training.data.loader import BatchLoader
    from rankhouse.training.data.prepared import PreparedDataset
    from rankhouse.training.ranking_model import RankingModel
    from rankhouse.training.ranks import Ranks
    from rankhouse.training.trainer import make_train_step

    config = load_recipe("dlrm", overrides=[f"training.batch_size={options.batch_size}", *options.settings])
    dataset = PreparedDataset.open(options.dataset or example_dataset())
    ranks = Ranks(0, 1)
    loader = BatchLoader(dataset, "train", batch_size=options.batch_size, seed=1, shuffle=True)
    noting = make_train_step(RankingModel.build(config, dataset, ranks=ranks))
    with patch.object(optimizers, "_scatter", lambda *_: None):
        plain = make_train_step(RankingModel.build(config, dataset, ranks=ranks))
    steps, seconds = (noting, plain), ([], [])
    done, epoch = 0, 0
    while done < WARMUP_STEPS + options.steps:
        for batch in loader.batches(0, epoch):
            # Only full batches: the last one of an epoch may be smaller.
            if batch.num_samples < options.batch_size or done == WARMUP_STEPS + options.steps:
                break
            for which in (0, 1) if done % 2 else (1, 0):
                start = time.perf_counter()
                steps[which](batch, options.batch_size, False)
                if done >= WARMUP_STEPS:
                    seconds[which].append(time.perf_counter() - start)
            done += 1
        epoch += 1
    return seconds


if __name__ == "__main__":
    main()
