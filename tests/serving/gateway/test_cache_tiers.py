import asyncio
import time
from pathlib import Path

import httpx
import pytest

from rankhouse.serving.admin.keys import read_key_file, write_key_file
from rankhouse.serving.gateway.cache_tiers import CacheTiers, parse
from rankhouse.serving.gateway.messages import ScoreRequest
from rankhouse.serving.gateway_client import RestClient
from rankhouse.serving.triton_server import TritonServer
from tests.serving.gateway.rolling import TwoVersions
from tests.serving.gateway.running import RunningGateway
from tests.serving.small_version import MODEL, ROWS

TEXT = """# TYPE rankhouse_embedding_hits_total counter
rankhouse_embedding_hits_total{model="a",version="000001-x",table="C1",tier="memory"} 7
rankhouse_embedding_hits_total{model="a",version="000001-x",table="C \\"2\\"",tier="memory"} 5
rankhouse_embedding_hits_total{model="a",version="000001-x",table="C1",tier="redis"} 2
rankhouse_embedding_hits_total{model="b",version="000001-x",table="C1",tier="memory"} 100
rankhouse_embedding_unknown_ids_total{model="a",version="000001-x",table="C1"} 4
rankhouse_embedding_without_row_total{model="a",version="000001-x",table="C1"} 3
rankhouse_embedding_degraded_total{model="a",version="000002-y",table="C1"} 1
nv_inference_count{model="a",version="1"} 12
"""


def test_counters_are_summed_over_tables_for_one_model() -> None:
    assert parse(TEXT, "a") == {"000001-x": {"memory": 12, "redis": 2, "unknown": 3}, "000002-y": {"degraded": 1}}
    assert parse(TEXT, "c") == {}


def test_a_counter_that_is_no_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="many"):
        parse('rankhouse_embedding_hits_total{model="a",version="v",tier="memory"} many', "a")


def test_a_triton_that_does_not_answer_is_told_once_and_counts_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def look() -> None:
        tiers = CacheTiers("http://127.0.0.1:9/metrics", "a")
        running = asyncio.create_task(tiers.run())
        deadline = time.monotonic() + 300
        while not caplog.records and time.monotonic() < deadline:
            await asyncio.sleep(0.02)
        assert tiers.counts == {}
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(look())
    assert [each.message.split(":")[0] for each in caplog.records if "cannot be read" in each.message] == [
        "the metrics of Triton at http"
    ]


@pytest.mark.triton
def test_a_replica_reports_where_rows_were(versions: TwoVersions, triton: TritonServer, tmp_path: Path) -> None:
    key_file = tmp_path / "admin.key"
    write_key_file(key_file)
    settings = {
        "state_url": f"sqlite:///{tmp_path}/state.db",
        "admin_port": 0,
        "admin_key_file": key_file,
        "version": versions.stable.name,
        "triton_metrics_url": triton.metrics_url,
    }
    with RunningGateway(versions.store, triton.grpc_url, **settings) as gateway:
        with RestClient(gateway.url, timeout_seconds=60.0) as client:
            client.score(MODEL, ScoreRequest(list(ROWS), key="ann"))
        headers = {"authorization": f"Bearer {read_key_file(key_file)}"}
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            overview = httpx.get(f"{gateway.admin_url}/admin/v1/overview", headers=headers, timeout=60).json()
            tiers = overview["replicas"][0]["details"].get("tiers", {}).get(versions.stable.name, {})
            if tiers.get("memory"):
                break
            time.sleep(0.1)
        assert tiers["memory"] > 0
