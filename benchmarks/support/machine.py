"""What benchmarks share: a line about the machine, and an example dataset."""

import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
EXAMPLE_ROWS = 400_000


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
