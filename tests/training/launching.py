"""Runs a function of a test on several real Horovod ranks: `run_on_ranks` starts this module once for each rank."""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]

# Ranks share two cores with each other: more threads would only take turns, and one may begin long after another.
ENVIRONMENT = {
    "HOROVOD_CYCLE_TIME": "0.5",
    "HOROVOD_GLOO_TIMEOUT_SECONDS": "600",
    "OMP_NUM_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_USE_LEGACY_KERAS": "1",
}


def run_on_ranks(
    function: Callable[..., Any], directory: Path, *, num_ranks: int, timeout_seconds: float = 800
) -> list[Any]:
    """Calls `function(ranks, directory)` on each rank; returns what they returned (JSON values), by rank."""
    outputs = directory / f"ranks-{num_ranks}"
    outputs.mkdir(parents=True)
    command = [str(Path(sys.executable).with_name("horovodrun")), "-np", str(num_ranks), "--gloo"]
    command += [
        sys.executable,
        "-m",
        __name__,
        f"{function.__module__}:{function.__name__}",
        str(directory),
        str(outputs),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_seconds,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return [json.loads((outputs / f"{rank}.json").read_text()) for rank in range(num_ranks)]


def main(function: str, directory: str, outputs: str) -> None:
    from rankhouse.training.ranks import Ranks

    ranks = Ranks.init()
    module, name = function.split(":")
    value = getattr(importlib.import_module(module), name)(ranks, Path(directory))
    (Path(outputs) / f"{ranks.rank}.json").write_text(json.dumps(value))


if __name__ == "__main__":
    main(*sys.argv[1:])
