"""The environment of the peers that come from PyPI, apart from ours: their packages and OpenMP runtime stay there."""

import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]
ENVIRONMENT = CHECKOUT / "build" / "peers"
REQUIREMENTS = Path(__file__).with_name("peers.txt")
INSTALLED = ENVIRONMENT / "installed.txt"


def peers_python() -> Path:
    """Returns the Python that has the peers; makes its environment the first time, and when the pins change.

    Raises:
        subprocess.CalledProcessError: A package could not be installed; pip's message is above.
    """
    python = ENVIRONMENT / "bin" / "python"
    pins = REQUIREMENTS.read_text()
    if not (INSTALLED.is_file() and INSTALLED.read_text() == pins):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)], check=True)
        subprocess.run(
            [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "-r", str(REQUIREMENTS)], check=True
        )
        INSTALLED.write_text(pins)
    return python


def peers_versions() -> str:
    """Returns the versions that a figure depends on."""
    pins = (line.partition("==") for line in REQUIREMENTS.read_text().splitlines())
    return ", ".join(f"{name} {pin}" for name, _, pin in pins if name in {"torch", "fbgemm-gpu-cpu", "torchrec"})
