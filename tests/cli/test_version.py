from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankhouse.cli.main import app
from rankhouse.embedding_cache.format.errors import VersionNotFoundError
from rankhouse.embedding_cache.format.shared_files import shared_path
from rankhouse.embedding_cache.format.version import VersionStore
from tests.embedding_cache.format.small_store import small_content


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
    header, *lines = run("list", store.path).splitlines()
    assert header.split() == ["version", "model", "created", "(UTC)", "rows", "size", "AUC"]
    assert [line.split()[0] for line in lines] == store.names()
    assert lines[0].split()[1::4] == ["dlrm", "8.5"]  # name, model, date, time, rows, size, unit, AUC


def test_show_gives_tables_and_features(store: VersionStore) -> None:
    output = run("show", store.path, store.names()[0])
    for text in (store.names()[0], "auc 0.75", "dense [B, 2], embeddings [B, 8]", "C1 (sum), clicked (mean)"):
        assert text in output
    assert store.names()[1] in run("show", store.path)


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


def test_gc_says_what_would_go_and_removes_it(store: VersionStore) -> None:
    first, second = store.names()
    planned = run("gc", store.path, "--keep", 1, "--dry-run").splitlines()
    assert store.names() == [first, second]
    assert planned[0].split() == ["would", "go", "what", "it", "is", "size"]
    assert [line.split()[0] for line in planned[1:-1]] == [f"versions/{first}", planned[2].split()[0]]
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


@pytest.mark.parametrize("arguments", [["list"], ["show"], ["verify"], ["gc", "--keep", 1]])
def test_refuses_what_is_no_store(arguments: list[object], tmp_path: Path) -> None:
    with pytest.raises(VersionNotFoundError, match="there is no such version store"):
        run(*arguments, tmp_path / "nowhere")
