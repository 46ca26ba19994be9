from dataclasses import replace

import pytest

from rankhouse.kernels.optimizer_settings import Adam, RowwiseAdagrad
from rankhouse.training.errors import NoRoomError
from rankhouse.training.exchange.wire_format import WireDtypes
from rankhouse.training.models.synthetic_models import synthetic_model
from rankhouse.training.plan import check_plan
from rankhouse.training.planner.constraints import Thresholds
from rankhouse.training.planner.forecast import forecast
from rankhouse.training.planner.hardware import PROFILES, Link
from rankhouse.training.planner.placing import plan_tables
from rankhouse.training.planner.published import peer_plan
from rankhouse.training.planner.workload import Cluster, synthetic_workload
from tests.training.planner.small_workload import cluster, load, small_workload


@pytest.mark.parametrize(("model", "num_ranks"), [("tiny", 1), ("tiny", 8), ("medium", 128), ("criteo", 3)])
def test_plans_are_whole_fit_and_are_no_slower_than_dealing_by_size(model: str, num_ranks: int) -> None:
    workload = synthetic_workload(synthetic_model(model))
    made = plan_tables(workload, cluster(num_ranks))
    check_plan(made.plan)
    assert not made.overfull()
    assert all(placement.reason for placement in made.plan.placements)
    dealt = forecast(peer_plan(workload, num_ranks), workload, cluster(num_ranks))
    assert made.step_seconds <= dealt.step_seconds


def test_work_is_even_where_tables_allow_it() -> None:
    made = plan_tables(synthetic_workload(synthetic_model("medium")), cluster(8))
    busy = [rank.seconds["lookup"] + rank.seconds["update"] for rank in made.ranks]
    assert max(busy) < 1.15 * sum(busy) / len(busy)


def test_the_same_input_gives_the_same_plan() -> None:
    assert plan_tables(small_workload(), cluster(4)).plan == plan_tables(small_workload(), cluster(4)).plan


def test_a_table_that_fits_no_rank_is_cut() -> None:
    whole = 4 * 64 * 2_000_000 * 2
    made = plan_tables(small_workload(), cluster(4, memory_bytes=0.7 * whole))
    user = made.plan.placement("user")
    assert user.mode in ("row_wise", "column_wise")
    assert "whole it takes 989.4 MiB of the 588.4 MiB that a rank has for tables" in user.reason


def test_columns_are_cut_also_where_the_optimizer_keeps_a_number_for_each_row() -> None:
    workload = small_workload(optimizer=RowwiseAdagrad())
    made = plan_tables(workload, cluster(4), constraints={"user": {"mode": "column_wise"}})
    assert made.plan.placement("user").mode == "column_wise"


def test_constraints_are_kept() -> None:
    decided = {
        "user": {"mode": "row_wise", "ranks": [1, 2]},
        "item": {"mode": "column_wise", "num_slices": 4},
        "sh*": {"ranks": [3]},
        "wide": {"device": "host", "cache_rows": 9000, "wire_forward": "bfloat16"},
        "tiny": {"mode": "table_wise", "exchange": "rows"},
    }
    made = plan_tables(small_workload(), cluster(4), constraints=decided)
    held = {placement.table: placement for placement in made.plan.placements}
    assert (held["user"].mode, held["user"].ranks) == ("row_wise", (1, 2))
    assert (held["item"].mode, held["item"].ranks) == ("column_wise", (0, 1, 2, 3))
    assert held["shop"].ranks == (3,)
    assert (held["tiny"].mode, held["tiny"].exchange) == ("table_wise", "rows")
    assert "as its constraint says" in held["user"].reason
    assert sum(rank.host_bytes for rank in made.ranks) > 4 * 256 * 100_000
    assert (held["wide"].device, held["wide"].cache_rows) == ("host", 9000)
    assert made.plan.wires == {"wide": WireDtypes("bfloat16", "float32")}


