"""A replica and the state that it shares with others, above all when that is away."""

import sqlite3
import threading
from pathlib import Path

import httpx
import pytest

from rankhouse.serving.control.last_known_state import LastKnownState
from rankhouse.serving.control.state_store import Stored
from rankhouse.serving.triton_server import TritonServer
from tests.serving.gateway.rolling import TwoVersions, eventually, patient_store, put
from tests.serving.gateway.running import RunningGateway
from tests.serving.small_version import MODEL

ONE = {"candidates": [{}]}


def version_of(gateway: RunningGateway) -> str:
    return str(httpx.post(gateway.score_url, json=ONE, timeout=60.0).headers["x-rankhouse-version"])


def control_of(gateway: RunningGateway) -> str:
    answer = httpx.get(f"{gateway.url}/readyz", timeout=60.0)
    assert answer.status_code == 200
    return str(answer.json().get("control", ""))


def test_without_its_store_a_replica_serves_by_the_last_known_state_and_says_so(
    versions: TwoVersions, triton: TritonServer, tmp_path: Path
) -> None:
    folder, away = tmp_path / "state", tmp_path / "away"
    store = patient_store(f"sqlite:///{folder}/state.db")
    put(store, versions.state())
    store.close()
    settings = {"state_url": f"sqlite:///{folder}/state.db", "version": versions.candidate.name}
    with RunningGateway(versions.store, triton.grpc_url, **settings) as gateway:
        eventually(lambda: version_of(gateway) == versions.stable.name)
        folder.rename(away)
        eventually(lambda: control_of(gateway).startswith("stale since 20"))
        assert version_of(gateway) == versions.stable.name
        assert "rankhouse_control_stale 1.0" in httpx.get(f"{gateway.url}/metrics", timeout=60.0).text
        away.rename(folder)
        eventually(lambda: not control_of(gateway))
        assert "rankhouse_control_stale 0.0" in httpx.get(f"{gateway.url}/metrics", timeout=60.0).text
        store = patient_store(f"sqlite:///{folder}/state.db")
        put(store, versions.state(stable=versions.candidate))
        eventually(lambda: version_of(gateway) == versions.candidate.name)


def test_an_emptied_store_gets_back_the_last_known_state(
    versions: TwoVersions, triton: TritonServer, tmp_path: Path
) -> None:
    state = versions.rolling(weight=100.0)
    LastKnownState(tmp_path / "last.json").write(Stored(state, 17))
    url = f"sqlite:///{tmp_path}/state.db"
    settings = {"state_url": url, "state_file": tmp_path / "last.json", "version": versions.stable.name}
    with RunningGateway(versions.store, triton.grpc_url, **settings) as gateway:
        eventually(lambda: version_of(gateway) == versions.candidate.name)
        assert patient_store(url).read(MODEL).state == state


def test_what_was_known_last_serves_nobody_while_the_store_can_be_read(
    versions: TwoVersions, triton: TritonServer, tmp_path: Path
) -> None:
    LastKnownState(tmp_path / "last.json").write(Stored(versions.state(), 17))
    store = patient_store(f"sqlite:///{tmp_path}/state.db")
    put(store, versions.state(stable=versions.candidate))
    settings = {"state_url": f"sqlite:///{tmp_path}/state.db", "state_file": tmp_path / "last.json"}
    with RunningGateway(versions.store, triton.grpc_url, **settings, version=versions.stable.name) as gateway:
        assert version_of(gateway) == versions.candidate.name


def test_a_full_store_gets_the_first_state_when_there_is_room(
    versions: TwoVersions, triton: TritonServer, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    patient_store(url).close()
    full = sqlite3.connect(tmp_path / "state.db", isolation_level=None, check_same_thread=False)
    full.execute("BEGIN IMMEDIATE")  # Reads go on, and writes do not.
    room = threading.Timer(3.0, full.execute, ("ROLLBACK",))  # Longer than the store waits for a lock.
    room.start()
    settings = {"state_url": url, "version": versions.stable.name}
    with RunningGateway(versions.store, triton.grpc_url, **settings) as gateway:
        assert version_of(gateway) == versions.stable.name
    room.join()
    full.close()


def test_the_last_known_state_is_kept(versions: TwoVersions, triton: TritonServer, tmp_path: Path) -> None:
    file = tmp_path / "last.json"
    settings = {"state_url": f"sqlite:///{tmp_path}/state.db", "state_file": file, "version": versions.stable.name}
    with RunningGateway(versions.store, triton.grpc_url, **settings):
        eventually(file.exists)
    kept = LastKnownState(file).read(MODEL)
    assert kept
    assert kept.state.stable == versions.stable.name


def test_a_damaged_last_known_state_is_ignored_and_replaced(
    versions: TwoVersions, triton: TritonServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "last.json"
    file.write_text("{}")
    settings = {"state_url": f"sqlite:///{tmp_path}/state.db", "state_file": file, "version": versions.stable.name}
    with RunningGateway(versions.store, triton.grpc_url, **settings) as gateway:
        assert version_of(gateway) == versions.stable.name
        eventually(lambda: file.read_text() != "{}")
    assert "last.json cannot be read" in caplog.text
    assert LastKnownState(file).read(MODEL)
