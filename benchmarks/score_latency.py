"""Latency of scoring 64 candidates through the gateway, over REST and gRPC, and of Triton's ensemble alone.

    rankhouse bench score_latency              after `rankhouse demo`

One client on the same machine, one request at a time, the paths in turn, so that all see the same noise.
"""

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.support.machine import describe_machine, serving
from rankhouse.embedding_cache.format.raw import RawBatch
from rankhouse.embedding_cache.format.version import Version, VersionStore
from rankhouse.serving.gateway.messages import ScoreRequest
from rankhouse.serving.gateway_client import GrpcClient, RestClient
from rankhouse.serving.model_repository import ensemble_name
from rankhouse.serving.triton_client import TritonClient

WARMUP_REQUESTS = 50
REST, GRPC, TRITON = "gateway, REST", "gateway, gRPC", "Triton's ensemble alone"


def main() -> None:
    """Serves the demo's version and prints percentiles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("runs/demo/store"))
    parser.add_argument("--candidates", type=int, default=64)
    parser.add_argument("--requests", type=int, default=1000)
    options = parser.parse_args()
    version = VersionStore(options.store).open()
    with serving(options.store, version.model) as addresses:
        latencies = asyncio.run(measure(version, addresses, options))
    console = Console()
    console.print(describe_machine(), highlight=False)
    table = Table(title=f"{options.candidates} candidates, one request at a time, milliseconds")
    for column in ("path", "p50", "p99"):
        table.add_column(column, justify="left" if column == "path" else "right")
    for path, seconds in latencies.items():
        p50, p99 = np.percentile(seconds, [50, 99]) * 1e3
        table.add_row(path, f"{p50:.2f}", f"{p99:.2f}")
    console.print(table)


async def measure(version: Version, addresses: dict[str, Any], options: argparse.Namespace) -> dict[str, list[float]]:
    """Returns the seconds of each request, by path."""
    rows = [row for golden in version.golden() for row in golden.rows()]
    rows = (rows * (options.candidates // len(rows) + 1))[: options.candidates]
    request = ScoreRequest(candidates=rows)
    raw = RawBatch.from_rows(version.transform().features, rows)
    ensemble = ensemble_name(version.model, version.name)
    latencies: dict[str, list[float]] = {REST: [], GRPC: [], TRITON: []}
    with RestClient(addresses["rest_url"]) as rest, GrpcClient(addresses["grpc_url"]) as grpc:
        async with TritonClient(addresses["triton_url"]) as triton:
            for number in range(-WARMUP_REQUESTS, options.requests):
                moments = [time.perf_counter()]
                rest.score(version.model, request)
                moments.append(time.perf_counter())
                grpc.score(version.model, request)
                moments.append(time.perf_counter())
                await triton.score(ensemble, raw, timeout_seconds=10)
                moments.append(time.perf_counter())
                if number >= 0:
                    for path, seconds in zip(latencies, np.diff(moments), strict=True):
                        latencies[path].append(seconds)
    return latencies


if __name__ == "__main__":
    main()
