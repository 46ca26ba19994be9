import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rankhouse.cli.main import app
from rankhouse.training.checkpoint.checkpoint import save_checkpoint
from rankhouse.training.errors import CheckpointError
from rankhouse.training.ranks import Ranks
from tests.training.small_model import build


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    ranks = Ranks(0, 1)
    state = build(ranks)
    for step in (5, 10):
        save_checkpoint(tmp_path / "checkpoints", state, ranks=ranks, step=step, document={"epoch": 1})
    return tmp_path


def run(*arguments: object) -> str:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["checkpoint", *map(str, arguments)])
    if result.exception:
        raise result.exception
    return result.output


def test_list_names_each_checkpoint(run_folder: Path) -> None:
    header, *lines = run("list", run_folder).splitlines()
    assert header.split() == ["step", "ranks", "tables", "MiB", "folder"]
    assert [line.split()[:3] for line in lines] == [["5", "1", "3"], ["10", "1", "3"]]
    assert run("list", run_folder / "checkpoints") == run("list", run_folder)


def test_inspect_shows_the_latest_or_the_one_named(run_folder: Path) -> None:
    output = run("inspect", run_folder)
    for text in ("step 10, 1 ranks, Adagrad", "epoch: 1", "18 x 1"):
        assert text in output
    assert "item table_wise accumulator 60 x 2 float32 1" in " ".join(output.split())
    assert "step 5," in run("inspect", run_folder / "checkpoints" / "step-00000005")


def test_inspect_prints_all_of_it_as_json(run_folder: Path) -> None:
    found = json.loads(run("inspect", run_folder, "--json"))
    assert (found["step"], found["num_ranks"], found["document"]) == (10, 1, {"epoch": 1})
    assert [item["iterations"] for item in found["lineage"]] == [0, 0]
    assert found["lineage"][-1]["id"] == found["id"]
    assert found["plan"]["num_ranks"] == 1
    shop = found["tables"]["shop"]
    assert (shop["mode"], shop["num_rows"], shop["dim"], shop["initial_rows"]) == ("data_parallel", 5, 4, 5)
    assert shop["arrays"]["weights"]["shape"] == [5, 4]
    assert shop["arrays"]["touched"]["shape"] == [5]
    assert shop["arrays"]["weights"]["files"] == [
        {"file": "tables/shop.weights.0-5.safetensors", "rows": [0, 5], "columns": [0, 4]}
    ]
    assert found["bytes"] > sum(table["arrays"]["weights"]["bytes"] for table in found["tables"].values())
    assert found["dense"] == {"kernel": {"shape": [18, 1], "dtype": "float32"}}


def test_verify_names_all_damaged_files(run_folder: Path) -> None:
    assert run("verify", run_folder).count("sound") == 2
    tables = run_folder / "checkpoints" / "step-00000005" / "tables"
    altered, missing = tables / "item.weights.0-60.safetensors", tables / "user.touched.0-40.safetensors"
    altered.write_bytes(bytes(altered.stat().st_size))
    missing.unlink()
    with pytest.raises(CheckpointError) as caught:
        run("verify", run_folder)
    assert f"{altered}: its content was altered" in str(caught.value)
    assert f"{missing}: is missing" in str(caught.value)


@pytest.mark.parametrize("verb", ["list", "inspect", "verify"])
def test_refuses_a_folder_without_checkpoints(verb: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds no complete checkpoint"):
        run(verb, tmp_path)
