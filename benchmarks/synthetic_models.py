"""Training steps of distributed-embeddings' synthetic models, beside what the planner predicts for this machine.

    rankhouse bench synthetic_models --model tiny --steps 10
    rankhouse bench synthetic_models --model tiny --np 2 --hardware here.json

Adagrad, power-law ids, random labels, as their benchmark has them. `tiny` takes 8.8 GiB, tables and Adagrad together;
larger models fit small machines with `--max-rows`. `rankhouse plan --calibrate here.json` measures the machine first.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from rich.console import Console

from benchmarks.support.machine import describe_machine

WARMUP_STEPS = 2


def main() -> None:
    """Starts the ranks and compares, or is one rank."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="criteo, or tiny to colossal")
    parser.add_argument("--batch-size", type=int, default=65536, help="samples per step over all ranks")
    parser.add_argument("--steps", type=int, default=10, help="timed steps")
    parser.add_argument("--np", type=int, default=1, help="ranks")
    parser.add_argument("--max-rows", type=int, default=0, help="cap of every table's rows; 0 is none")
    parser.add_argument("--hardware", default="2-cores", help="a profile of `rankhouse plan`")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        measure(options)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Runs the ranks, and prints their step beside the forecast."""
    from rankhouse.training.runs.launch import ALLOCATOR

    command = [sys.executable, "-m", "benchmarks.synthetic_models", "--rank", *sys.argv[1:]]
    if options.np > 1:
        command = [str(Path(sys.executable).with_name("horovodrun")), "-np", str(options.np), "--gloo", *command]
    environment = {**os.environ, "GLIBC_TUNABLES": ALLOCATOR}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    figures = [line for line in done.stdout.splitlines() if "step_ms" in line]
    if not figures:
        raise SystemExit(f"no figure:\n{done.stdout}\n{done.stderr[-3000:]}")
    # horovodrun puts the rank's name before each line.
    figure = json.loads(figures[0][figures[0].index("{") :])
    console = Console(highlight=False)
    console.print(describe_machine())
    ranks = "1 rank" if options.np == 1 else f"{options.np} ranks"
    console.print(
        f"{options.model}, {ranks}, {options.batch_size:,} samples: {figure['step_ms']:,.0f} ms a step, median of "
        f"{options.steps}; predicted for {options.hardware}: {figure['predicted_ms']:,.0f} ms"
    )


def measure(options: argparse.Namespace) -> None:
    """Is one rank: trains some steps by the default plan, and predicts that."""
    import tensorflow as tf

    from rankhouse.training.models.synthetic_models import synthetic_model
    from rankhouse.training.models.synthetic_network import (
        SyntheticNetwork,
        capped,
        make_synthetic_step,
        synthetic_batches,
    )
    from rankhouse.training.planner.forecast import forecast
    from rankhouse.training.planner.hardware import hardware_profile
    from rankhouse.training.planner.workload import Cluster, synthetic_workload
    from rankhouse.training.ranks import Ranks

    ranks = Ranks.init()
    num_threads = max(1, len(os.sched_getaffinity(0)) // ranks.size)
    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    tf.config.threading.set_inter_op_parallelism_threads(num_threads)
    model = synthetic_model(options.model)
    if options.max_rows:
        model = capped(model, options.max_rows)
    network = SyntheticNetwork(model, ranks=ranks)
    step = make_synthetic_step(network)
    batches = synthetic_batches(model, batch_size=options.batch_size // ranks.size, seed=ranks.rank)
    few = [next(batches) for _ in range(4)]
    seconds = []
    for number in range(WARMUP_STEPS + options.steps):
        start = time.perf_counter()
        float(step(few[number % len(few)], options.batch_size))
        if number >= WARMUP_STEPS:
            seconds.append(time.perf_counter() - start)
    workload = synthetic_workload(model, batch_size=options.batch_size)
    cluster = Cluster(ranks.size, hardware_profile(options.hardware))
    predicted = forecast(network.embedding.plan, workload, cluster)
    if ranks.rank == 0:
        figures = {"step_ms": 1e3 * median(seconds), "predicted_ms": 1e3 * predicted.step_seconds}
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
