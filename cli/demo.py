"""`rankhouse demo`: the whole job on one machine, by the commands that a user would type, and a check of its end."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rankhouse.serving.errors import ServingError
from rankhouse.training.errors import TrainingError

if TYPE_CHECKING:
    from rankhouse.embedding_cache.format.golden import GoldenRequest

MODEL = "dlrm"

# The largest difference between the trainer's score and the gateway's that is put down to rounding.
TOLERANCE = 1e-5

NUM_TIMED_REQUESTS = 300
CANDIDATES_PER_REQUEST = 64
_START_SECONDS = 120
_STOP_SECONDS = 60


class Places:
    """Where the demo keeps its files, below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.train_logs = folder / "logs" / "train.tsv"
        self.valid_logs = folder / "logs" / "valid.tsv"
        self.dataset = folder / "dataset"
        self.run = folder / MODEL
        self.store = folder / "store"
        self.serving = folder / "serving"


@dataclass(frozen=True)
class Chapter:
    """A stage of the story: its name, how long it took, and what came of it."""

    name: str
    seconds: float
    figures: str


@dataclass(frozen=True)
class Replay:
    """What a replay of requests through the gateway found; latencies are in milliseconds."""

    num_scores: int
    max_difference: float
    latency_ms_p50: float
    latency_ms_p99: float


