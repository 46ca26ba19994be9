from dataclasses import replace
from pathlib import Path

import pytest

from rankhouse.training.config import load_recipe
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.errors import NoRoomError
from rankhouse.training.planner.forecast import Forecast
from rankhouse.training.planner.hardware import PROFILES
from rankhouse.training.planner.recipe_plan import plan_recipe
from rankhouse.training.planner.room import Room, check_room, cluster_of, rooms_of_machines
from tests.training.tiny_dataset import write_tiny_dataset

GIB = 2**30


def made(tmp_path: Path, rooms: list[Room], *settings: str, rows: int = 100_000_000) -> Forecast:
    """Plans a dataset of which a table is said to have many rows; none of them is there."""
    dataset = PreparedDataset.open(write_tiny_dataset(tmp_path / "tiny"))
    tables = {**dataset.tables, "user": replace(dataset.tables["user"], num_rows=rows)}
    config = load_recipe("dlrm", overrides=settings)
    cluster = cluster_of(config, rooms, PROFILES["2-cores"])
    forecast = plan_recipe(config, replace(dataset, tables=tables), cluster)
    check_room(forecast, config, rooms)
    return forecast


def test_ranks_of_a_machine_share_its_memory() -> None:
    rooms = rooms_of_machines([("a", 8e9), ("b", 4e9), ("a", 7e9), ("c", 0)])
    assert rooms == [Room("a", (0, 2), 7e9), Room("b", (1,), 4e9), Room("c", (3,), float("inf"))]
    cluster = cluster_of(load_recipe("dlrm"), rooms, PROFILES["a100"])
    assert (cluster.num_ranks, cluster.memory_bytes, cluster.hardware.shares_host_memory) == (4, 3.5e9, True)
    unknown = cluster_of(load_recipe("dlrm"), [Room("c", (0,), float("inf"))], PROFILES["a100"])
    assert unknown.memory_bytes == PROFILES["a100"].memory_bytes


def test_what_does_not_fit_the_machine_is_refused_with_what_would(tmp_path: Path) -> None:
    # 100 million rows of 4 numbers, as many slots, and a note of each row's step: 36 bytes each, on one rank.
    with pytest.raises(NoRoomError) as refused:
        made(tmp_path, [Room("node-1", (0, 1), 3 * GIB)])
    message = str(refused.value)
    assert "the plan does not fit: rank 0 needs 3.36 GiB (1.49 GiB of weights, 1.86 GiB of slots, " in message
    assert ", and the 2 ranks of node-1 together 3.36 GiB of 3.00 GiB that are free there. What would:\n" in message
    assert "- row-wise Adagrad, one number for a row: 1.12 GiB of tables and slots a rank" in message
    assert "- rows held as bfloat16 (dtype in parallel.tables): 1.30 GiB of tables and slots a rank" in message
    assert '- device "host" with a host_folder for user: 3.35 GiB in files' in message


def test_tables_in_files_take_no_memory_but_their_cache(tmp_path: Path) -> None:
    files = f"parallel.tables={{user: {{device: host, cache_rows: 1000000, host_folder: {tmp_path}}}}}"
    assert made(tmp_path, [Room("node-1", (0, 1), GIB)], files).ranks[0].memory_bytes < GIB / 16


def test_one_rank_may_take_what_the_others_of_its_machine_leave(tmp_path: Path) -> None:
    assert made(tmp_path, [Room("node-1", (0, 1), 4 * GIB)]).ranks[0].memory_bytes > 2 * GIB


def test_a_plan_by_cost_is_a_remedy_where_it_fits(tmp_path: Path) -> None:
    machines = [Room("node-1", (0,), 2 * GIB), Room("node-2", (1,), 2 * GIB)]
    with pytest.raises(NoRoomError, match=r"3\.36 GiB .*\n- parallel\.plan=auto: 1\.68 GiB on the fullest rank\n"):
        made(tmp_path, machines)
    assert made(tmp_path / "again", machines, "parallel.plan=auto").plan.placement("user").mode != "table_wise"


def test_tables_lie_on_the_host_where_a_recipe_keeps_memory_back(tmp_path: Path) -> None:
    machine = [Room("node-1", (0,), 8 * GIB)]
    with pytest.raises(
        NoRoomError, match=r"of 1\.00 GiB that parallel\.memory_gib gives each rank(.|\n)*user on the host"
    ):
        made(tmp_path, machine, "parallel.memory_gib=1")
    by_cost = made(tmp_path / "again", machine, "parallel.memory_gib=1", "parallel.plan=auto")
    assert by_cost.plan.placement("user").device == "host"
    assert by_cost.ranks[0].host_bytes == 36 * 100_000_000
