"""NVIDIA's perf_analyzer: runs it against a model of a Triton server and reads what it writes."""

import base64
import csv
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import files
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.support.peers import PERF_ANALYZER, peers_python

# It measures in windows until three in a row differ by at most so much, and reports nothing where that does not happen:
# so any three will do, and rounds of ours, with others between them, say how steady figures are.
STABILITY_PERCENT, MOST_WINDOWS = 999, 6
START_SECONDS = 60


class PerfAnalyzerError(Exception):
    """It is not there, or ended with an error."""


@dataclass(frozen=True)
class Load:
    """What the server bore: requests a second, and milliseconds of a request."""

    requests_per_second: float
    p50_ms: float
    p99_ms: float


class PerfAnalyzer:
    """Runs the program against one server.

    Args:
        url: The server's gRPC address, host:port.
        window_seconds: How long one of its windows is.

    Raises:
        PerfAnalyzerError: It is not there, or lacks a library.
    """

    def __init__(self, url: str, *, window_seconds: float) -> None:
        self._url, self._window_seconds = url, window_seconds
        found = [str(file.locate()) for file in files("tritonclient") or [] if file.name == "perf_analyzer"]
        if not found:
            raise PerfAnalyzerError(
                "there is no perf_analyzer: tritonclient's manylinux wheel brings it, others do not"
            )
        (program,) = found
        self._program = program
        python = peers_python(PERF_ANALYZER)
        (library,) = (python.parents[1] / "lib").glob("python*/site-packages/nvidia/cuda_runtime/lib")
        inherited = os.environ.get("LD_LIBRARY_PATH")
        path = os.pathsep.join([str(library), *([inherited] if inherited else [])])
        self._environment = os.environ | {"LD_LIBRARY_PATH": path}
        done = subprocess.run(
            [program, "--version"], env=self._environment, capture_output=True, text=True, check=False
        )
        if done.returncode == 127:
            raise PerfAnalyzerError(f"{done.stderr.strip()}; on Debian, libb64.so.0d is in the package libb64-0d")

    def measure(self, model: str, data: Path, *, concurrency: int, batch_size: int = 1) -> Load:
        """Sends the requests of a file, over and over, so many at the same time.

        Args:
            model: The model's name.
            data: What `write_data` wrote.
            concurrency: Requests under way at any moment.
            batch_size: Entries of the file in a request; 1 for models without batches.

        Raises:
            PerfAnalyzerError: It failed, as when requests fail; the message is its own.
        """
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.csv"
            command = [
                *(self._program, "-m", model, "-u", self._url, "-i", "grpc", "--input-data", str(data)),
                *("-b", str(batch_size), "--concurrency-range", str(concurrency), "-f", str(report)),
                *("--measurement-interval", str(int(self._window_seconds * 1e3))),
                *("--stability-percentage", str(STABILITY_PERCENT), "--max-trials", str(MOST_WINDOWS)),
            ]
            limit = START_SECONDS + 4 * MOST_WINDOWS * self._window_seconds
            done = subprocess.run(
                command, env=self._environment, capture_output=True, text=True, check=False, timeout=limit
            )
            if not report.is_file():
                raise PerfAnalyzerError(f"{' '.join(command)}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            return read_report(report.read_text(), batch_size=batch_size)


def read_report(text: str, *, batch_size: int) -> Load:
    """Reads the CSV that it writes: inferences a second, which are entries of the file, and microseconds.

    Raises:
        PerfAnalyzerError: There is no line of figures in it.
    """
    lines = list(csv.DictReader(text.splitlines()))
    try:
        (line,) = lines
        figures = [float(line[name]) for name in ("Inferences/Second", "p50 latency", "p99 latency")]
    except (KeyError, ValueError) as exc:
        raise PerfAnalyzerError(f"perf_analyzer wrote no line of figures: {text!r}") from exc
    return Load(figures[0] / batch_size, figures[1] / 1e3, figures[2] / 1e3)


def write_data(path: Path, requests: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Writes requests, tensors by name, in the form that `--input-data` takes; texts are arrays of objects."""
    entries = [{name: _entry(array) for name, array in request.items()} for request in requests]
    path.write_text(json.dumps({"data": entries}))


def _entry(array: np.ndarray) -> dict[str, Any]:
    """Numbers as their bytes, because in JSON there is no NaN, except that no bytes at all would end the program."""
    shape = list(array.shape)
    if array.dtype == object or not array.size:
        return {"content": [text.decode() for text in array.ravel().tolist()], "shape": shape}
    return {"b64": base64.b64encode(array.tobytes()).decode(), "shape": shape}
