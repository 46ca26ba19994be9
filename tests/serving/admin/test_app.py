"""The admin port, from the socket to the state store and back."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from rankhouse.serving.admin.operations import OPERATIONS
from rankhouse.serving.control.state_store import StateStore
from tests.serving.admin.world import MODEL, SPEC, V1, V2, V3, RunningAdmin, has_stable, publish, reports


def problem(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json", response.text
    answer = response.json()
    assert answer["status"] == response.status_code
    return response.status_code, answer["type"].removeprefix("urn:rankhouse:problem:")


def started(client: httpx.Client, **spec: Any) -> dict[str, Any]:
    response = client.post("/rollouts", json={"spec": SPEC | spec, "reason": "try it"})
    assert response.status_code == 200, response.text
    rollout: dict[str, Any] = response.json()
    return rollout


def test_a_rollout_starts_and_is_recorded_with_the_key_name(client: httpx.Client) -> None:
    rollout = started(client)
    assert (rollout["status"], rollout["created_by"], rollout["reason"]) == ("pending", "first-key", "try it")
    assert rollout["spec"]["steps"][0] == {"weight": 5.0, "pause": 600.0}
    event = client.get("/history").json()[0]
    assert (event["kind"], event["actor"], event["rollout"], event["reason"]) == (
        "started",
        "first-key",
        rollout["id"],
        "try it",
    )


def test_the_same_rollout_sent_twice_is_one(client: httpx.Client) -> None:
    assert started(client)["id"] == started(client)["id"]
    assert [each["kind"] for each in client.get("/history").json()] == ["started"]
    assert len(client.get("/rollouts").json()) == 1


def test_a_check_says_what_a_start_would_do_and_does_nothing(client: httpx.Client, store: StateStore) -> None:
    reports(store, "two", loaded=(V1,))
    text = "candidate: latest\nsteps: [{weight: 5, pause: 10m}, {weight: 100}]\nshadow: 10\nholdout: 1\n"
    plan = client.post("/rollouts/check", json={"yaml": text}).json()
    assert plan["spec"]["candidate"] == V2
    assert plan["effects"] == [
        f"It waits until two has loaded {V2}.",
        f"Step 1: 5 % of the users get {V2}, for 10 min.",
        f"Step 2: all users but the holdout get {V2}.",
        f"Then {V2} becomes the stable version in place of {V1}.",
        "Meanwhile the candidates score 10 % of the stable version's requests as well, unseen.",
        f"Until then 1 % of the users are held out: they keep {V1}.",
        "Nothing is analysed: only an operator can find that the candidate is worse.",
    ]
    assert client.get("/history").json() == []
    assert client.post("/rollouts", json={"spec": plan["spec"]}).json()["status"] == "pending"


@pytest.mark.parametrize(
    ("text", "status", "kind"),
    [
        ("candidate: [", 422, "rollout-spec"),
        (f"candidate: {V2}\nsteps: [{{wieght: 5}}]", 422, "rollout-spec"),
        ("a: &a [1, 2]\nb: [*a, *a]", 422, "rollout-spec"),
        ("[" * 5000, 422, "rollout-spec"),
        ("candidate: 2024-99-99", 422, "rollout-spec"),
        (f"candidate: {V1}\nsteps: [{{weight: 100}}]", 409, "admission"),
        ("x" * 70_000, 422, "invalid-field"),
    ],
)
def test_a_check_refuses_what_a_start_would_refuse(client: httpx.Client, text: str, status: int, kind: str) -> None:
    assert problem(client.post("/rollouts/check", json={"yaml": text})) == (status, kind)


def test_latest_is_the_newest_version_that_anybody_knows(client: httpx.Client) -> None:
    assert started(client, candidate="latest")["arms"][0]["version"] == V2


def test_commands_move_a_rollout_and_may_come_twice(client: httpx.Client) -> None:
    rollout = started(client)["id"]
    for command, status in (("pause", "paused"), ("resume", "pending"), ("abort", "rolled_back")):
        for _ in range(2):
            answer = client.post(f"/rollouts/{rollout}/{command}", json={"reason": "why not"})
            assert (answer.status_code, answer.json()["status"]) == (200, status), answer.text
    kinds = [each["kind"] for each in client.get("/history").json()]
    assert [kind for kind in kinds if kind != "policy_changed"] == ["rolled_back", "resumed", "paused", "started"]
    assert client.get("/rollouts/latest").json()["status"] == "rolled_back"


@pytest.mark.parametrize(
    ("command", "body"), [("promote", {}), ("skip", {}), ("weight", {"weight": 10}), ("resume", {})]
)
def test_commands_that_the_status_does_not_take_are_refused(
    client: httpx.Client, command: str, body: dict[str, Any]
) -> None:
    rollout = started(client)["id"]
    client.post(f"/rollouts/{rollout}/abort", json={})
    assert problem(client.post(f"/rollouts/{rollout}/{command}", json=body)) == (404, "no-such-rollout")


def test_a_pending_rollout_cannot_be_promoted(client: httpx.Client) -> None:
    response = client.post(f"/rollouts/{started(client)['id']}/promote", json={})
    assert problem(response) == (409, "transition")
    assert "pending" in response.json()["detail"]


def test_an_idempotency_key_gives_the_first_answer_again(client: httpx.Client) -> None:
    headers = {"idempotency-key": "mine"}
    first = client.post("/rollouts", json={"spec": SPEC}, headers=headers)
    client.post(f"/rollouts/{first.json()['id']}/abort", json={})
    again = client.post("/rollouts", json={"spec": SPEC}, headers=headers)
    assert (again.status_code, again.content) == (200, first.content)
    other = client.post("/rollouts", json={"spec": SPEC | {"candidate": V3}}, headers=headers)
    assert problem(other) == (422, "idempotency")
    assert problem(client.post("/rollouts", json={"spec": SPEC}, headers={"idempotency-key": ""})) == (
        422,
        "invalid-field",
    )


def test_versions_say_how_they_stand_on_each_replica(client: httpx.Client, store: StateStore) -> None:
    reports(store, "two", loaded=(V1,), preparing={V2: "loading"}, failed={V3: "its checksum is wrong"})
    started(client)
    versions = {each["name"]: each for each in client.get("/versions").json()}
    assert [versions[name]["role"] for name in (V1, V2, V3)] == ["stable", "candidate", "failed"]
    assert versions[V1]["weight"] == 100
    assert [(each["replica"], each["state"], each["detail"]) for each in versions[V2]["replicas"]] == [
        ("one", "loaded", ""),
        ("two", "preparing", "loading"),
    ]
    assert versions[V3]["reason"] == "its checksum is wrong"
    assert client.get(f"/versions/{V3}").json() == versions[V3]
    assert problem(client.get("/versions/000009-99999999")) == (404, "no-such-version")


def test_a_version_is_quarantined_with_a_reason_and_released(client: httpx.Client) -> None:
    assert problem(client.post(f"/versions/{V2}/quarantine", json={})) == (422, "invalid-field")
    for _ in range(2):
        answer = client.post(f"/versions/{V2}/quarantine", json={"reason": "bad data"}).json()
        assert answer["quarantined"] == {V2: "bad data"}
    assert problem(client.post("/rollouts", json={"spec": SPEC})) == (409, "admission")
    assert client.post(f"/versions/{V2}/release", json={}).json()["quarantined"] == {}
    assert problem(client.post(f"/versions/{V2}/release", json={})) == (409, "admission")


def test_an_operator_admits_what_all_replicas_have_and_goes_back(client: httpx.Client, store: StateStore) -> None:
    assert client.post(f"/versions/{V2}/admit", json={"reason": "now"}).json()["stable"] == V2
    answer = client.post("/rollback", json={"reason": "no"}).json()
    assert (answer["stable"], answer["policy"]["held"]) == (V1, True)
    assert problem(client.post("/rollback", json={})) == (409, "admission")
    assert problem(client.post("/rollback", json={"version": V3})) == (409, "admission")
    assert problem(client.post(f"/versions/{V2}/admit", json={})) == (409, "admission"), "it was rolled back"


def test_what_an_operator_admits_is_loaded_though_refresh_is_held(client: httpx.Client, store: StateStore) -> None:
    client.post("/refresh/hold", json={})
    for _ in range(2):
        answer = client.post(f"/versions/{V3}/admit", json={"reason": "now"}).json()
        assert (answer["stable"], len(answer["active_rollouts"])) == (V1, 1)
    (rollout,) = store.read(MODEL).state.rollouts
    assert (rollout.status, rollout.candidates, rollout.reason) == ("pending", (V3,), "now")
    assert problem(client.post("/versions/000004-dddddddd/admit", json={})) == (409, "admission")


def test_the_policy_of_refresh_changes_and_holds(client: httpx.Client) -> None:
    policy = {"admit": "rollout", "rollout": {"steps": [{"weight": 5, "pause": "1m"}, {"weight": 100}]}}
    assert client.post("/refresh/hold", json={"reason": "freeze"}).json()["policy"]["held"]
    answer = client.put("/refresh/policy", json={"policy": policy}).json()["policy"]
    assert (answer["admit"], answer["held"]) == ("rollout", True)
    assert not client.post("/refresh/resume", json={}).json()["policy"]["held"]
    assert client.get("/refresh").json()["policy"]["admit"] == "rollout"
    kept = client.put("/refresh/policy", json={"policy": policy | {"keep_loaded_bytes": 7}}).json()["policy"]
    assert client.put("/refresh/policy", json={"policy": policy}).json()["policy"] == kept
    refused = client.put("/refresh/policy", json={"policy": {"admti": "direct"}})
    assert problem(refused) == (422, "rollout-spec")
    assert "admit" in refused.json()["detail"]


def test_the_holdout_changes(client: httpx.Client) -> None:
    assert client.put("/holdout", json={"percent": 2}).json()["holdout_percent"] == 2
    assert problem(client.put("/holdout", json={"percent": 60})) == (422, "invalid-field")


def test_this_replica_drains_and_looks_now(client: httpx.Client, admin: RunningAdmin) -> None:
    assert client.post("/drain").json() == {"replica": "one", "is_draining": True}
    assert admin.replica.is_draining
    assert client.post("/undrain").json() == {"replica": "one", "is_draining": False}
    client.post("/refresh/now")
    assert admin.replica.num_looks == 1


def test_keys_are_made_shown_once_and_revoked(client: httpx.Client, admin: RunningAdmin) -> None:
    made = client.post("/keys", json={"name": "ann", "role": "operator"}).json()
    with admin.client(made["key"]) as ann:
        assert ann.get("/whoami").json() == {"name": "ann", "role": "operator"}
        assert started(ann)["created_by"] == "ann"
        assert problem(ann.get("/keys")) == (403, "forbidden")
        listed = client.get("/keys").text
        assert [each["name"] for each in json.loads(listed)] == ["first-key", "ann"]
        assert made["key"] not in listed
        assert problem(client.post("/keys", json={"name": "ann"})) == (409, "key-exists")
        assert client.delete("/keys/ann").status_code == 200
        assert problem(ann.get("/whoami")) == (401, "unauthenticated")
    assert problem(client.delete("/keys/ann")) == (404, "no-such-key")
    assert problem(client.post("/keys", json={"name": "eve", "role": "root"})) == (422, "invalid-field")


def test_a_viewer_reads_and_does_nothing_else(client: httpx.Client, admin: RunningAdmin) -> None:
    key = client.post("/keys", json={"name": "vic"}).json()["key"]
    with admin.client(key) as vic:
        for operation in OPERATIONS:
            path = operation.path.removeprefix("/admin/v1").format(version=V1, rollout="r1", gate="advance", key="vic")
            response = vic.request(operation.method, path)
            assert (response.status_code == 403) == (operation.role != "viewer"), f"{operation.method} {path}"


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer wrong", "Basic !!!", "Basic dXNlcjp3cm9uZw==", "Digest x"]
)
def test_without_a_valid_key_nothing_is_told(admin: RunningAdmin, header: str | None) -> None:
    with httpx.Client(base_url=admin.url, headers={} if header is None else {"authorization": header}) as stranger:
        for operation in OPERATIONS:
            response = stranger.request(operation.method, operation.path, headers={"content-length": "0"})
            assert response.status_code in (401, 429), operation.path
            assert MODEL not in response.text
        assert response.headers["www-authenticate" if response.status_code == 401 else "retry-after"]


def test_the_key_may_be_a_password(admin: RunningAdmin) -> None:
    response = httpx.get(f"{admin.url}/admin/v1/whoami", auth=("flagger", admin.key), timeout=60.0)
    assert response.json() == {"name": "first-key", "role": "admin"}


def test_wrong_keys_are_limited_and_not_logged(admin: RunningAdmin, caplog: pytest.LogCaptureFixture) -> None:
    with admin.client("rhk_wrong") as stranger, admin.client() as owner:
        statuses = [stranger.get("/whoami").status_code for _ in range(15)]
        assert statuses == [401] * 10 + [429] * 5
        assert owner.get("/whoami").status_code == 200
    assert "127.0.0.1" in caplog.text
    assert "rhk_wrong" not in caplog.text


@pytest.mark.parametrize(
    ("body", "status", "kind", "path"),
    [
        (b"{", 400, "malformed-body", ""),
        (b"\xff", 400, "malformed-body", ""),
        (b"[]", 422, "invalid-field", ""),
        (b"{}", 422, "invalid-field", "spec"),
        (b'{"spec": {}, "reson": "x"}', 422, "invalid-field", "reson"),
        (b'{"spec": {}, "reason": 1}', 422, "invalid-field", "reason"),
        (b'{"spec": {"steps": []}}', 422, "rollout-spec", ""),
        (b" " * ((1 << 20) + 1), 413, "body-too-large", ""),
    ],
)
def test_a_wrong_body_is_refused(client: httpx.Client, body: bytes, status: int, kind: str, path: str) -> None:
    response = client.post("/rollouts", content=body)
    assert problem(response) == (status, kind)
    assert response.json().get("path", "") == path


def test_a_reason_has_a_length(client: httpx.Client) -> None:
    response = client.post("/refresh/hold", json={"reason": "x" * 1001})
    assert (problem(response), response.json()["path"]) == ((422, "invalid-field"), "reason")


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "before=-1"])
def test_wrong_parameters_are_refused(client: httpx.Client, query: str) -> None:
    assert problem(client.get(f"/history?{query}")) == (422, "invalid-field")


def test_history_has_pages(client: httpx.Client) -> None:
    for percent in range(1, 8):
        client.put("/holdout", json={"percent": percent})
    first = client.get("/history?limit=3").json()
    second = client.get(f"/history?limit=3&before={first[-1]['number']}").json()
    assert [each["number"] for each in (*first, *second)] == [7, 6, 5, 4, 3, 2]


def test_argo_and_flagger_can_read_the_verdict(client: httpx.Client) -> None:
    rollout = started(client)["id"]
    data = client.get(f"/rollouts/{rollout}/verdict").json()["data"]
    assert (data["ok"], data["done"], data["outcome"], data["rollout"]) == (True, False, "running", rollout)
    gates = {
        gate: client.post(f"/rollouts/latest/gates/{gate}", json={"name": "x"}) for gate in ("advance", "rollback")
    }
    assert gates["advance"].status_code == 200
    assert problem(gates["rollback"]) == (403, "gate-closed")
    assert problem(client.post("/rollouts/latest/gates/other", json={})) == (422, "invalid-field")
    client.post(f"/rollouts/{rollout}/abort", json={})
    assert client.get("/rollouts/latest/verdict").json()["data"]["ok"] is False
    assert client.post("/rollouts/latest/gates/rollback", json={}).status_code == 200
    for query, value in (("vector(1)", 1), ("failed", 1), ("done", 0)):
        sample = client.get("/rollouts/latest/api/v1/query", params={"query": query}).json()["data"]["result"][0]
        assert float(sample["value"][1]) == value
    assert problem(client.get("/rollouts/latest/api/v1/query?query=up")) == (422, "invalid-field")


def test_the_overview_has_everything_at_once(client: httpx.Client, store: StateStore) -> None:
    rollout = started(client)["id"]
    publish(store, rollout, stable=20, candidate=10, failures=1)
    reports(store, "two", loaded=(), details={"freshness": {"export_seconds": 3.5}})
    overview = client.get("/overview").json()
    assert (overview["model"], overview["stable"], overview["replicas"][0]["replica"]) == (MODEL, V1, "one")
    assert overview["rollouts"][0]["rollout"]["id"] == rollout
    assert overview["freshness"] == {"two": {"export_seconds": 3.5}}
    arms = {(each["version"], each["arm"]): each for each in overview["arms"]}
    assert (arms[V2, "candidate"]["num_answered"], arms[V2, "candidate"]["num_failed"]) == (9, 1)
    assert arms[V1, "stable"]["latency_p50"] == pytest.approx(0.002, rel=0.02)
    assert overview["events"][0]["kind"] == "started"
    assert overview["warnings"] == [f"replica two has not loaded the stable version {V1}"]


def test_a_model_without_a_state_is_a_problem(store: StateStore, tmp_path: Path) -> None:
    with RunningAdmin(store, tmp_path) as admin, admin.client() as client:
        assert problem(client.get("/overview")) == (503, "no-state")
        has_stable(store)
        assert client.get("/models").json()[0]["stable"] == V1


def test_a_page_is_served_where_there_is_one(store: StateStore, tmp_path: Path) -> None:
    page = tmp_path / "page"
    page.mkdir()
    (page / "index.html").write_text("<h1>rollouts</h1>")
    with RunningAdmin(store, tmp_path, page=page) as admin:
        assert "rollouts" in httpx.get(admin.url, timeout=60.0).text
        assert httpx.get(f"{admin.url}/admin/v1/models", timeout=60.0).status_code == 401


def test_the_page_of_the_interface_needs_no_internet(admin: RunningAdmin) -> None:
    page = httpx.get(f"{admin.url}/docs", timeout=60.0).text
    assert not re.search(r"https?://", page)
    for path in re.findall(r'(?:src|href)="([^"]+)"', page):
        assert httpx.get(admin.url + path, timeout=60.0).status_code == 200


def test_the_document_has_every_operation_with_its_errors(admin: RunningAdmin) -> None:
    document = httpx.get(f"{admin.url}/openapi.json", timeout=60.0).json()
    named = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(document)))
    assert {"Overview", "RolloutView", "StartRollout", "Problem"} <= named
    assert named <= set(document["components"]["schemas"])
    for operation in OPERATIONS:
        described = document["paths"][operation.path][operation.method.lower()]
        assert described["description"].startswith(str(operation.run.__doc__))
        assert {"200", "401", "403", "429", "431", "503"} <= set(described["responses"])
        parameters = {each["name"] for each in described.get("parameters", []) if each["in"] == "path"}
        assert parameters == set(re.findall(r"{(\w+)}", operation.path))
        assert ("requestBody" in described) == (operation.body is not None)
    identifiers = [each["operationId"] for path in document["paths"].values() for each in path.values()]
    assert len(identifiers) == len(set(identifiers))


def test_the_examples_of_the_document_are_understood(admin: RunningAdmin, client: httpx.Client) -> None:
    document = httpx.get(f"{admin.url}/openapi.json", timeout=60.0).json()
    started(client)
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
            values = {each["name"]: each.get("example") for each in operation.get("parameters", [])}
            response = client.request(method, path.removeprefix("/admin/v1").format(**values), json=body)
            assert response.status_code in (200, 403, 404, 409), f"{method} {path}: {response.text}"
