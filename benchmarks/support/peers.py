"""Environments, apart from ours, of what comes from PyPI to be measured: packages and OpenMP runtimes stay there."""

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
# Named like the file of their pins: frameworks, key-value stores, and what NVIDIA's perf_analyzer needs.
FRAMEWORKS, STORES, PERF_ANALYZER = "peers", "stores", "perf_analyzer"
SHOWN = {"torch", "fbgemm-gpu-cpu", "torchrec", "rocksdict", "lmdb", "redis"}


def peers_python(name: str = FRAMEWORKS) -> Path:
    """Returns the Python of an environment; makes it the first time, and when its pins change.

    Raises:
        subprocess.CalledProcessError: A package could not be installed; pip's message is above.
    """
    environment, requirements = CHECKOUT / "build" / name, _requirements(name)
    python, installed = environment / "bin" / "python", environment / "installed.txt"
    pins = requirements.read_text()
    if not (installed.is_file() and installed.read_text() == pins):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(environment)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(requirements)], check=True
        )
        installed.write_text(pins)
    return python


def peers_versions(name: str = FRAMEWORKS) -> str:
    """Returns the versions that a figure depends on."""
    pins = (line.partition("==") for line in _requirements(name).read_text().splitlines())
    return ", ".join(f"{package} {pin}" for package, _, pin in pins if package in SHOWN)


def _requirements(name: str) -> Path:
    return Path(__file__).with_name(f"{name}.txt")
