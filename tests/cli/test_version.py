import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankhouse.cli.main import app
from rankhouse.embedding_cache.format.errors import CorruptFileError, VersionNotFoundError
from rankhouse.embedding_cache.format.shared_files import shared_path
from rankhouse.embedding_cache.format.version import VersionStore
from tests.embedding_cache.format.small_store import small_content
from tests.embedding_cache.maintenance.chain import write_chain, write_whole


@pytest.fixture
def store(tmp_path: Path) -> VersionStore:
    store = VersionStore(tmp_path / "store")
    for first in (0, 100):
        store.write(small_content(tmp_path / "parts", first=first))
    return store


def run(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["version", *map(str, arguments)])
    if result.exception:
        raise result.exception
    return result.output


def test_list_names_each_version(store: VersionStore) -> None:
    title, header, *lines = run("list", store.path).splitlines()
    assert title == "dlrm: 2 versions"
    assert " ".join(header.split()) == "version made by created (UTC) rows adds rows adds AUC"
    assert [line.split()[0] for line in lines] == store.names()
    # version, made by, date, time, rows, adds rows, adds, unit, AUC
    assert lines[0].split()[1::2] == ["export", lines[0].split()[3], "+16", "KiB"]
    assert lines[0].split()[8] == "0.75000"
    assert lines[1].split()[5] == "+11"  # C2 is the first version's.


def test_list_draws_the_chains_of_each_model(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "store")
    first, second, third = (version.name for version in write_chain(store, tmp_path / "parts"))
    write_whole(store, tmp_path / "parts", model="other")
    for arguments in (["compact", store.path, "--model", "dlrm"], ["rollback", store.path, second]):
        run(*arguments)
    other, folded, back = store.names()[3:]
    lines = [line.split("  ")[:2] for line in run("list", store.path).splitlines()]
    assert [" ".join(line).strip() for line in lines] == [
        "dlrm: 5 versions",
        "version",
        f"\u250c {first} export",
        f"\u251c {second} delta",
        f"\u2514 {third} delta",
        f"{folded}",
        f"{back}",
        "other: 1 version",
        "version",
        f"{other}",
    ]
    assert all(len(line.rstrip()) <= 100 for line in run("list", store.path).splitlines())


def test_list_goes_on_after_a_version_that_cannot_be_read(store: VersionStore) -> None:
    (store.path / "versions" / store.names()[0] / "manifest.json").write_text("{}")
    *lines, fault = run("list", store.path).splitlines()
    assert lines[0] == "dlrm: 1 version"
    assert fault.startswith(f"{store.names()[0]}: {store.path}")
    assert "expected the format" in fault


def test_show_gives_tables_and_features(store: VersionStore) -> None:
    output = run("show", store.path, store.names()[0])
    for text in (store.names()[0], "auc 0.75", "dense [B, 2], embeddings [B, 8]", "C1 (sum), clicked (mean)"):
        assert text in output
    assert store.names()[1] in run("show", store.path)


def test_show_draws_the_chain_that_a_version_ends(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "store")
    first, second, third = (version.name for version in write_chain(store, tmp_path / "parts"))
    output = run("show", store.path)
    for text in (f"\u250c {first}", f"\u251c {second}", f"\u2514 {third}", "made by delta of 000002", "2: +5 -3"):
        assert text in output
    run("gc", store.path, "--keep", 2)
    assert f"{first}  was collected" in run("show", store.path)


def test_compact_says_what_it_folded(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "store")
    last = write_chain(store, tmp_path / "parts")[-1]
    output = run("compact", store.path)
    assert output.startswith(f"{store.names()[-1]} of dlrm: 3 deltas of {last.name} folded, ")
    assert run("compact", store.path) == f"{store.names()[-1]} has no deltas: there is nothing to fold\n"


def test_rollback_says_what_is_the_latest(store: VersionStore) -> None:
    first, second = store.names()
    output = run("rollback", store.path, first)
    assert output == f"{store.names()[-1]} of dlrm has the content of {first} and is the latest now\n"
    assert len(store.names()) == 3
    segment = shared_path(store.path, store.open(second).tables[0].segments[0].sha256)
    segment.write_bytes(bytes(segment.stat().st_size))
    with pytest.raises(CorruptFileError, match=segment.name):
        run("rollback", store.path, second)
    assert len(store.names()) == 3


