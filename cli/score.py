"""`rankhouse score`."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

if TYPE_CHECKING:
    from rankhouse.serving.gateway.messages import ScoreAnswer
    from rankhouse.serving.gateway_client import GrpcClient, RestClient


@dataclass(frozen=True)
class ScoredRow:
    """A row of the file and what the gateway said of it; the rank is among the candidates of its request."""

    row: int
    label: Any
    score: float
    rank: int
    request_id: str
    degraded: bool  # default rows stood in for embeddings that could not be read


def score(
    file: Annotated[Path, typer.Argument(help="Raw rows: TSV or CSV (plain or gz) or Parquet.")],
    url: Annotated[str, typer.Option(help="The gateway's REST address.")] = "http://127.0.0.1:8080",
    model: Annotated[str | None, typer.Option(help="The model; needed where several are served.")] = None,
    rows: Annotated[int, typer.Option(help="How many rows of the file to send.", min=1)] = 64,
    as_candidates: Annotated[int, typer.Option(help="How many rows make one request.", min=1)] = 64,
    label: Annotated[str, typer.Option(help="The file's column that is shown and not sent.")] = "label",
    grpc: Annotated[str | None, typer.Option(help="Score over gRPC at this address, host:port.")] = None,
    key: Annotated[str | None, typer.Option(help="Who asks: the same key gets the same version.")] = None,
    min_version: Annotated[str | None, typer.Option(help="The oldest version that may answer: name or number.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each row.")] = False,
) -> None:
    """Score the first rows of a file with a running gateway, and print them with their ranks."""
    from rankhouse.serving.gateway_client import GrpcClient, RestClient
    from rankhouse.serving.row_files import read_rows

    with ExitStack() as stack:
        rest = stack.enter_context(RestClient(url))
        description = rest.model(model or _only_model(rest, url))
        content = read_rows(file, description.features, num_rows=rows, label=label)
        client = stack.enter_context(GrpcClient(grpc)) if grpc else rest
        who = {"key": key, "min_version": min_version}
        answers, latencies_ms = _answers(client, description.model, content.rows, as_candidates, who)
    scored = list(_scored(answers, content.labels))
    if as_json:
        for row in scored:
            print(json.dumps(asdict(row)))
        return
    console = Console()
    console.print(_table(scored, has_labels=content.labels is not None))
    console.print(
        f"{len(scored)} rows in {len(answers)} requests to {description.model} "
        f"{' and '.join(sorted({answer.version for answer in answers}))}"
        f"{' over gRPC' if grpc else ''}; {_latency(latencies_ms)}",
        highlight=False,
    )
    num_degraded = sum(answer.degraded for answer in answers)
    if num_degraded:
        console.print(
            f"degraded: in {num_degraded} of {len(answers)} answers default rows stand in for embeddings that could "
            "not be read, so their scores are worse; see the embedding engine's counters and Redis",
            highlight=False,
        )
    if content.ignored:
        console.print(f"not sent, because the model does not take them: {', '.join(content.ignored)}", highlight=False)


def _only_model(client: "RestClient", url: str) -> str:
    names = [entry.model for entry in client.models().models]
    if len(names) != 1:
        raise typer.BadParameter(f"{url} serves {', '.join(names)}; choose one with --model")
    return names[0]


def _answers(
    client: "RestClient | GrpcClient",
    model: str,
    rows: Sequence[dict[str, Any]],
    as_candidates: int,
    who: Mapping[str, Any],
) -> tuple[list["ScoreAnswer"], list[float]]:
    """Sends the rows, so many in a request, and returns the answers with their latencies."""
    from rankhouse.serving.errors import GatewayError
    from rankhouse.serving.gateway.messages import ScoreRequest

    answers, latencies_ms = [], []
    stderr = Console(stderr=True)
    begins = range(0, len(rows), as_candidates)
    for begin in track(begins, "Scoring", console=stderr, transient=True, disable=not stderr.is_terminal):
        candidates = list(rows[begin : begin + as_candidates])
        start = time.perf_counter()
        try:
            answers.append(client.score(model, ScoreRequest(candidates, **who)))
        except GatewayError as exc:
            raise GatewayError(f"{exc}; candidates[0] is row {begin} of the file") from exc
        latencies_ms.append(1000 * (time.perf_counter() - start))
    return answers, latencies_ms


def _scored(answers: Sequence["ScoreAnswer"], labels: Sequence[Any] | None) -> Iterator[ScoredRow]:
    row = 0
    for answer in answers:
        ranks = {place.index: rank for rank, place in enumerate(answer.ranking, start=1)}
        for index, value in enumerate(answer.scores):
            label = labels[row] if labels else None
            yield ScoredRow(row, label, value, ranks[index], answer.request_id, answer.degraded)
            row += 1


def _table(scored: Sequence[ScoredRow], *, has_labels: bool) -> Table:
    table = Table("row", *(["label"] if has_labels else []), "score", "rank")
    for column in table.columns:
        column.justify = "right"
    for row in scored:
        label = [f"{row.label:g}" if isinstance(row.label, float) else str(row.label)] if has_labels else []
        table.add_row(str(row.row), *label, f"{row.score:.6f}", str(row.rank))
    return table


def _latency(latencies_ms: Sequence[float]) -> str:
    ordered = sorted(latencies_ms)
    if len(ordered) == 1:
        return f"latency {ordered[0]:.1f} ms"
    middle, last = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return f"latency p50 {middle:.1f} ms, p99 {last:.1f} ms"
