"""The child's end of a benchmark's process: does what it is told on its standard input, and times calls.

A command is a line of JSON, {"do": ..., arguments}, and so is its answer, {"error": ...} where it failed. What
frameworks print goes to standard error.
"""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

# Calls before timing; fewer where one takes as long as the timing should.
WARMUP_CALLS = 3
# A call that takes longer is timed once.
SLOW_SECONDS = 1.0
# Threads of whoever ran before may still spin.
REST_SECONDS = 0.01


def serve(make_handler: Callable[[], Any]) -> None:
    """Makes an object and calls its methods as commands say, until standard input ends. They return dictionaries."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    handler = make_handler()
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(handler, command.pop("do"))(**command)
        except Exception:
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")


def time_calls(run: Callable[[int], object], num_batches: int, seconds: float) -> list[float]:
    """Returns the seconds of each call for about so long, at least one; of one call if it takes over SLOW_SECONDS.

    Args:
        run: Works on the batch that it is given the number of.
        num_batches: Batches come one after the other, and again from the first.
        seconds: How long to go on.
    """
    time.sleep(REST_SECONDS)
    for batch in range(WARMUP_CALLS):
        took = _seconds(run, batch % num_batches)
        if took > SLOW_SECONDS:
            return [took]
        if took > seconds:
            break
    taken: list[float] = []
    while sum(taken) < seconds:
        taken.append(_seconds(run, (WARMUP_CALLS + len(taken)) % num_batches))
    return taken


def _seconds(run: Callable[[int], object], batch: int) -> float:
    start = time.perf_counter()
    run(batch)
    return time.perf_counter() - start
