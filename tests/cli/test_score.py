import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from rankhouse.cli.main import app
from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.errors import GatewayError, ScoreFileError
from rankhouse.serving.triton_server import TritonServer
from tests.serving.gateway.running import RunningGateway
from tests.serving.small_version import FEATURES, MODEL, ROWS, Weights


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    columns = {feature.name: [row.get(feature.name) for row in ROWS] for feature in FEATURES}
    pq.write_table(pa.table({"label": [1.0, 0.0, 0.0, 1.0], "day": [1] * 4, **columns}), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


def score(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["score", *map(str, arguments)], terminal_width=200)


def test_a_table_shows_scores_labels_and_ranks(
    gateway: RunningGateway, rows: Path, weights: Weights, served_version: Version
) -> None:
    result = score(rows, "--url", gateway.url)
    assert result.exit_code == 0, result.output
    printed = [line.strip("│ ").split("│") for line in result.output.splitlines() if line.startswith("│")]
    assert [(int(row), int(label)) for row, label, _, _ in printed] == [(0, 1), (1, 0), (2, 0), (3, 1)]
    scores = [float(score) for _, _, score, _ in printed]
    np.testing.assert_allclose(scores, weights.scores(ROWS), atol=2e-6)
    assert [int(rank) for *_, rank in printed] == [sorted(scores, reverse=True).index(score) + 1 for score in scores]
    assert f"4 rows in 1 requests to {MODEL} {served_version.name}; latency" in result.output
    assert "not sent, because the model does not take them: day" in result.output


@pytest.mark.parametrize("over", ["rest", "grpc"])
def test_json_has_a_line_for_each_row(gateway: RunningGateway, rows: Path, weights: Weights, over: str) -> None:
    grpc = ["--grpc", gateway.grpc_address] if over == "grpc" else []
    result = score(rows, "--url", gateway.url, "--model", MODEL, "--rows", 3, "--as-candidates", 2, "--json", *grpc)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    np.testing.assert_allclose([line["score"] for line in lines], weights.scores(ROWS[:3]), atol=1e-6)
    assert [(line["row"], line["label"]) for line in lines] == [(0, 1.0), (1, 0.0), (2, 0.0)]
    assert {line["rank"] for line in lines[:2]} == {1, 2}
    assert lines[2]["rank"] == 1
    assert len({line["request_id"] for line in lines}) == 2


def test_a_gateway_that_refuses_is_quoted(gateway: RunningGateway, rows: Path) -> None:
    result = score(rows, "--url", gateway.url, "--model", "other")
    assert isinstance(result.exception, GatewayError)
    assert "No such model: model: 'other' is not served here; served is 'small'" in str(result.exception)


@pytest.mark.parametrize("over", ["rest", "grpc"])
def test_an_error_of_a_request_names_its_first_row(gateway: RunningGateway, rows: Path, over: str) -> None:
    large = pa.concat_tables([pq.read_table(rows)] * 14)
    pq.write_table(large, rows)
    grpc = ["--grpc", gateway.grpc_address] if over == "grpc" else []
    result = score(rows, "--url", gateway.url, "--as-candidates", 51, *grpc)
    assert isinstance(result.exception, GatewayError)
    assert "holds 51; expected at most 50" in str(result.exception)
    assert "candidates[0] is row 0 of the file" in str(result.exception)


def test_a_gateway_that_is_not_there_is_an_error(rows: Path) -> None:
    result = score(rows, "--url", "http://127.0.0.1:1")
    assert isinstance(result.exception, GatewayError)
    assert "no answer from a gateway at http://127.0.0.1:1" in str(result.exception)


def test_what_is_no_gateway_is_an_error(loaded_triton: TritonServer, rows: Path) -> None:
    result = score(rows, "--url", f"http://127.0.0.1:{loaded_triton.ports.http}")
    assert isinstance(result.exception, GatewayError)
    assert "and not as a gateway does" in str(result.exception)


def test_a_wrong_file_is_an_error(gateway: RunningGateway, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    result = score(tmp_path / "rows.csv", "--url", gateway.url)
    assert isinstance(result.exception, ScoreFileError)
    assert "names no feature of the model" in str(result.exception)


def test_a_key_and_the_oldest_version_are_sent(gateway: RunningGateway, rows: Path) -> None:
    newest = ["--key", "user-1", "--min-version", "1"]
    assert score(rows, "--url", gateway.url, *newest).exit_code == 0
    result = score(rows, "--url", gateway.url, "--grpc", gateway.grpc_address, "--min-version", "2")
    assert isinstance(result.exception, GatewayError)
    assert "UNAVAILABLE: no version from 2 on takes traffic here yet" in str(result.exception)