def test_thresholds_decide_in_elements() -> None:
    thresholds = Thresholds(data_parallel=80, row_slice=100_000_000, column_slice=10_000_000)
    made = plan_tables(small_workload(), cluster(4), thresholds=thresholds)
    modes = {placement.table: (placement.mode, len(placement.shards)) for placement in made.plan.placements}
    assert modes["tiny"] == ("data_parallel", 4)
    assert modes["user"] == ("row_wise", 4)
    assert modes["item"] == ("column_wise", 2)
    assert modes["wide"] == ("column_wise", 4)


def test_frequent_rows_of_many_tables_do_not_meet_on_one_rank() -> None:
    tables = tuple(load(f"t{number}", 1_000_000, 32, id_exponent=1.05) for number in range(4))
    made = plan_tables(small_workload(tables=tables), cluster(4), constraints={"t*": {"mode": "row_wise"}})
    assert len({placement.shards[0].rank for placement in made.plan.placements}) == 4


def test_what_cannot_fit_is_refused_with_what_would() -> None:
    hosts = replace(PROFILES["a100"], host_memory_bytes=1e7)
    with pytest.raises(NoRoomError) as refused:
        plan_tables(small_workload(), Cluster(1, hosts, 1e9))
    message = str(refused.value)
    assert message.startswith(
        "1.28 GiB of tables and slots do not fit 1 rank of 858.3 MiB usable memory (1.28 GiB a rank)"
    )
    assert "- more ranks with as much memory each: it fits 2\n" in message
    assert "- row-wise Adagrad, one number for a row: 670.2 MiB of tables and slots a rank" in message
    assert "samples in a step" not in message, "fewer samples do not make tables smaller"
    assert "host" not in message
    with pytest.raises(NoRoomError) as refused:
        plan_tables(small_workload(), Cluster(1, replace(hosts, shares_host_memory=True), 1e9))
    assert 'device "host" with a host_folder for user: 984.2 MiB in files' in str(refused.value)
    with pytest.raises(NoRoomError) as refused:
        plan_tables(small_workload(optimizer=Adam(kind="exact")), cluster(1, memory_bytes=1e9))
    assert "host" not in str(refused.value)
    assert not plan_tables(small_workload(), cluster(2, memory_bytes=1e9)).overfull()


def test_what_has_no_room_lies_on_the_host_where_that_has() -> None:
    made = plan_tables(small_workload(), cluster(1, memory_bytes=1e9))
    hosted = [placement for placement in made.plan.placements if placement.device == "host"]
    assert [placement.table for placement in hosted] == ["user"]
    assert hosted[0].cache_rows == 2_000_000 // 5
    assert "on the host with 400,000 rows cached" in hosted[0].reason
    assert not made.overfull()
    with pytest.raises(NoRoomError, match='device "host" for user'):
        plan_tables(small_workload(), cluster(1, memory_bytes=1e9), constraints={"user": {"device": "device"}})


def test_rows_travel_in_fewer_bytes_where_that_is_allowed_and_faster() -> None:
    free = small_workload(auto_wire="bfloat16")
    made = plan_tables(free, cluster(16), constraints={"user": {"wire_backward": "float32"}})
    assert made.plan.wires["wide"] == WireDtypes("bfloat16", "bfloat16")
    assert made.plan.wires.get("user", WireDtypes()).backward == "float32"
    assert made.step_seconds < plan_tables(small_workload(), cluster(16)).step_seconds
    # Where links are as fast as memory, to round costs more than it saves.
    hardware = PROFILES["a100"]
    fast = replace(hardware, intra=Link(1e13, 1e13, 2e-5))
    assert not plan_tables(free, Cluster(4, fast)).plan.wires


def test_tables_on_the_host_must_fit_there() -> None:
    hosts = replace(PROFILES["a100"], host_memory_bytes=1e8)
    with pytest.raises(NoRoomError, match="the hosts' memory"):
        plan_tables(small_workload(), Cluster(2, hosts), constraints={"user": {"device": "host"}})
