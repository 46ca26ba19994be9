"""Training steps of distributed-embeddings' synthetic models, beside plain Keras and what the planner predicts.

    rankhouse bench synthetic_models
    rankhouse bench synthetic_models --model tiny --np 2 --parts step --candidates rankhouse

Adagrad, power-law ids, random labels, as their benchmark has them. The part "embedding" looks a batch up, and updates
the tables by a gradient of what was found: no dense layers. Candidates take turns in processes of their own; a ratio is
the median over turns of that to plain Keras, in float32, in the same turn. `tiny` takes 11 GiB, tables and Adagrad
together, and some 12 minutes; larger models fit small machines with `--max-rows`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from benchmarks.support.machine import describe_machine
from benchmarks.support.progress import progress
from benchmarks.support.sheet import Sheet, report
from rankhouse.training.tables.row_dtypes import ROW_DTYPES

WARMUP_STEPS = 2
HERE = "here"
PARTS = {"embedding": "embedding part", "step": "step", "step_bfloat16": "step, mixed bfloat16"}
CANDIDATES = {"keras": "plain Keras", "keras_allocator": "plain Keras, our allocator", "rankhouse": "Rankhouse"}

# By part and candidate: what each turn gave.
Figures = dict[tuple[str, str], list[dict[str, float]]]


def main() -> None:
    """Starts the candidates in turn and compares, or is one rank of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="criteo, or tiny to colossal")
    parser.add_argument("--batch-size", type=int, default=65536, help="samples per step over all ranks")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of a turn")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, default=list(CANDIDATES))
    parser.add_argument("--np", type=int, default=1, help="ranks; of Rankhouse only, so leave the others out")
    parser.add_argument("--max-rows", type=int, default=0, help="cap of every table's rows; 0 is none")
    parser.add_argument("--dtype", choices=ROW_DTYPES, default="float32", help="what Rankhouse holds rows in")
    parser.add_argument("--hardware", default=HERE, help=f"a profile of `rankhouse plan`; {HERE}: measured beforehand")
    parser.add_argument("--output", type=Path, help="also write it as markdown")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.np > 1 and options.candidates != ["rankhouse"]:
        parser.error("on several ranks there is Rankhouse only; give --candidates rankhouse")
    if options.rank:
        measure(options)
    else:
        compare(options)


def compare(options: argparse.Namespace) -> None:
    """Runs the candidates in turn, and prints their steps side by side."""
    console, figures = Console(), Figures()
    with progress(console) as show:
        for turn in range(options.turns):
            for part in options.parts:
                for candidate in options.candidates:
                    show(f"turn {turn + 1} of {options.turns}: {PARTS[part]}, {CANDIDATES[candidate]}")
                    figures.setdefault((part, candidate), []).append(run_candidate(candidate, part, options))
    lines = []
    for (part, candidate), own in figures.items():
        peers = figures.get((part.removesuffix("_bfloat16"), "keras"), [])
        ratio = median(peer["step_ms"] / it["step_ms"] for it, peer in zip(own, peers, strict=True)) if peers else 0
        predicted = f"{own[0]['predicted_ms']:,.0f}" if "predicted_ms" in own[0] else ""
        shown = f"{median(it['step_ms'] for it in own):,.0f}"
        lines.append([PARTS[part], CANDIDATES[candidate], shown, f"{ratio:.2f}x" if ratio else "", predicted])
    ranks = "1 rank" if options.np == 1 else f"{options.np} ranks"
    title = f"{options.model}, {ranks}, {options.batch_size:,} samples: medians of {options.turns} turns"
    heads = ["part", "candidate", "ms", "of plain Keras' speed in float32", f"predicted ({options.hardware}), ms"]
    report(console, [describe_machine()], [Sheet(title, heads, lines)], [], options.output)


