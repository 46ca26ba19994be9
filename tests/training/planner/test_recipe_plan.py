import json
from pathlib import Path

import pytest

from rankhouse.training.config import Config, load_recipe
from rankhouse.training.data.prepared import PreparedDataset
from rankhouse.training.errors import NoRoomError, PlanError
from rankhouse.training.exchange.wire_format import WireDtypes
from rankhouse.training.planner.hardware import PROFILES
from rankhouse.training.planner.recipe_plan import plan_recipe, recipe_workload
from rankhouse.training.planner.workload import Cluster
from tests.training.tiny_dataset import write_tiny_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return PreparedDataset.open(write_tiny_dataset(tmp_path_factory.mktemp("data") / "tiny"))


def recipe(*settings: str) -> Config:
    return load_recipe("dlrm", overrides=settings)


def cluster(num_ranks: int = 2, **changes: object) -> Cluster:
    return Cluster(num_ranks, PROFILES["2-cores"], **changes)  # type: ignore[arg-type]


def test_a_recipe_says_what_a_step_does(dataset: PreparedDataset) -> None:
    config = recipe("training.batch_size=512", "optimizer.rule=adam", "training.precision=mixed_bfloat16")
    workload = recipe_workload(config, dataset)
    assert (workload.batch_size, workload.optimizer.rule, workload.dense.precision) == (512, "adam", "bfloat16")
    assert {load.table.name: load.num_inputs for load in workload.tables} == {"shop": 1, "item": 2, "user": 1}
    # Bottom layers 2-64-32-4, ten dot products of width 4, top layers 14-128-64-1.
    flops = 2 * (2 * 64 + 64 * 32 + 32 * 4 + 10 * 4 + 14 * 128 + 128 * 64 + 64)
    assert workload.dense.flops == flops
    assert workload.dense.num_parameters == 3 * 64 + 65 * 32 + 33 * 4 + 15 * 128 + 129 * 64 + 65


def test_tables_lie_by_size_but_for_those_that_the_recipe_decides(dataset: PreparedDataset) -> None:
    tables = {
        "item": {"mode": "column_wise", "num_slices": 4, "wire_forward": "bfloat16"},
        "us*": {"device": "host", "cache_rows": 9, "host_folder": "/scratch", "ranks": [1]},
        "shop": {"wire_backward": "int8"},
    }
    made = plan_recipe(recipe(f"parallel.tables={json.dumps(tables)}"), dataset, cluster())
    shop, item, user = made.plan.placements
    assert (shop.mode, shop.wire) == ("data_parallel", None)
    assert (item.mode, len(item.shards), item.wire) == ("column_wise", 4, WireDtypes("bfloat16", "float32"))
    assert (user.mode, user.ranks, user.device, user.cache_rows) == ("table_wise", (1,), "host", 9)
    assert user.host_folder == "/scratch"
    assert item.reason == "as the recipe says"
    decided = 'parallel.tables={"*": {mode: row_wise, wire_forward: float32}}'
    spread = plan_recipe(recipe(decided, "parallel.wire_forward=int8"), dataset, cluster(3)).plan
    assert [placement.mode for placement in spread.placements] == ["row_wise"] * 3
    assert spread.wires == dict.fromkeys(("shop", "item", "user"), WireDtypes("float32", "float32"))
    assert len(plan_recipe(recipe(decided), dataset, cluster(1)).plan.shards_of(0)) == 3
    hosted = plan_recipe(recipe('parallel.tables={"*": {device: host, cache_rows: 9}}'), dataset, cluster(3)).plan
    assert {placement.ranks for placement in hosted.placements} == {(0,), (1,), (2,)}


def test_a_recipe_takes_a_plan_by_cost_or_a_document(dataset: PreparedDataset, tmp_path: Path) -> None:
    by_cost = recipe("parallel.plan=auto", "parallel.tables={user: {mode: row_wise}}", "parallel.auto_wire=int8")
    made = plan_recipe(by_cost, dataset, cluster()).plan
    assert made.placement("user").mode == "row_wise"
    (tmp_path / "plan.json").write_text(json.dumps(made.document()))
    from_document = recipe(f"parallel.plan={tmp_path / 'plan.json'}")
    assert plan_recipe(from_document, dataset, cluster()).plan == made
    with pytest.raises(PlanError, match="the plan is for 2 ranks, but the cluster has 3"):
        plan_recipe(from_document, dataset, cluster(3))


def test_a_recipe_says_what_rows_are_held_in(dataset: PreparedDataset, tmp_path: Path) -> None:
    decided = 'parallel.tables={"*": {dtype: bfloat16}, user: {dtype: float16}}'
    dtypes = {"shop": "bfloat16", "item": "bfloat16", "user": "float16"}
    whole, plans = plan_recipe(recipe(), dataset, cluster()), []
    for settings in ([], ["parallel.plan=auto"]):
        made = plan_recipe(recipe(decided, *settings), dataset, cluster())
        plans.append(made.plan)
        assert made.plan.dtypes == dtypes
    assert 2 * plans[0].bytes_of(0) == whole.plan.bytes_of(0)
    (tmp_path / "plan.json").write_text(json.dumps(plans[0].document()))
    assert plan_recipe(recipe(f"parallel.plan={tmp_path / 'plan.json'}"), dataset, cluster()).plan == plans[0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["parallel.tables={usr: {mode: row_wise}}"], "the constraint on 'usr' fits no table; did you mean 'user'"),
        (["parallel.tables={user: {ranks: [2]}}"], "names rank 2; expected one of the 2 ranks"),
        (["parallel.plan=nothing.json"], "cannot read a plan from nothing.json .*; write one by `rankhouse plan"),
        (
            ["parallel.tables={shop: {dtype: bfloat16}}", "optimizer.rule=adam", "optimizer.kind=exact"],
            "table 'shop' of 16 bits lies on every rank, and the exact kind of 'adam' would round each copy in other",
        ),
        (
            ["parallel.tables={user: {device: host}}", "optimizer.rule=adam", "optimizer.kind=exact"],
            "table 'user' lies on the host, .* this kind of 'adam' moves all; take optimizer.kind=lazy",
        ),
    ],
)
def test_refuses_what_cannot_be_placed_so(dataset: PreparedDataset, settings: list[str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        plan_recipe(recipe(*settings), dataset, cluster())


def test_a_plan_by_cost_that_has_no_room_is_refused(dataset: PreparedDataset) -> None:
    with pytest.raises(NoRoomError, match="usable memory"):
        plan_recipe(recipe("parallel.plan=auto"), dataset, cluster(memory_bytes=1e4))
