"""What benchmarks share: a line about the machine, an example dataset, and a served version."""

import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rankhouse.serving.supervisor import READY_FILE

CHECKOUT = Path(__file__).parents[2]
EXAMPLE_ROWS = 400_000
START_SECONDS, STOP_SECONDS = 120, 60


def describe_machine() -> str:
    """Returns hardware, versions and commit, without which a figure says nothing."""
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.machine(),
    )
    commit = subprocess.run(
        ["git", "-C", str(CHECKOUT), "describe", "--always", "--dirty"], stdout=subprocess.PIPE, text=True
    ).stdout.strip()
    packages = ", ".join(f"{name} {version(name)}" for name in ("tensorflow", "horovod", "numpy"))
    return f"{model}, {len(os.sched_getaffinity(0))} cores; Python {platform.python_version()}, {packages}; {commit}"


def example_dataset() -> Path:
    """Returns a prepared dataset of synthetic logs; makes it the first time."""
    folder = CHECKOUT / "data" / "bench"
    if not (folder / "dataset" / "dataset.json").is_file():
        rankhouse("data", "synth", folder / "train.tsv", "--rows", EXAMPLE_ROWS)
        rankhouse("data", "synth", folder / "valid.tsv", "--rows", EXAMPLE_ROWS // 10, "--seed", 1)
        rankhouse(
            "data", "preprocess", folder / "dataset", "--train", folder / "train.tsv", "--valid", folder / "valid.tsv"
        )
    return folder / "dataset"


def rankhouse(*arguments: object) -> None:
    """Runs a command of ours."""
    subprocess.run([sys.executable, "-m", "rankhouse.cli.main", *map(str, arguments)], check=True)


@contextmanager
def serving(store: Path, model: str) -> Iterator[dict[str, Any]]:
    """Serves the latest version of a store on free ports; yields the addresses that `rankhouse serve` writes."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["serve", "--store", store, "--model", model, "--run-dir", folder, "--port", 0, "--grpc-port", 0]
        command += ["--admin-port", 0]
        process = subprocess.Popen([sys.executable, "-m", "rankhouse.cli.main", *map(str, command)])
        ready_file = Path(folder) / READY_FILE
        deadline = time.monotonic() + START_SECONDS
        try:
            while not ready_file.is_file():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("`rankhouse serve` did not become ready; its message is above")
                time.sleep(0.1)
            yield json.loads(ready_file.read_text())
        finally:
            process.terminate()
            process.wait(STOP_SECONDS)
