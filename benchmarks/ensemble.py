"""The ensemble under load, by NVIDIA's perf_analyzer over gRPC, beside what it replaces.

    rankhouse bench ensemble                  all cells, about 15 minutes
    rankhouse bench ensemble --quick          two cells, about 2 minutes

One Triton server has three models of one trained version, and their scores are compared before they are timed:

* `Rankhouse`: serving's own models.
* `Python steps`: the ensemble that these replaced, NumPy in three processes of Triton's Python backend.
* `TensorFlow`: the whole model, vocabularies included, as one SavedModel in one process of the Python backend, which
  joins the requests that Triton batches.

They take turns, cell by cell, on the same candidates. A figure is the median over rounds. The version is trained and
exported the first time, below build/ensemble.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.progress import track

from benchmarks.support.ensemble.perf_analyzer import Load, PerfAnalyzer, write_data
from benchmarks.support.ensemble.whole_model_repository import write_whole_model
from benchmarks.support.ensemble.wire import Tensors, ensemble_tensors, scores, whole_model_tensors
from benchmarks.support.machine import CHECKOUT, describe_machine, example_dataset, rankhouse
from benchmarks.support.python_ensemble.repository import write_python_ensemble
from benchmarks.support.sheet import Sheet, report
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.serving.model_repository import write_models
from rankhouse.serving.triton_client import TritonClient
from rankhouse.serving.triton_server import TritonServer

FOLDER = CHECKOUT / "build" / "ensemble"
MODEL = "dlrm"
OURS, STEPS, WHOLE = "Rankhouse", "Python steps", "TensorFlow"
CONCURRENCIES, CANDIDATES = (1, 4, 16), (1, 64, 512)
MOST_ROWS = max(CONCURRENCIES) * max(CANDIDATES)
QUICK = ((1, 64), (4, 64))
# Different requests of a cell, sent in turn.
NUM_REQUESTS = 16
# With the recipe's own, export's comparison of ONNX Runtime and TensorFlow, on random input that is larger than trained
# rows are, ends just beyond what it allows.
SEED = 11
# TensorFlow adds in another order.
TOLERANCE = 1e-5
AIM = 2.0


@dataclass(frozen=True)
class Served:
    """A candidate: a model's name, and how rows become its tensors. `is_batched`: Triton joins single rows."""

    name: str
    model: str
    tensors: Mapping[int, Sequence[Tensors]]
    is_batched: bool = False


@dataclass(frozen=True)
class Cell:
    """Requests under way at the same time, and candidates in each."""

    concurrency: int
    candidates: int


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two cells only, one round")
    parser.add_argument("--rounds", type=int, help="turns of each candidate in a cell; by default 2, 1 with --quick")
    parser.add_argument("--window", type=float, default=2.0, help="seconds of a window of perf_analyzer")
    parser.add_argument("--output", type=Path, help="a markdown file to write")
    options = parser.parse_args()
    cells = [Cell(*cell) for cell in (QUICK if options.quick else product(CONCURRENCIES, CANDIDATES))]
    version, saved_model = trained_version()
    console = Console()
    loads: dict[Cell, dict[str, list[Load]]] = {cell: {} for cell in cells}
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        with TritonServer(run_dir / "models", run_dir=run_dir) as server:
            served = serve(server, version, saved_model, {cell.candidates for cell in cells})
            check(server.grpc_url, served)
            analyzer = PerfAnalyzer(server.grpc_url, window_seconds=options.window)
            turns = list(product(range(options.rounds or (1 if options.quick else 2)), cells, served))
            for _, cell, each in track(turns, "measuring", console=console, disable=not console.is_terminal):
                data = run_dir / "data.json"
                write_data(data, entries(each, cell.candidates))
                batch_size = cell.candidates if each.is_batched else 1
                load = analyzer.measure(each.model, data, concurrency=cell.concurrency, batch_size=batch_size)
                loads[cell].setdefault(each.name, []).append(load)
    report(console, [describe_machine()], sheets(loads), [], options.output)


def trained_version() -> tuple[Version, Path]:
    """Returns a version and its SavedModel; trains, exports and writes them the first time."""
    saved_model = FOLDER / "saved_model"
    if not saved_model.is_dir():
        if not (FOLDER / "store").is_dir():
            settings = ("--set", f"training.seed={SEED}")
            rankhouse("train", "--data", example_dataset(), "--runs", FOLDER, "--run", MODEL, "--overwrite", *settings)
            rankhouse("export", FOLDER / MODEL, "--store", FOLDER / "store", "--model", MODEL)
        # TensorFlow is wanted this once only.
        from benchmarks.support.ensemble.whole_model import WholeModel
        from rankhouse.training.models.trained_model import load_trained_model

        version = VersionStore(FOLDER / "store").open(model=MODEL)
        WholeModel(version, load_trained_model(FOLDER / MODEL).dense).save(saved_model)
    return VersionStore(FOLDER / "store").open(model=MODEL), saved_model