def test_diff_tells_what_changed(tmp_path: Path) -> None:
    store = VersionStore(tmp_path / "store")
    first, _, third = (version.name for version in write_chain(store, tmp_path / "parts"))
    output = run("diff", store.path, first)
    assert output.splitlines()[0] == f"{first} -> {third}"
    assert ["C1", "11", "->", "14", "2", "2", "1", "193", "144", "8"] in [line.split() for line in output.splitlines()]
    assert "dense part: changed" in output
    assert run("diff", store.path, third).splitlines() == [
        *(f"{third} -> {third}", "2 tables without a change", "dense part: same", "metrics: same")
    ]
    assert "metrics: auc 0.75 -> None" in output
    document = json.loads(run("diff", store.path, first, third, "--json"))
    assert document["tables"][0]["num_changed"] == 2
    assert document["metrics"] == {"auc": [0.75, None]}


def test_verify_reads_every_file_and_goes_on_after_damage(store: VersionStore) -> None:
    *lines, summary = run("verify", store.path).splitlines()
    assert [line.split(":")[0] for line in lines] == store.names()
    assert summary.startswith("2 versions read in")
    segment = shared_path(store.path, store.open(store.names()[0]).tables[0].segments[0].sha256)
    segment.write_bytes(bytes(segment.stat().st_size))
    result = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["version", "verify", str(store.path)])
    assert result.exit_code == 1
    first, second, damage, _ = result.output.splitlines()
    assert first == f"{store.names()[0]}: damaged"
    assert second.startswith(f"{store.names()[1]}: sound")
    assert damage.startswith(f"damaged: {segment}: its content was altered")
    assert damage.endswith(f"(needed by {store.names()[0]})")
    assert "sound" in run("verify", store.path, "latest")


def test_verify_says_how_to_go_back_to_the_newest_sound_version(store: VersionStore) -> None:
    first, second = store.names()
    (store.path / "versions" / second / "golden.json").unlink()
    for arguments in ([], ["latest"]):
        result = CliRunner(env={"COLUMNS": "100"}).invoke(app, ["version", "verify", str(store.path), *arguments])
        assert result.exit_code == 1
        assert "golden.json: is missing; restore the file" in result.output
        assert (f"rankhouse version rollback {store.path} {first}" in result.output) == (arguments == [])


def test_gc_says_what_would_go_and_removes_it(store: VersionStore) -> None:
    first, second = store.names()
    planned = run("gc", store.path, "--keep", 1, "--dry-run").splitlines()
    assert store.names() == [first, second]
    assert planned[0].split() == ["path", "what", "it", "is", "size"]
    assert planned[1].split()[:4] == [f"versions/{first}", "version", "of", "dlrm"]
    assert planned[2].split()[:-2] == ["segments", "1", "file", "that", "no", "version", "names"]
    assert planned[-1].startswith("would go: 1 version and 1 file, ")
    assert planned[-1].endswith("; 1 of the store's versions stay")
    done = run("gc", store.path, "--keep", 1).splitlines()
    assert done[1:-1] == planned[1:-1]
    assert done[-1] == planned[-1].replace("would go", "removed")
    assert store.names() == [second]
    assert (
        run("gc", store.path, "--keep", 1) == "removed: 0 versions and 0 files, 0 B; 1 of the store's versions stay\n"
    )


def test_gc_needs_a_number_of_versions_to_keep(store: VersionStore) -> None:
    for arguments in ([], ["--keep", "0"]):
        result = CliRunner().invoke(app, ["version", "gc", str(store.path), *arguments])
        assert result.exit_code == 2
        assert "--keep" in result.output
    assert len(store.names()) == 2


@pytest.mark.parametrize("arguments", [["list"], ["show"], ["verify"], ["gc", "--keep", 1], ["compact"]])
def test_refuses_what_is_no_store(arguments: list[object], tmp_path: Path) -> None:
    with pytest.raises(VersionNotFoundError, match="there is no such version store"):
        run(*arguments, tmp_path / "nowhere")


def test_a_bucket_is_a_store(rclone_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANKHOUSE_CACHE", str(tmp_path / "mirrors"))
    store = VersionStore(rclone_url, cache=tmp_path / "writer")
    first, second = (store.write(small_content(tmp_path / "parts", first=first)) for first in (0, 100))
    listed = run("list", rclone_url)
    assert listed.index(first.name) < listed.index(second.name)
    assert second.name in run("show", rclone_url)
    assert not list((tmp_path / "mirrors").rglob("*.safetensors")), "manifests are enough for that"
    assert f"{second.name}: sound" in run("verify", rclone_url)
    planned = run("gc", rclone_url, "--keep", 1, "--grace-hours", 0, "--dry-run").splitlines()
    assert planned[1].split()[0] == f"versions/{first.name}"
    assert [line.split()[0].split("/")[0] for line in planned[2:-1]] == ["segments"]
    assert store.names() == [first.name, second.name]
    assert run("gc", rclone_url, "--keep", 1, "--grace-hours", 0).splitlines()[1:-1] == planned[1:-1]
    assert store.names() == [second.name]
    assert VersionStore(rclone_url, cache=tmp_path / "reader").open().name == second.name
