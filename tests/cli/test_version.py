from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankhouse.cli.main import app
from rankhouse.embedding_cache.format.errors import VersionNotFoundError
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


def test_verify_reads_every_file(store: VersionStore) -> None:
    assert [line.split(":")[0] for line in run("verify", store.path).splitlines()] == store.names()
    segment = store.open(store.names()[0]).tables[0].segments[0].path(store.path)
    segment.write_bytes(bytes(segment.stat().st_size))
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["version", "verify", str(store.path)])
    assert result.exit_code == 1
    damaged, sound = result.output.splitlines()
    assert damaged.startswith(f"{store.names()[0]}: damaged")
    assert segment.name in damaged
    assert sound.startswith(f"{store.names()[1]}: sound")
    assert "sound" in run("verify", store.path, "latest")


@pytest.mark.parametrize("verb", ["list", "show", "verify"])
def test_refuses_what_is_no_store(verb: str, tmp_path: Path) -> None:
    with pytest.raises(VersionNotFoundError, match="there is no such version store"):
        run(verb, tmp_path / "nowhere")