def serve(server: TritonServer, version: Version, saved_model: Path, sizes: set[int]) -> list[Served]:
    """Writes and loads the three models."""
    golden = [row for request in version.golden() for row in request.rows()]
    features = version.transform().features
    requests = {size: [_rows(golden, number * size, size) for number in range(NUM_REQUESTS)] for size in sizes}
    raw = {size: [ensemble_tensors(RawBatch.from_rows(features, rows)) for rows in requests[size]] for size in sizes}
    columns = {size: [whole_model_tensors(features, rows) for rows in requests[size]] for size in sizes}
    whole = write_whole_model(version, saved_model, most_rows=MOST_ROWS, repository=server.repository)
    served = [
        Served(OURS, write_models(version, repository=server.repository, backends=server.backends), raw),
        Served(STEPS, write_python_ensemble(version, name="python", repository=server.repository), raw),
        Served(WHOLE, whole, columns, is_batched=True),
    ]

    async def load() -> None:
        async with TritonClient(server.grpc_url) as client:
            for each in served:
                await client.load(each.model)

    asyncio.run(load())
    return served


def check(url: str, served: Sequence[Served]) -> None:
    """Compares the scores of all candidates.

    Raises:
        SystemExit: They differ.
    """
    for size in served[0].tensors:
        wanted = scores(url, served[0].model, served[0].tensors[size][0])
        for each in served[1:]:
            found = scores(url, each.model, each.tensors[size][0])
            difference = float(np.abs(found - wanted).max())
            if not difference <= TOLERANCE:
                raise SystemExit(f"{each.name} scores up to {difference:.1e} apart from {served[0].name}")


def entries(each: Served, candidates: int) -> list[Tensors]:
    """Returns what perf_analyzer's file holds: requests, or single rows of them where Triton batches."""
    requests = each.tensors[candidates]
    if not each.is_batched:
        return list(requests)
    return [{name: array[row] for name, array in request.items()} for request in requests for row in range(candidates)]


def sheets(loads: Mapping[Cell, Mapping[str, Sequence[Load]]]) -> list[Sheet]:
    """Returns the figures, and how they compare with the aim."""
    lines, ratios = [], {STEPS: list[tuple[float, Cell]](), WHOLE: list[tuple[float, Cell]]()}
    for cell, by_name in loads.items():
        ours = median(load.requests_per_second for load in by_name[OURS])
        for name, rounds in by_name.items():
            throughput = median(load.requests_per_second for load in rounds)
            p50, p99 = (
                median(figures) for figures in zip(*((each.p50_ms, each.p99_ms) for each in rounds), strict=True)
            )
            lines.append(
                [
                    *(str(cell.concurrency), str(cell.candidates), name, f"{throughput:,.0f}"),
                    *(f"{throughput * cell.candidates:,.0f}", f"{p50:.2f}", f"{p99:.2f}", f"{ours / throughput:.2f}x"),
                ]
            )
            if name in ratios:
                ratios[name].append((ours / throughput, cell))
    heads = ("concurrency", "candidates", "model", "requests/s", "candidates/s", "p50 ms", "p99 ms", "ours is")
    aims = []
    for name, found in ratios.items():
        worst, where = min(found, key=lambda pair: pair[0])
        met = sum(ratio >= AIM for ratio, _ in found)
        at = f"concurrency {where.concurrency}, {where.candidates} candidates"
        middle = median(ratio for ratio, _ in found)
        aims.append([f"{AIM:g}x {name}", f"{met} of {len(found)}", f"{middle:.2f}", f"{worst:.2f}", at])
    return [
        Sheet("Ensembles under perf_analyzer, gRPC", heads, lines),
        Sheet(
            "Aims: our throughput divided by theirs", ("aim", "cells that meet it", "median", "worst", "where"), aims
        ),
    ]


def _rows(rows: Sequence[dict[str, object]], start: int, count: int) -> list[dict[str, object]]:
    return [rows[(start + number) % len(rows)] for number in range(count)]


if __name__ == "__main__":
    main()