def demo(
    folder: Annotated[Path, typer.Option(help="Where everything goes; a previous demo there is replaced.")] = Path(
        "runs/demo"
    ),
    rows: Annotated[int, typer.Option(help="Rows of logs to learn from.", min=1000)] = 1_000_000,
    num_ranks: Annotated[int, typer.Option("--np", help="Horovod ranks.", min=1)] = 2,
    num_replayed: Annotated[int, typer.Option("--replay", help="Held-out rows to replay.", min=1, max=1000)] = 1000,
) -> None:
    """Make logs, preprocess, train, export, serve, score, and check that the gateway scores as the trainer does."""
    console = Console()
    places = Places(folder)
    _clear(places)
    story: list[Chapter] = []
    valid_rows = max(rows // 10, num_replayed)

    with _chapter(story, console, "make logs", lambda: _logs_figures(places)):
        _rankhouse(console, "data", "synth", places.train_logs, "--rows", rows)
        _rankhouse(console, "data", "synth", places.valid_logs, "--rows", valid_rows, "--seed", 1)
    with _chapter(story, console, "preprocess", lambda: _dataset_figures(places)):
        _rankhouse(
            console, "data", "preprocess", places.dataset, "--train", places.train_logs, "--valid", places.valid_logs
        )
    with _chapter(story, console, "train", lambda: _run_figures(places)):
        _rankhouse(
            console,
            *("train", "--data", places.dataset, "--recipe", MODEL, "--np", num_ranks),
            *("--runs", places.folder, "--run", places.run.name),
        )
    with _chapter(story, console, "export", lambda: _version_figures(places)):
        _rankhouse(console, "export", places.run, "--store", places.store, "--model", MODEL)
    with _chapter(story, console, "serve", lambda: f"{serving['model']} {serving['version']}"):
        process = _start_serving(console, places)
        serving = _wait_until_ready(process, places)
    try:
        with _chapter(story, console, "score", lambda: "first rows of the held-out logs, above"):
            _rankhouse(
                console, "score", places.valid_logs, "--url", serving["rest_url"], "--model", MODEL, "--rows", 10
            )
        with _chapter(story, console, "check", lambda: _replay_figures(replay)):
            replay = _replay(serving["rest_url"], _trainer_requests(places, num_replayed))
    finally:
        _stop_serving(process)
    _tell(console, story, places)
    check_parity(replay)


def check_parity(replay: Replay) -> None:
    """Refuses scores that rounding does not explain, and scores that are no numbers.

    Raises:
        ServingError: The gateway does not score as the trainer does.
    """
    if not replay.max_difference <= TOLERANCE:
        raise ServingError(
            f"the gateway's scores differ from the trainer's by up to {replay.max_difference:.2e}; expected at most "
            f"{TOLERANCE:g}: the version that is served does not say what the run learnt"
        )


@contextmanager
def _chapter(story: list[Chapter], console: Console, name: str, figures: Callable[[], str]) -> Iterator[None]:
    console.rule(f"[bold]{len(story) + 1}. {name}", align="left")
    start = time.monotonic()
    yield
    story.append(Chapter(name, time.monotonic() - start, figures()))


def _rankhouse(console: Console, *arguments: object) -> None:
    """Runs a command as a user would; its output is shown."""
    status = subprocess.run(_shown(console, arguments)).returncode
    if status:
        raise typer.Exit(status)


def _shown(console: Console, arguments: tuple[object, ...]) -> list[str]:
    """Prints a command as a user would type it, and returns it as it is run: with this very Python."""
    words = list(map(str, arguments))
    console.print(f"[dim]$ rankhouse {' '.join(words)}", highlight=False, soft_wrap=True)
    return [sys.executable, "-m", "rankhouse.cli.main", *words]


def _clear(places: Places) -> None:
    """Removes what a previous demo left; a folder that holds anything else is refused."""
    ours = {"logs", "dataset", MODEL, "store", "serving"}
    found = {path.name for path in places.folder.iterdir()} if places.folder.is_dir() else set()
    if found - ours:
        raise TrainingError(
            f"{places.folder} holds {', '.join(sorted(found - ours))}, which no demo made; give another --folder"
        )
    for name in found:
        shutil.rmtree(places.folder / name)
    places.train_logs.parent.mkdir(parents=True, exist_ok=True)


def _trainer_requests(places: Places, num_rows: int) -> "list[GoldenRequest]":
    """Scores raw held-out rows on the trainer's side: NVTabular's transform, the lookup op, TensorFlow."""
    from rankhouse.training.models.trained_model import load_trained_model
    from rankhouse.training.trainer_scores import golden_requests

    return golden_requests(load_trained_model(places.run), num_rows=num_rows)


def _start_serving(console: Console, places: Places) -> subprocess.Popen[bytes]:
    ports = ("--port", 0, "--grpc-port", 0, "--admin-port", 0)
    arguments = ("serve", "--store", places.store, "--model", MODEL, *ports, "--run-dir", places.serving)
    return subprocess.Popen(_shown(console, arguments))


def _wait_until_ready(process: subprocess.Popen[bytes], places: Places) -> dict[str, Any]:
    from rankhouse.serving.supervisor import READY_FILE

    path = places.serving / READY_FILE
    deadline = time.monotonic() + _START_SECONDS
    try:
        while time.monotonic() < deadline:
            if path.is_file():
                serving: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
                return serving
            if process.poll() is not None:
                raise ServingError(f"`rankhouse serve` ended with status {process.returncode}; its message is above")
            time.sleep(0.1)
        raise ServingError(f"`rankhouse serve` was not ready in {_START_SECONDS} s; its logs are in {places.serving}")
    except BaseException:
        _stop_serving(process)
        raise


def _stop_serving(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _replay(url: str, requests: "list[GoldenRequest]") -> Replay:
    """Sends all rows, compares the scores, and then times requests one after the other."""
    import numpy as np

    from rankhouse.serving.gateway.messages import ScoreRequest
    from rankhouse.serving.gateway_client import RestClient

    rows = [row for request in requests for row in request.rows()]
    expected = np.array([score for request in requests for score in request.scores])
    bodies = [
        ScoreRequest(candidates=rows[begin : begin + CANDIDATES_PER_REQUEST])
        for begin in range(0, len(rows), CANDIDATES_PER_REQUEST)
    ]
    latencies_ms = []
    with RestClient(url) as client:
        scores = [score for body in bodies for score in client.score(MODEL, body).scores]
        for _ in range(NUM_TIMED_REQUESTS):
            start = time.perf_counter()
            client.score(MODEL, bodies[0])
            latencies_ms.append(1e3 * (time.perf_counter() - start))
    difference = float(np.abs(np.array(scores) - expected).max())
    return Replay(len(scores), difference, *np.percentile(latencies_ms, [50, 99]).tolist())


def _logs_figures(places: Places) -> str:
    facts = _facts(places.train_logs)
    return f"{facts['num_rows']:,} rows to learn from, {_facts(places.valid_logs)['num_rows']:,} held out"


def _facts(logs: Path) -> dict[str, Any]:
    from rankhouse.training.data.synth import FACTS_SUFFIX

    facts: dict[str, Any] = json.loads(Path(f"{logs}{FACTS_SUFFIX}").read_text(encoding="utf-8"))
    return facts


def _dataset_figures(places: Places) -> str:
    from rankhouse.training.data.prepared import PreparedDataset

    tables = PreparedDataset.open(places.dataset).tables.values()
    return f"{len(tables)} tables, {sum(table.num_rows for table in tables):,} rows of embeddings"


def _run_figures(places: Places) -> str:
    from rankhouse.training.runs.folder import RunFolder

    result = RunFolder(places.run).result
    if result is None or result.auc is None:
        return "stopped before its end"
    return (
        f"{result.num_samples / result.seconds:,.0f} samples/s on {result.num_ranks} ranks\n"
        f"AUC {result.auc:.4f}, best reachable {_facts(places.valid_logs)['best_auc']:.4f}"
    )


def _version_figures(places: Places) -> str:
    from rankhouse.embedding_cache.format.version import VersionStore

    version = VersionStore(places.store).open()
    return f"{version.name}, {version.num_bytes / 1e6:,.1f} MB"


def _replay_figures(replay: Replay) -> str:
    return (
        f"{replay.num_scores:,} rows, at most {replay.max_difference:.1e} from the trainer's scores\n"
        f"{CANDIDATES_PER_REQUEST} candidates in {replay.latency_ms_p50:.1f} ms (p50), "
        f"{replay.latency_ms_p99:.1f} ms (p99)"
    )


def _tell(console: Console, story: list[Chapter], places: Places) -> None:
    table = Table(title="What happened", title_justify="left", show_edge=False)
    table.add_column("stage", style="bold")
    table.add_column("seconds", justify="right")
    table.add_column("figures")
    for chapter in story:
        table.add_row(chapter.name, f"{chapter.seconds:.1f}", chapter.figures)
    table.add_section()
    table.add_row("all", f"{sum(chapter.seconds for chapter in story):.1f}", "")
    console.print()
    console.print(table)
    console.print("\n[bold]Where to look[/]")
    for name, what in (
        ("the run", f"{places.run}/report.html"),
        ("", f"{_program('tensorboard')} --logdir {places.run}/tensorboard"),
        ("the version", f"{_program('rankhouse')} version show {places.store}"),
        ("serve it", f"{_program('rankhouse')} serve --store {places.store} --model {MODEL}"),
        ("", "and then open http://127.0.0.1:8080/docs"),
    ):
        console.print(f"  {name:<13} {what}", highlight=False, soft_wrap=True)


def _program(name: str) -> str:
    """A program of this Python's as a user can type it: with its folder where the path does not lead there."""
    if shutil.which(name):
        return name
    return os.path.relpath(Path(sys.executable).parent / name)
