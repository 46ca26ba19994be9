"""Plans of recipes on two ranks: one decides, all train by it. One launch of the ranks for all checks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankhouse.embedding_cache.format.version import VersionStore
from rankhouse.training.checkpoint.files import Checkpoint
from rankhouse.training.config import Config, load_recipe
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.errors import NoRoomError, PlanError
from rankhouse.training.export.export import export_version
from rankhouse.training.plan import Plan, TableSpec, place
from rankhouse.training.planner.at_start import plan_at_start
from rankhouse.training.ranks import Ranks
from rankhouse.training.runs.folder import RunFolder
from rankhouse.training.trainer import Trainer
from tests.training.launching import run_on_ranks
from tests.training.small_logs import write_dataset

ALONE = Ranks(0, 1)
CUT = (
    "parallel.tables={city: {mode: column_wise, wire_forward: bfloat16}, "
    "items: {mode: row_wise, device: host, cache_rows: 8}}"
)


def recipe(directory: Path, *settings: str) -> Config:
    small = [f"data.path={directory / 'data'}", "training.batch_size=16", "model.bottom_mlp=[4]", "model.top_mlp=[4]"]
    return load_recipe("dlrm", overrides=[*small, "training.max_steps=3", *settings])


def earlier(dataset: PreparedDataset) -> Plan:
    """Returns a plan that no cost would give."""
    tables = tuple(TableSpec(name, info.num_rows, info.dim) for name, info in dataset.tables.items())
    return Plan(tables, tuple(place(table, "row_wise", num_ranks=2, ranks=[1, 0]) for table in tables), 2)


def error(run: Callable[[], object]) -> str:
    with pytest.raises(PlanError) as raised:
        run()
    return f"{type(raised.value).__name__}: {raised.value}"


def on_a_rank(ranks: Ranks, directory: Path) -> dict[str, Any]:
    dataset = PreparedDataset.open(directory / "data")
    auto = recipe(directory, "parallel.plan=auto")
    config = recipe(directory, CUT)
    Trainer(RunFolder(directory / "cut"), ranks=ranks).train([], stop=False)  # type: ignore[arg-type]
    return {
        "auto": plan_at_start(auto, dataset, ranks=ranks).document(),
        "kept": plan_at_start(auto, dataset, ranks=ranks, earlier=earlier(dataset)).document(),
        "new": plan_at_start(config, dataset, ranks=ranks, earlier=earlier(dataset)).document(),
        "no room": error(lambda: plan_at_start(recipe(directory, "parallel.memory_gib=1e-6"), dataset, ranks=ranks)),
        "no table": error(lambda: plan_at_start(recipe(directory, "parallel.tables={x: {}}"), dataset, ranks=ranks)),
    }


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("plans")
    write_dataset(directory / "data")
    RunFolder.create(directory / "cut", recipe(directory, CUT))
    return directory


@pytest.fixture(scope="module")
def together(directory: Path) -> list[dict[str, Any]]:
    return run_on_ranks(on_a_rank, directory, num_ranks=2)


@pytest.mark.horovod
def test_one_rank_decides_and_all_get_it(together: list[dict[str, Any]], directory: Path) -> None:
    assert together[0] == together[1]
    plans = {name: Plan.from_document(document) for name, document in together[0].items() if "no " not in name}
    assert plans["auto"].num_ranks == 2
    assert plans["kept"] == earlier(PreparedDataset.open(directory / "data"))
    assert {placement.mode for placement in plans["new"].placements} == {"column_wise", "row_wise"}
    assert together[0]["no room"].startswith("NoRoomError: the plan does not fit: rank 0 needs ")
    assert together[0]["no table"].startswith("PlanError: the constraint on 'x' fits no table")


@pytest.mark.horovod
def test_a_run_of_cut_tables_goes_on_on_one_rank_and_is_exported(
    together: list[dict[str, Any]], directory: Path
) -> None:
    run = RunFolder(directory / "cut")
    assert run.latest_checkpoint is not None
    saved = Checkpoint.open(run.latest_checkpoint)
    version = export_version(run.path, store=directory / "store", model="cut")
    assert VersionStore(directory / "store").open(model="cut") == version
    for table in version.tables:
        rows = np.concatenate([block.rows for block in saved.rows(table.name)])
        np.testing.assert_array_equal(np.concatenate(list(version.blocks(table.name))), rows)
    run.write_config(recipe(directory, CUT, "training.max_steps=5", "training.epochs=9"))
    trainer = Trainer(run, ranks=ALONE)
    assert trainer.position.step == 3
    result = trainer.train([], stop=False)  # type: ignore[arg-type]
    assert result is not None
    assert result.num_steps == 5


def test_a_rank_alone_has_room_or_says_why_not(directory: Path) -> None:
    dataset = PreparedDataset.open(directory / "data")
    assert plan_at_start(recipe(directory), dataset, ranks=ALONE).num_ranks == 1
    with pytest.raises(NoRoomError, match="the plan does not fit"):
        plan_at_start(recipe(directory, "parallel.memory_gib=1e-6"), dataset, ranks=ALONE)
