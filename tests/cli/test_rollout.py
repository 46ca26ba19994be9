"""`rankhouse rollout` against an admin port on a real socket, over a real state store."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from rankhouse.cli import rollout as commands
from rankhouse.cli.main import app
from rankhouse.serving.control.state_store import StateStore
from rankhouse.serving.control.state_stores import open_state_store
from rankhouse.serving.errors import AdminCallError, KeyFileError, RolloutSpecError
from tests.serving.admin.conducting import conducting
from tests.serving.admin.world import V1, V2, V3, RunningAdmin, has_stable, publish, reports

SPEC = """
candidate: 000002-bbbbbbbb
steps: [{weight: 5, analysis: {max: 1h}}, {weight: 50, pause: manual}, {weight: 100}]
analysis: {min_requests: 100, metrics: [{name: error_rate, max_increase: 0.02}, {name: latency_p99, max_ratio: 2}]}
"""
POLICY = "{admit: rollout, rollout: {steps: [{weight: 5, pause: 10m}, {weight: 100}]}}"


@pytest.fixture
def state(tmp_path: Path) -> Iterator[StateStore]:
    opened = open_state_store(f"sqlite://{tmp_path}/state.db", timeout_seconds=60.0)
    has_stable(opened, previous=("000000-00000000",))
    reports(opened)
    yield opened
    opened.close()


@pytest.fixture
def admin(state: StateStore, tmp_path: Path) -> Iterator[RunningAdmin]:
    with RunningAdmin(state, tmp_path) as running:
        yield running


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "rollout.yaml"
    path.write_text(SPEC)
    return path


def run(admin: RunningAdmin, *arguments: object) -> Result:
    options = ["--url", admin.url, "--key-file", str(admin.key_file)]
    return CliRunner().invoke(app, ["rollout", *options, *map(str, arguments)], terminal_width=200)


def ok(admin: RunningAdmin, *arguments: object) -> str:
    result = run(admin, *arguments)
    assert result.exit_code == 0, f"{arguments}: {result.output} {result.exception}"
    return result.output


def test_start_says_what_will_happen_and_does_it(admin: RunningAdmin, spec: Path) -> None:
    assert "promoted" in ok(admin, "start", spec, "--dry-run")
    assert "no rollout yet" in ok(admin, "list")
    output = ok(admin, "start", spec, "-m", "new features")
    assert "begins when all replicas have loaded it" in output
    assert re.search(r"1\s+5 %\s+when its analysis passes, which has 1 h", output)
    assert "a failure rolls back; without an outcome it pauses" in output
    assert "r000001 is pending" in output
    assert re.search(r"r000001\s+pending\s+000002-bbbbbbbb\s+1/3\s+0 %.*first-key\s+new features", ok(admin, "list"))


def test_a_wrong_file_is_refused_before_anything_is_sent(admin: RunningAdmin, tmp_path: Path) -> None:
    path = tmp_path / "wrong.yaml"
    for text, message in (
        ("candidate: latest\nstep: []", "did you mean steps"),
        ("- a", "expected keys and values"),
        ("{", "not YAML"),
    ):
        path.write_text(text)
        result = run(admin, "start", path)
        assert isinstance(result.exception, RolloutSpecError)
        assert message in str(result.exception)
    assert "no rollout yet" in ok(admin, "list")


def test_show_has_steps_and_the_verdict_with_its_interval(admin: RunningAdmin, spec: Path, state: StateStore) -> None:
    ok(admin, "start", spec)
    with conducting(state) as conduct:
        conduct(1e9)
        publish(state, "r000001", stable=500, candidate=80, failures=1)
        conduct(1e9 + 1)
    output = ok(admin, "show")
    assert "r000001 is progressing: 000002-bbbbbbbb 5 %" in output
    assert re.search(r"now\s+1\s+5 %", output)
    assert "000002-bbbbbbbb against stable: running" in output
    assert re.search(r"error_rate\s+0\s+0\.0125\s+difference 0\.0125\s+\S+ … \S+\s+≤ 0\.02\s+80", output)
    verdict = json.loads(ok(admin, "verdict"))
    assert (verdict["ok"], verdict["outcome"], verdict["metrics"]["error_rate"]["n"]) == (True, "running", 80)


def test_a_rolled_back_rollout_fails_watch_and_verdict(admin: RunningAdmin, spec: Path) -> None:
    ok(admin, "start", spec)
    options = ["--url", admin.url, "--key-file", str(admin.key_file), "watch", "--every", "0.1"]
    command = [sys.executable, "-m", "rankhouse.cli.main", "rollout", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        lines = [watch.stdout.readline()]
        ok(admin, "abort", "-m", "no good")  # Not before the state that `watch` begins with is seen.
        lines += watch.stdout.readlines()
    assert watch.returncode == 1
    assert [line.rstrip("\n").split(" ", 2)[2] for line in lines] == [
        "r000001 pending, step 1 of 3: 000002-bbbbbbbb 0 %",
        "r000001 rolled_back, step 1 of 3: 000002-bbbbbbbb 0 %",
    ]
    assert run(admin, "verdict").exit_code == 1


def test_a_promoted_rollout_ends_watch_well(admin: RunningAdmin, spec: Path, state: StateStore) -> None:
    ok(admin, "start", spec)
    with conducting(state) as conduct:
        conduct(1e9)
    assert "step 1 of 3" not in ok(admin, "pause")
    ok(admin, "resume")
    assert "is paused (step)" in ok(admin, "skip")
    assert "10 %" in ok(admin, "weight", 60).replace("60 %", "10 %")
    assert "is promoted" in ok(admin, "promote", "r000001", "-m", "good")
    assert "promoted" in ok(admin, "watch")
    assert f"stable: {V2}" in ok(admin, "refresh")
    assert f"stable: {V1}" in ok(admin, "rollback", V1, "-m", "not so good")
    assert re.search(r"first-key\s+reverted.*not so good", ok(admin, "history"))


def test_versions_replicas_and_the_policy(admin: RunningAdmin, tmp_path: Path, state: StateStore) -> None:
    assert re.search(rf"{V2}\s+loaded", ok(admin, "versions"))
    assert f"quarantined: {V3}: bad day" in ok(admin, "quarantine", V3, "-m", "bad day")
    assert "bad day" not in ok(admin, "release", V3)
    assert f"stable: {V2}" in ok(admin, "admit", V2)
    assert re.search(r"one\s+\d+\.\d s ago", ok(admin, "replicas"))
    assert "direct (held)" in ok(admin, "refresh", "--hold")
    assert "held" not in ok(admin, "refresh", "--resume")
    (tmp_path / "policy.yaml").write_text(POLICY)
    assert "refresh: rollout" in ok(admin, "refresh", "--policy", tmp_path / "policy.yaml")
    ok(admin, "refresh", "--now")
    assert admin.replica.num_looks == 1
    assert "holdout: 2 %" in ok(admin, "holdout", 2)
    assert "one is draining" in ok(admin, "drain")
    assert "ready again" in ok(admin, "undrain")
    assert f"small: stable is {V2}" in ok(admin, "status")


def test_keys_are_added_used_and_revoked(admin: RunningAdmin, tmp_path: Path) -> None:
    key = ok(admin, "keys", "add", "vic").splitlines()[0]
    path = tmp_path / "vic.key"
    path.touch(0o600)
    path.write_text(key)
    as_vic = ["rollout", "--url", admin.url, "--key-file", str(path)]
    assert CliRunner().invoke(app, [*as_vic, "list"]).exit_code == 0
    refused = CliRunner().invoke(app, [*as_vic, "drain"])
    assert "role" in str(refused.exception)
    assert re.search(r"vic\s+viewer", ok(admin, "keys", "list"))
    assert "vic" not in ok(admin, "keys", "revoke", "vic")
    path.chmod(0o644)
    assert isinstance(CliRunner().invoke(app, [*as_vic, "list"]).exception, KeyFileError)


def test_json_is_what_the_api_answers(admin: RunningAdmin) -> None:
    options = ["rollout", "--url", admin.url, "--key-file", str(admin.key_file), "--json"]
    result = CliRunner().invoke(app, [*options, "status"])
    assert json.loads(result.stdout)["stable"] == V1
    assert json.loads(CliRunner().invoke(app, [*options, "versions"]).stdout)[0]["name"] == V2


def test_a_refusal_is_quoted(admin: RunningAdmin) -> None:
    result = run(admin, "pause", "r000009")
    assert isinstance(result.exception, AdminCallError)
    assert "No such rollout" in str(result.exception)


def test_the_api_is_found_by_the_environment_or_what_serves_here(
    admin: RunningAdmin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    list_them = ["rollout", "list"]
    assert "no `rankhouse serve` runs here" in str(CliRunner().invoke(app, list_them).exception)
    for name in ("rankhouse-serve-a", "rankhouse-serve-b"):
        (tmp_path / name).mkdir()
        document = {"admin_url": admin.url, "admin_key_file": str(admin.key_file)}
        (tmp_path / name / "serving.json").write_text(json.dumps(document))
        if name == "rankhouse-serve-a":
            assert CliRunner().invoke(app, list_them).exit_code == 0
    assert "choose by --run-dir" in str(CliRunner().invoke(app, list_them).exception)
    by_folder = ["rollout", "--run-dir", str(tmp_path / "rankhouse-serve-b"), "list"]
    assert CliRunner().invoke(app, by_folder).exit_code == 0
    monkeypatch.setenv("RANKHOUSE_ADMIN_URL", admin.url)
    monkeypatch.setenv("RANKHOUSE_ADMIN_KEY_FILE", str(admin.key_file))
    assert CliRunner().invoke(app, list_them).exit_code == 0
    monkeypatch.setenv("RANKHOUSE_ADMIN_URL", "http://127.0.0.1:1")
    assert "no answer from an admin API" in str(CliRunner().invoke(app, list_them).exception)


def test_every_command_calls_what_the_document_has(
    admin: RunningAdmin, spec: Path, state: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []
    send = httpx.Client.request

    def recorded(self: httpx.Client, method: str, url: str, **options: object) -> httpx.Response:
        calls.append((method.lower(), url.partition("?")[0]))
        return send(self, method, url, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(httpx.Client, "request", recorded)
    (tmp_path / "policy.yaml").write_text(POLICY)
    text = (
        f"start {spec};list;show;pause;resume;skip;weight 5;verdict;promote;abort;watch;versions;quarantine {V3} -m x;"
        f"release {V3};admit {V2};rollback;refresh;refresh --hold;refresh --resume;refresh --now;"
        f"refresh --policy {tmp_path}/policy.yaml;holdout 1;drain;undrain;replicas;history;status;"
        "keys list;keys add ann;keys revoke ann"
    )
    lines = [line.split() for line in text.split(";")]
    for line in lines:
        run(admin, *line)
    names = {
        str(command.name or getattr(command.callback, "__name__", "")) for command in commands.app.registered_commands
    }
    assert names == {line[0] for line in lines} - {"keys"}
    monkeypatch.undo()
    document = httpx.get(f"{admin.url}/openapi.json", timeout=60.0).json()
    described = {
        (method, path): re.compile(re.sub(r"{\w+}", "[^/]+", path))
        for path, each in document["paths"].items()
        for method in each
    }
    used = set()
    for method, path in calls:
        found = [each for each, pattern in described.items() if each[0] == method and pattern.fullmatch(path)]
        assert len(found) == 1, f"{method} {path}: {found}"
        used.add(found[0])
    # The rest is for other tools and programs.
    unused = {path.rsplit("/", 1)[-1] for _, path in described.keys() - used}
    assert unused == {"models", "{version}", "{gate}", "query", "webhooks", "whoami", "check"}


def test_the_help_is_there_without_the_packages_of_serving() -> None:
    lines = [
        "import sys",
        "from rankhouse.cli.main import app",
        "sys.argv = ['rankhouse', 'rollout', '--help']",
        "app(standalone_mode=False)",
        "assert not {'fastapi', 'httpx', 'msgspec'} & set(sys.modules)",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "quarantine" in done.stdout
