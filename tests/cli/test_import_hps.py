from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from rankhouse.cli.main import app
from rankhouse.embedding_cache.errors import HpsError
from rankhouse.embedding_cache.format.version import VersionStore
from tests.embedding_cache.hps.hps_folder import ITEMS, USERS, model_entry, small_ps_json, write_ps_json
from tests.serving.small_version import write_dense_part


def run(path: Path, *arguments: object) -> Result:
    command = ["version", "import-hps", str(path), "--store", str(path.parent / "store"), *map(str, arguments)]
    return CliRunner(env={"COLUMNS": "240"}).invoke(app, command)


def test_it_says_what_it_found_and_what_it_wrote(tmp_path: Path) -> None:
    models = [
        model_entry(tmp_path, "shop", {"item": ITEMS, "user": USERS}),
        model_entry(tmp_path, "feed", {"item": ITEMS}),
    ]
    result = run(write_ps_json(tmp_path, *models, volatile_db={"type": "redis_cluster", "password": "hunter2"}))
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    heading = lines.index("no meaning: lookups are exact, the same request gives the same scores")
    assert lines[heading + 1].strip().startswith("models.hit_rate_threshold = 0.9 ")
    heading = lines.index("taken over: rows 1 (missing) and 2 (unknown) of the table")
    assert "models.default_value_for_each_table = shop: [0.125, 0.25], feed: [0.125]" in lines[heading + 1]
    headings = [line for line in lines if line.startswith(("taken over", "no meaning"))]
    assert headings == sorted(headings, key=lambda line: line[0], reverse=True)
    assert len(headings) == len(set(headings))
    assert "hunter2" not in result.output
    versions = [VersionStore(tmp_path / "store").open(name) for name in VersionStore(tmp_path / "store").names()]
    assert [version.model for version in versions] == ["shop", "feed"]
    for version in versions:
        assert any(line.startswith(f"{version.name} of {version.model} in {tmp_path / 'store'}: ") for line in lines)
    assert "the rows of a sample's keys of a table are added up (HPS does not pool: see --combiner)" in lines[-2]
    assert "it can be looked up, but not served" in lines[-1]


def test_its_options_reach_the_version(tmp_path: Path) -> None:
    write_dense_part(tmp_path / "part.onnx", np.ones((1, 1), np.float32), np.full((10, 1), 0.1, np.float32))
    path = small_ps_json(tmp_path)
    result = run(
        path, "--dense", tmp_path / "part.onnx", "--row-type", "int8", "--combiner", "concat", "--model", "shop"
    )
    assert result.exit_code == 0, result.output
    assert "stay side by side, as in HPS" in result.output.splitlines()[-1]
    version = VersionStore(tmp_path / "store").open()
    assert {table.dtype for table in version.tables} == {"int8"}
    assert (version.num_dense, version.embeddings_dim, len(version.golden())) == (1, 10, 4)


def test_a_fault_ends_it(tmp_path: Path) -> None:
    path = small_ps_json(tmp_path)
    (tmp_path / "shop/user/key").unlink()
    result = run(path)
    assert isinstance(result.exception, HpsError)
    assert "shop/user/key: there is no such file" in str(result.exception)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("arguments", [["--combiner", "max"], ["--row-type", "fp8"]])
def test_unknown_options_are_refused(tmp_path: Path, arguments: list[str]) -> None:
    result = run(small_ps_json(tmp_path), *arguments)
    assert result.exit_code == 2
    assert arguments[1] in result.output
