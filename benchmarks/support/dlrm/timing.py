"""What the process of a candidate does, whatever its framework: trains, and prints what its steps took."""

import argparse
import json
import time
from collections.abc import Callable

from benchmarks.support.dlrm.shapes import NUM_BATCHES, SHAPES, WARMUP_STEPS, Shape


def parse_options() -> argparse.Namespace:
    """Reads the command line of a candidate's process: which candidate, `shape`, and `batch_sizes`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("candidate")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("batch_sizes", type=int, nargs="+")
    return parser.parse_args()


def time_steps(step: Callable[[int], object], *, shape: Shape, batch_size: int, speaks: bool) -> None:
    """Trains on the batches in turn; the rank that speaks prints a line of JSON."""
    seconds = []
    for number in range(WARMUP_STEPS + shape.num_steps(batch_size)):
        start = time.perf_counter()
        step(number % NUM_BATCHES)
        seconds.append(time.perf_counter() - start)
    if speaks:
        # Ended at both ends: launchers put the rank's name before a line.
        print(json.dumps({"batch_size": batch_size, "seconds": seconds[WARMUP_STEPS:]}), flush=True)