def run_candidate(candidate: str, part: str, options: argparse.Namespace) -> dict[str, float]:
    """Returns the milliseconds of a step of one turn, and those predicted, where that can be."""
    from rankhouse.training.runs.launch import ALLOCATOR

    command = [
        sys.executable,
        "-m",
        "benchmarks.synthetic_models",
        "--rank",
        "--parts",
        part,
        "--candidates",
        candidate,
    ]
    for name in ("model", "batch_size", "steps", "np", "max_rows", "dtype", "hardware"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    if options.np > 1:
        command = [str(Path(sys.executable).with_name("horovodrun")), "-np", str(options.np), "--gloo", *command]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if candidate != "keras":
        environment["GLIBC_TUNABLES"] = ALLOCATOR
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    figures = [line for line in done.stdout.splitlines() if "step_ms" in line]
    if not figures:
        raise SystemExit(f"no figure:\n{done.stdout}\n{done.stderr[-3000:]}")
    # horovodrun puts the rank's name before each line.
    return dict(json.loads(figures[0][figures[0].index("{") :]))


def measure(options: argparse.Namespace) -> None:
    """Is one rank of one candidate: makes some steps of one part."""
    import tensorflow as tf

    from rankhouse.training.models.synthetic_models import synthetic_model
    from rankhouse.training.models.synthetic_network import capped, synthetic_batches
    from rankhouse.training.ranks import Ranks

    ranks = Ranks.init()
    num_threads = max(1, len(os.sched_getaffinity(0)) // ranks.size)
    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    tf.config.threading.set_inter_op_parallelism_threads(num_threads)
    model = synthetic_model(options.model)
    if options.max_rows:
        model = capped(model, options.max_rows)
    drawn = synthetic_batches(model, batch_size=options.batch_size // ranks.size, seed=ranks.rank)
    batches = [next(drawn) for _ in range(4)]
    (part,), (candidate,) = options.parts, options.candidates
    predicted: dict[str, float] = {}
    if candidate == "rankhouse":
        step, predicted = make_step(model, batches, part, options, ranks)
    else:
        from benchmarks.support.keras_synthetic import timed_step

        step = timed_step(model, batches, part)
    seconds = []
    for number in range(WARMUP_STEPS + options.steps):
        start = time.perf_counter()
        step(number % len(batches))
        if number >= WARMUP_STEPS:
            seconds.append(time.perf_counter() - start)
    if ranks.rank == 0:
        print(json.dumps({"step_ms": 1e3 * median(seconds), **predicted}), flush=True)


def make_step(
    model: Any, batches: list[Any], part: str, options: argparse.Namespace, ranks: Any
) -> tuple[Callable[[int], float], dict[str, float]]:
    """Returns our step of a batch, by the default plan, and what is predicted of it: of float32 steps alone."""
    import tensorflow as tf

    from rankhouse.training.models.synthetic_network import (
        SyntheticNetwork,
        make_embedding_step,
        make_synthetic_step,
    )
    from rankhouse.training.plan import make_plan
    from rankhouse.training.planner.forecast import forecast
    from rankhouse.training.planner.workload import synthetic_workload

    # Before memory is taken.
    cluster = cluster_of(options, ranks) if part == "step" else None
    plan = make_plan([replace(table, dtype=options.dtype) for table in model.tables], num_ranks=ranks.size)
    precision = "mixed_bfloat16" if part == "step_bfloat16" else "float32"
    network = SyntheticNetwork(model, ranks=ranks, plan=plan, precision=precision)
    if part == "embedding":
        embedding_step = make_embedding_step(network)
        upstream = tf.random.stateless_normal([batches[0].lengths.shape[1], model.output_dim], seed=(1, 2))
        return lambda number: float(embedding_step(batches[number], upstream)), {}
    whole_step = make_synthetic_step(network)
    predicted: dict[str, float] = {}
    if cluster:
        workload = synthetic_workload(model, batch_size=options.batch_size).held_as(plan.dtypes)
        predicted = {"predicted_ms": 1e3 * forecast(plan, workload, cluster).step_seconds}
    return lambda number: float(whole_step(batches[number], options.batch_size)), predicted


def cluster_of(options: argparse.Namespace, ranks: Any) -> Any:
    """Returns the machines that a step is predicted for; collective."""
    from rankhouse.training.planner.calibration import calibrate
    from rankhouse.training.planner.hardware import hardware_profile
    from rankhouse.training.planner.workload import Cluster

    is_here = options.hardware == HERE
    return Cluster(ranks.size, calibrate(HERE, ranks=ranks) if is_here else hardware_profile(options.hardware))


if __name__ == "__main__":
    main()
