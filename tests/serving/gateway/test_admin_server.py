"""A rollout from its file to the last user, through the gateway's own admin port and conductor."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from rankhouse.serving.admin.keys import read_key_file, write_key_file
from rankhouse.serving.errors import AddressError, KeyFileError, SettingsError
from rankhouse.serving.gateway.messages import ScoreRequest
from rankhouse.serving.gateway_client import RestClient
from rankhouse.serving.triton_server import TritonServer
from tests.serving.gateway.rolling import TwoVersions, eventually
from tests.serving.gateway.running import RunningGateway
from tests.serving.small_version import MODEL, ROWS


def settings_in(folder: Path, versions: TwoVersions, **more: Any) -> dict[str, Any]:
    settings = {"state_url": f"sqlite:///{folder}/state.db", "admin_port": 0, "version": versions.stable.name}
    return settings | more


@pytest.fixture
def gateway(versions: TwoVersions, triton: TritonServer, tmp_path: Path) -> Iterator[RunningGateway]:
    write_key_file(tmp_path / "admin.key")
    settings = settings_in(tmp_path, versions, admin_key_file=tmp_path / "admin.key")
    with RunningGateway(versions.store, triton.grpc_url, **settings) as running:
        yield running


@pytest.fixture
def admin(gateway: RunningGateway, tmp_path: Path) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {read_key_file(tmp_path / 'admin.key')}"}
    with httpx.Client(base_url=f"{gateway.admin_url}/admin/v1", headers=headers, timeout=60.0) as client:
        yield client


def answering(gateway: RunningGateway) -> set[str]:
    """The versions that answer some keys."""
    with RestClient(gateway.url, timeout_seconds=60.0) as client:
        return {client.score(MODEL, ScoreRequest(list(ROWS), key=str(key))).version for key in range(40)}


def test_a_rollout_moves_users_step_by_step_and_can_be_taken_back(
    gateway: RunningGateway, admin: httpx.Client, versions: TwoVersions
) -> None:
    stable, candidate = versions.stable.name, versions.candidate.name
    steps = [{"weight": 50, "pause": "manual"}, {"weight": 100}]
    started = admin.post("/rollouts", json={"spec": {"candidate": candidate, "steps": steps}, "reason": "a test"})
    assert started.is_success, started.text
    eventually(lambda: answering(gateway) == {stable, candidate})
    assert admin.post(f"/rollouts/{started.json()['id']}/promote", json={}).is_success
    eventually(lambda: answering(gateway) == {candidate})
    assert admin.post("/rollback", json={"version": stable}).is_success
    eventually(lambda: answering(gateway) == {stable})
    kinds = [event["kind"] for event in admin.get("/history").json()]
    assert {"started", "promoted"} <= set(kinds)


def test_a_replica_drains_and_returns(gateway: RunningGateway, admin: httpx.Client) -> None:
    assert admin.post("/drain", json={}).json()["is_draining"]
    assert httpx.get(f"{gateway.url}/readyz", timeout=60.0).status_code == 503
    eventually(lambda: [replica["is_draining"] for replica in admin.get("/replicas").json()] == [True])
    assert len(answering(gateway)) == 1  # What still comes is answered.
    admin.post("/undrain", json={})
    assert httpx.get(f"{gateway.url}/readyz", timeout=60.0).status_code == 200
    assert admin.post("/refresh/now", json={}).is_success


def test_the_admin_port_wants_a_key_and_the_other_port_has_no_admin(gateway: RunningGateway) -> None:
    assert httpx.get(f"{gateway.admin_url}/admin/v1/overview", timeout=60.0).status_code == 401
    assert httpx.get(f"{gateway.url}/admin/v1/overview", timeout=60.0).status_code == 404


def test_the_admin_port_has_the_operations_page(gateway: RunningGateway) -> None:
    page = httpx.get(gateway.admin_url, timeout=60.0)
    assert "<title>Rankhouse operations</title>" in page.text
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert httpx.get(f"{gateway.url}/page/main.js", timeout=60.0).status_code == 404


def test_a_key_that_others_can_read_is_refused(versions: TwoVersions, triton: TritonServer, tmp_path: Path) -> None:
    write_key_file(tmp_path / "admin.key")
    (tmp_path / "admin.key").chmod(0o644)
    settings = settings_in(tmp_path, versions, admin_key_file=tmp_path / "admin.key")
    with (
        pytest.raises(KeyFileError, match="others can use it"),
        RunningGateway(versions.store, triton.grpc_url, **settings),
    ):
        pass


def test_a_secret_that_is_not_there_is_refused(versions: TwoVersions, triton: TritonServer, tmp_path: Path) -> None:
    settings = settings_in(tmp_path, versions, webhook_secret_file=tmp_path / "secret")
    with (
        pytest.raises(SettingsError, match=r"RANKHOUSE_WEBHOOK_SECRET_FILE=.* cannot be read"),
        RunningGateway(versions.store, triton.grpc_url, **settings),
    ):
        pass


def test_a_taken_admin_port_is_an_error(
    gateway: RunningGateway, versions: TwoVersions, triton: TritonServer, tmp_path: Path
) -> None:
    taken = int(gateway.admin_url.rsplit(":", 1)[1])
    with (
        pytest.raises(AddressError, match=r"the admin API cannot listen .* set RANKHOUSE_ADMIN_PORT"),
        RunningGateway(versions.store, triton.grpc_url, **settings_in(tmp_path, versions, admin_port=taken)),
    ):
        pass
