"""Training steps of the shipped recipe on this machine's processors, beside what the planner predicted for them.

    rankhouse bench plan_forecast
    rankhouse bench plan_forecast --ranks 2 --batch-sizes 8192

The same processes measure what the machine achieves, plan and predict with that, and train. What else the machine does
slows both, but not alike: the planner's constants are the fastest of several runs, so on a busy machine the fastest
step is what to hold a forecast against. Takes 4 minutes and 1 GiB of memory on two idle cores.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.support.machine import CHECKOUT, describe_machine, example_dataset
from benchmarks.support.sheet import Sheet, report

BATCH_SIZES = (2048, 8192)
RANKS = (1, 2)
PLANS = {
    "by size": [],
    "by cost": ["parallel.plan=auto"],
    "all copied": ['parallel.tables={"*": {mode: data_parallel}}'],
    "all table-wise": ['parallel.tables={"*": {mode: table_wise}}'],
    "all by columns": ['parallel.tables={"*": {mode: column_wise}}'],
    "all by rows": ['parallel.tables={"*": {mode: row_wise}}'],
}
WARMUP_STEPS = 5
TURN_SECONDS = 1800


def main() -> None:
    """Measures every plan, or is one rank's process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS)
    parser.add_argument("--batch-sizes", nargs="+", type=int, default=BATCH_SIZES, help="samples of a step, all ranks")
    parser.add_argument("--steps", type=int, default=20, help="timed steps")
    parser.add_argument("--dataset", type=Path, help="a prepared dataset; by default one of 400,000 synthetic rows")
    parser.add_argument("--output", type=Path, help="also write it as markdown")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        measure(options)
        return
    dataset = options.dataset or example_dataset()
    lines = []
    for num_ranks in options.ranks:
        for said in run_ranks(num_ranks, dataset, options):
            predicted, seconds = said["predicted"], (median(said["measured"]), min(said["measured"]))
            lines.append(
                [
                    *(str(said[name]) for name in ("plan", "ranks", "batch_size")),
                    f"{1e3 * predicted:.1f}",
                    *(f"{1e3 * measured:.1f}" for measured in seconds),
                    *(f"{predicted / measured - 1:+.0%}" for measured in seconds),
                ]
            )
    load = f"Load of the machine meanwhile: {os.getloadavg()[1]:.1f} (mean of five minutes)."
    columns = ["plan", "ranks", "batch", "predicted ms", "median ms", "fastest ms", "error", "of the fastest"]
    sheet = Sheet(f"Steps of the recipe dlrm, {options.steps} of each", columns, lines)
    report(Console(), [describe_machine(), load], [sheet], [], options.output)


def run_ranks(num_ranks: int, dataset: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns what the ranks say of each plan."""
    from rankhouse.training.runs.launch import ALLOCATOR

    command = [sys.executable, "-m", "benchmarks.plan_forecast", "--worker", "--dataset", str(dataset)]
    command += ["--steps", str(options.steps), "--batch-sizes", *map(str, options.batch_sizes)]
    if num_ranks > 1:
        command = [str(Path(sys.executable).with_name("horovodrun")), "-np", str(num_ranks), "--gloo", *command]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "GLIBC_TUNABLES": ALLOCATOR}
    done = subprocess.run(
        command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, timeout=TURN_SECONDS, check=False
    )
    # Launchers put the rank's name before each line.
    said = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if '"predicted"' in line]
    if done.returncode or not said:
        raise SystemExit(f"{num_ranks} ranks gave no figures:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
    return said


def measure(options: argparse.Namespace) -> None:
    """Is one rank: measures the machine, then predicts and trains by each plan."""
    import tensorflow as tf

    from rankhouse.training.config import load_recipe
    from rankhouse.training.data.prepared import PreparedDataset
    from rankhouse.training.plan import Plan
    from rankhouse.training.planner.calibration import calibrate
    from rankhouse.training.planner.forecast import forecast
    from rankhouse.training.planner.recipe_plan import plan_recipe, recipe_workload
    from rankhouse.training.planner.workload import Cluster
    from rankhouse.training.ranks import Ranks

    ranks = Ranks.init()
    num_threads = max(1, len(os.sched_getaffinity(0)) // ranks.size)
    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    tf.config.threading.set_inter_op_parallelism_threads(num_threads)
    dataset = PreparedDataset.open(options.dataset)
    cluster = Cluster(ranks.size, calibrate("here", ranks=ranks, table_bytes=1 << 26))
    for batch_size in options.batch_sizes:
        for name, settings in PLANS.items() if ranks.size > 1 else [("by size", [])]:
            config = load_recipe("dlrm", overrides=[f"training.batch_size={batch_size}", *settings])
            document = plan_recipe(config, dataset, cluster).plan.document()
            plan = Plan.from_document(ranks.exchange_json(document, name="plan")[0])
            predicted = forecast(plan, recipe_workload(config, dataset), cluster).step_seconds
            measured = train(config, dataset, plan, ranks, options.steps)
            if ranks.rank == 0:
                said = {"plan": name, "ranks": ranks.size, "batch_size": batch_size}
                print(json.dumps({**said, "predicted": predicted, "measured": measured}), flush=True)


def train(config: Any, dataset: Any, plan: Any, ranks: Any, num_steps: int) -> list[float]:
    """Returns the seconds of each of so many steps."""
    from rankhouse.training.data.loader import BatchLoader
    from rankhouse.training.models.ranking_model import RankingModel
    from rankhouse.training.train_step import TrainStep

    batch_size = config.training.batch_size
    loader = BatchLoader(dataset, "train", batch_size=batch_size, rank=ranks.rank, num_ranks=ranks.size, seed=1)
    step = TrainStep(RankingModel.build(config, dataset, ranks=ranks, plan=plan), overlap=False)
    seconds, batches = [], loader.batches()
    # All full batches: the last one of an epoch may be smaller.
    for number in range(min(WARMUP_STEPS + num_steps, loader.num_steps - 1)):
        batch = next(batches)
        start = time.perf_counter()
        step(batch, batch_size, False)
        if number >= WARMUP_STEPS:
            seconds.append(time.perf_counter() - start)
    return seconds


if __name__ == "__main__":
    main()
