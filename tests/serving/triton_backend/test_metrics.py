"""The engine's counters in Triton's metrics endpoint."""

import asyncio
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from rankhouse.embedding_cache.format.version import Version
from rankhouse.serving.errors import ModelLoadError
from rankhouse.serving.model_repository import write_models
from rankhouse.serving.triton_client import TritonClient
from rankhouse.serving.triton_server import TritonServer
from tests.serving.small_version import ROWS, raw_batch, write_version

pytestmark = pytest.mark.triton


def samples(triton: TritonServer, version: Version) -> dict[str, float]:
    """Our metrics of a version by name and table, as Prometheus would read them."""
    with urllib.request.urlopen(triton.metrics_url, timeout=60) as reply:
        lines = reply.read().decode().splitlines()
    found = {}
    for line in lines:
        if line.startswith("rankhouse_") and f'version="{version.name}"' in line:
            name, value = line.rsplit(" ", 1)
            table = name.split('table="')[1].split('"')[0] if 'table="' in name else ""
            found[f"{name.split('{')[0]} {table}".strip()] = float(value)
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "the metrics did not change"
        time.sleep(0.05)


def test_counters_of_a_version_appear_and_go_with_it(triton: TritonServer, tmp_path: Path) -> None:
    version = write_version(tmp_path, seed=6)

    async def score_thrice() -> None:
        async with TritonClient(triton.grpc_url) as client:
            await client.load(write_models(version, repository=triton.repository))
            for _ in range(3):
                await client.score(f"small.{version.name}", raw_batch(ROWS), timeout_seconds=60)

    async def unload() -> None:
        async with TritonClient(triton.grpc_url) as client:
            await client.unload(f"small.{version.name}")

    asyncio.run(score_thrice())
    wait_for(lambda: samples(triton, version).get("rankhouse_embedding_lookups_total") == 3)
    counters = samples(triton, version)
    # Two features of the rows look into the table of cities: one id in each bag of a single value.
    assert counters["rankhouse_embedding_ids_total city"] == 3 * 2 * len(ROWS)
    assert counters["rankhouse_embedding_ids_total tag"] == 3 * 3
    assert counters["rankhouse_embedding_lookup_seconds_count"] == 3
    assert counters["rankhouse_embedding_version_age_seconds"] > 0
    asyncio.run(unload())
    wait_for(lambda: not samples(triton, version))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"num_thread": "2"}, r"num_thread.*num_threads"),
        (
            {"device": "1000"},
            r"'device' is 1000, but (this library was built without CUDA|CUDA finds no GPU|this machine has)",
        ),
    ],
)
def test_an_engine_option_that_has_no_use_here_is_named(
    version: Version, tmp_path: Path, option: dict[str, str], message: str
) -> None:
    with TritonServer(tmp_path / "models", run_dir=tmp_path, engine_options=option) as server:

        async def load() -> None:
            async with TritonClient(server.grpc_url) as client:
                await client.load(write_models(version, repository=server.repository))

        with pytest.raises(ModelLoadError, match=message):
            asyncio.run(load())
